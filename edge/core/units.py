"""The units that budgets count in, and what each is called wherever it appears. The page has its own table: edge/serve/page/units.js."""

from __future__ import annotations

from dataclasses import dataclass

from edge.core.formatting import counted, money


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit of a budget."""

    name: str
    """Of its counter, on the device and over HTTP."""
    word: str
    """In lines for people, and in `learning.control.dual_unit`."""
    limit: str
    """Of its limit: in configurations, over HTTP and in the ledger's settings."""
    left: str
    """Of what is left of the limit, over HTTP."""
    period: str
    """Of the period that the limit holds for, over HTTP."""
    ledger: str
    """In the coordinator's amounts, and in the details of its refusals."""
    noun: str
    """Of one; "" for money."""
    option: str
    """Of `edge-agent budget limit`, with its value."""

    def amount(self, count: int) -> str:
        """`1 call`, `20 tokens`, `0.00005 USD`."""
        return counted(count, self.noun) if self.noun else money(count)

    def number(self, count: int) -> str:
        """`1`, `20`, `0.00005 USD`, for a line that names the unit itself."""
        return str(count) if self.noun else money(count)


CALLS = Unit("calls", "calls", "calls_limit", "calls_left", "calls_period", "calls", "call", "--calls N")
TOKENS = Unit("tokens", "tokens", "tokens_limit", "tokens_left", "tokens_period", "tokens", "token", "--tokens N")
SPEND = Unit("spend_uusd", "spend", "spend_limit_uusd", "spend_left_uusd", "spend_period", "uusd", "", "--spend USD")
BUDGET_UNITS = (CALLS, TOKENS, SPEND)
BY_WORD = {unit.word: unit for unit in BUDGET_UNITS}
BY_LEDGER_NAME = {unit.ledger: unit for unit in BUDGET_UNITS}
