"""What may still be asked of the cloud, as one value.

It travels with every answer, so that nobody meets the end of a budget by surprise: when nothing is left, answers go on from this device,
and the quota states it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from edge.budget.dial import Dials, DialSnapshot
from edge.budget.known import KnownBudgets, store_budget
from edge.cloud.client import KnownBudget
from edge.cloud.switch import CloudSwitch
from edge.core.formatting import money
from edge.core.units import BUDGET_UNITS
from edge.rpc.client import BudgetSnapshot

QuotaState = Literal["ok", "low", "used_up", "paused", "switched_off", "offline", "unknown"]
LOW_SHARE = 0.1
"""Less than this share of a limit left is low."""
_HERE = "answers come from this device"


@dataclass(frozen=True, slots=True)
class Quota:
    """What one task may still ask. Limits and what is left are None where there is no limit, or nothing is known (`as_of` None).

    `target_rate` is the dial's τ (None: the model decides alone), `realised_rate` the share of the last answers that asked; `dual` λ, spend
    in micro-USD; `as_of` when the coordinator reported it, in seconds since the epoch. `line` is for people.
    `*_period`: what a limit holds for ("": there is none).
    """

    task: str
    state: QuotaState
    line: str
    calls: int | None
    calls_limit: int | None
    calls_left: int | None
    tokens: int | None
    tokens_limit: int | None
    tokens_left: int | None
    spend_uusd: int | None
    spend_limit_uusd: int | None
    spend_left_uusd: int | None
    target_rate: float | None
    realised_rate: float | None
    dual: float | None
    as_of: float | None
    calls_period: str = ""
    tokens_period: str = ""
    spend_period: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What decides in addition to the budget."""

    switched_off: str = ""
    """Why the cloud is off; "": it is not."""
    paused: bool = False
    """Whether it is off because somebody paused it."""
    away: str = ""
    """Why the coordinator is away; "": it is not."""
    refused: str = ""
    """What the coordinator has just refused for want of budget; "": nothing."""


def quota_of(task: str, known: KnownBudget | None, dial: DialSnapshot | None, now: Circumstances) -> Quota:
    """The quota from its parts."""
    budget = known.budget if known else None
    amounts: dict[str, Any] = {}
    shares = []
    for unit in BUDGET_UNITS:
        used, limit = (getattr(budget, unit.name), getattr(budget, unit.limit)) if budget else (None, None)
        left = None if used is None or limit is None else max(0, limit - used)
        if left is not None:
            shares.append(left / limit if limit else 0.0)
        period = getattr(budget, unit.period) if budget else ""
        amounts |= {unit.name: used, unit.limit: limit, unit.left: left, unit.period: period}
    state = _state(min(shares, default=1.0) if budget else None, now)
    return Quota(
        task=task,
        state=state,
        line=_line(state, budget, dial, now),
        **amounts,
        target_rate=dial.target_rate if dial else None,
        realised_rate=dial.realised_rate if dial else None,
        dual=budget.dual if budget else None,
        as_of=known.as_of if known else None,
    )


def _state(least_share: float | None, now: Circumstances) -> QuotaState:
    """`least_share`: what is left of the limit that is nearest; None where no budget is known."""
    if now.switched_off:
        return "paused" if now.paused else "switched_off"
    if now.away:
        return "offline"
    if now.refused:
        return "used_up"
    if least_share is None:
        return "unknown"
    return "used_up" if least_share == 0.0 else "low" if least_share < LOW_SHARE else "ok"


def _line(state: QuotaState, budget: BudgetSnapshot | None, dial: DialSnapshot | None, now: Circumstances) -> str:
    if state in ("paused", "switched_off"):
        return f"{now.switched_off}; {_HERE}"
    if state == "offline":
        return f"offline ({now.away}); {_HERE}"
    if state == "unknown" or budget is None:
        return f"used up ({now.refused}); {_HERE}" if state == "used_up" else "the coordinator has not reported the budget yet"
    calls, spent = budget.calls, money(budget.spend_uusd)
    parts = [
        {"used_up": f"used up; {_HERE}", "low": "little is left"}.get(state, ""),
        f"{calls} calls (unlimited)" if budget.calls_limit is None else f"{calls} of {budget.calls_limit} calls",
        f"{spent} spent" if budget.spend_limit_uusd is None else f"{spent} of {money(budget.spend_limit_uusd)}",
    ]
    if dial is not None and dial.target_rate is not None:
        asked = "" if dial.realised_rate is None else f", {100 * dial.realised_rate:.1f} % asked"
        parts.append(f"dial {100 * dial.target_rate:g} %{asked}")
    return " · ".join(part for part in parts if part)


def known_quota(budgets: KnownBudgets, task: str, dial: DialSnapshot, now: Circumstances) -> Quota:
    """The quota of a task, from what is known of the budgets."""
    return replace(quota_of(task, budgets.of(task), dial, now), dual=budgets.dual(task))


@dataclass(slots=True)
class Quotas:
    """The quotas of a running agent. `away` returns why the coordinator is not reached ("": it is)."""

    budgets: KnownBudgets
    away: Callable[[], str]
    dials: Dials
    switch: CloudSwitch
    _refused: dict[str, str] = field(default_factory=dict, init=False)

    def now(self, task: str, adapter_version: int = 0) -> Quota:
        """The quota of a task at this moment, from what is known; asks nobody."""
        switch = self.switch
        now = Circumstances(switch.reason, switch.paused and not switch.always_off, self.away(), self._refused.get(task, ""))
        return known_quota(self.budgets, task, self.dials.of(task).snapshot(adapter_version), now)

    def refused(self, task: str, why: str) -> None:
        """The coordinator refused a call for want of budget; holds until it answers one."""
        self._refused[task] = why

    def answered(self, task: str) -> None:
        """The coordinator answered a call."""
        self._refused.pop(task, None)

    def limits_changed(self) -> None:
        """Earlier refusals no longer count."""
        self._refused.clear()

    @property
    def learned(self) -> tuple[str, ...]:
        """The labels that learning has task terms for, also of phases that were left."""
        return tuple(str(task) for (task,) in self.budgets.state.rows("SELECT task FROM terms ORDER BY task"))

    def is_learned(self, task: str) -> bool:
        """Whether learning has task terms for a label."""
        return self.budgets.state.terms(task) is not None

    def save(self, task: str) -> None:
        """Keep what is known for commands that read it while no agent runs, in the transaction under way."""
        if (known := self.budgets.reported.get(task)) is not None:
            store_budget(self.budgets.state, task, known)
