"""What calls cost. Knows prices and token counts, in integers; knows nothing of budgets or providers."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.accounts import Amount
from edge.core.types import TokenUsage

TOKENS_PER_PRICE_UNIT = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Micro-USD per million input and output tokens."""

    in_uusd_per_mtok: int
    out_uusd_per_mtok: int

    def charge(self, usage: TokenUsage) -> Amount:
        """One call with this usage, rounded up to whole micro-USD. Never more than the charge for a larger usage."""
        total = usage.input_tokens * self.in_uusd_per_mtok + usage.output_tokens * self.out_uusd_per_mtok
        return Amount(calls=1, tokens=usage.input_tokens + usage.output_tokens, uusd=-(-total // TOKENS_PER_PRICE_UNIT))
