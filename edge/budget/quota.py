"""What may still be asked of the cloud, as one value.

It travels with every answer, so that nobody meets the end of a budget by surprise: when nothing is left, answers go on from this device,
and the quota says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from edge.budget.dial import Dials, DialSnapshot
from edge.cloud.client import KnownBudget
from edge.cloud.switch import CloudSwitch
from edge.core.formatting import dollars
from edge.rpc.client import BudgetSnapshot
from edge.state.folder import StateFolder
from edge.state.reader import StateReader

QuotaState = Literal["ok", "low", "used_up", "paused", "switched_off", "offline", "unknown"]
LOW_SHARE = 0.1
"""Less than this share of a limit left is low."""
_HERE = "answers come from this device"


@dataclass(frozen=True, slots=True)
class Quota:
    """What one task may still ask. Limits and what is left are None where there is no limit, or nothing is known (`as_of` None).

    `target_rate` is the dial's τ (None: the model decides alone), `realised_rate` the share of the last answers that asked; `dual` λ, spend
    in micro-USD; `as_of` when the coordinator reported it, in seconds since the epoch. `line` is for people.
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

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What decides beside the budget: why the cloud is off ("": it is not), whether that is a pause, why the coordinator is away ("": it is
    not), and whether it has just refused for want of budget."""

    switched_off: str = ""
    paused: bool = False
    away: str = ""
    refused: str = ""


def quota_of(
    task: str, known: KnownBudget | None, dial: DialSnapshot | None, now: Circumstances, dual: float | None = None
) -> Quota:
    """The quota from its parts; `dual` where no budget is known."""
    budget = known.budget if known else None
    left = {unit: _left(budget, unit) for unit in ("calls", "tokens", "spend_uusd")}
    state = _state(budget, now)
    return Quota(
        task=task,
        state=state,
        line=_line(state, budget, dial, now),
        calls=budget.calls if budget else None,
        calls_limit=budget.calls_limit if budget else None,
        calls_left=left["calls"],
        tokens=budget.tokens if budget else None,
        tokens_limit=budget.tokens_limit if budget else None,
        tokens_left=left["tokens"],
        spend_uusd=budget.spend_uusd if budget else None,
        spend_limit_uusd=budget.spend_limit_uusd if budget else None,
        spend_left_uusd=left["spend_uusd"],
        target_rate=dial.target_rate if dial else None,
        realised_rate=dial.realised_rate if dial else None,
        dual=budget.dual if budget else dual,
        as_of=known.as_of if known else None,
    )


@dataclass(slots=True)
class Quotas:
    """The quotas of a running agent. `link` returns the last reported budget of a task, `away` why it is not reached ("": it is)."""

    state: StateFolder
    link: Callable[[str], KnownBudget | None]
    away: Callable[[], str]
    dials: Dials
    switch: CloudSwitch
    _refused: dict[str, str] = field(default_factory=dict, init=False)

    def now(self, task: str, adapter_version: int = 0) -> Quota:
        """The quota of a task at this moment, from what is known; asks nobody."""
        terms = self.state.terms(task)
        switch = self.switch
        now = Circumstances(switch.reason, switch.paused and not switch.always_off, self.away(), self._refused.get(task, ""))
        snapshot = self.dials.of(task).snapshot(adapter_version)
        return quota_of(task, self._known(task), snapshot, now, terms.dual if terms else None)

    def refused(self, task: str, why: str) -> None:
        """The coordinator refused a call for want of budget; holds until it answers one."""
        self._refused[task] = why

    def answered(self, task: str) -> None:
        """The coordinator answered a call."""
        self._refused.pop(task, None)

    def is_learned(self, task: str) -> bool:
        """Whether learning has terms for a task."""
        return self.state.terms(task) is not None

    def save(self, task: str) -> None:
        """Keep what is known for commands that look while no agent runs, in the transaction under way."""
        if (known := self.link(task)) is not None:
            put_budget(self.state, task, known)

    def _known(self, task: str) -> KnownBudget | None:
        return self.link(task) or stored_budget(self.state, task)


def stored_budget(state: StateReader, task: str) -> KnownBudget | None:
    """The budget of a task as it was known last, from the state folder."""
    text = state.meta(f"budget:{task}")
    if text is None:
        return None
    kept = json.loads(text)
    return KnownBudget(BudgetSnapshot(**kept["budget"]), kept["as_of"])


def put_budget(state: StateFolder, task: str, known: KnownBudget) -> None:
    """Keep a task's budget, in the transaction under way."""
    text = json.dumps({"budget": asdict(known.budget), "as_of": known.as_of})
    state.database.execute("REPLACE INTO meta VALUES (?, ?)", (f"budget:{task}", text))


def _left(budget: BudgetSnapshot | None, unit: str) -> int | None:
    limit = _limit(budget, unit)
    return None if limit is None else max(0, limit - int(getattr(budget, unit)))


def _limit(budget: BudgetSnapshot | None, unit: str) -> int | None:
    name = "spend_limit_uusd" if unit == "spend_uusd" else f"{unit}_limit"
    limit: int | None = None if budget is None else getattr(budget, name)
    return limit


def _state(budget: BudgetSnapshot | None, now: Circumstances) -> QuotaState:
    if now.switched_off:
        return "paused" if now.paused else "switched_off"
    if now.away:
        return "offline"
    if now.refused:
        return "used_up"
    if budget is None:
        return "unknown"
    shares = [_share_left(budget, unit) for unit in ("calls", "tokens", "spend_uusd")]
    least = min((share for share in shares if share is not None), default=1.0)
    return "used_up" if least == 0.0 else "low" if least < LOW_SHARE else "ok"


def _share_left(budget: BudgetSnapshot, unit: str) -> float | None:
    limit, left = _limit(budget, unit), _left(budget, unit)
    return None if limit is None or left is None else left / limit if limit else 0.0


def _line(state: QuotaState, budget: BudgetSnapshot | None, dial: DialSnapshot | None, now: Circumstances) -> str:
    if state in ("paused", "switched_off"):
        return f"{now.switched_off}; {_HERE}"
    if state == "offline":
        return f"offline ({now.away}); {_HERE}"
    if state == "unknown" or budget is None:
        return f"used up ({now.refused}); {_HERE}" if state == "used_up" else "the coordinator has not reported the budget yet"
    what = {"used_up": f"used up; {_HERE}", "low": "little is left"}.get(state, "")
    parts = [_used(budget.calls, budget.calls_limit, "calls"), _spent(budget), _rate(dial)]
    return " · ".join(part for part in (what, *parts) if part)


def _used(used: int, limit: int | None, what: str) -> str:
    return f"{used} {what}, no limit" if limit is None else f"{used} of {limit} {what}"


def _spent(budget: BudgetSnapshot) -> str:
    spent, limit = dollars(budget.spend_uusd), budget.spend_limit_uusd
    return f"{spent} spent" if limit is None else f"{spent} of {dollars(limit)}"


def _rate(dial: DialSnapshot | None) -> str:
    if dial is None or dial.target_rate is None:
        return ""
    asked = "" if dial.realised_rate is None else f", {100 * dial.realised_rate:.1f} % asked"
    return f"dial {100 * dial.target_rate:g} %{asked}"
