"""What is known of the budgets of this device's tasks: as the coordinator reported them last, else as the state folder has kept them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge.budget.limits import NO_BUDGET_LIMITS, BudgetLimits, has_set_limits, limits_of
from edge.cloud.client import KnownBudget
from edge.core.periods import period_began, period_end
from edge.core.units import BUDGET_UNITS
from edge.rpc.client import BudgetSnapshot
from edge.state.reader import StateReader
from edge.state.usage import used_since


@dataclass(frozen=True, slots=True)
class KnownBudgets:
    """The one source of every figure of a budget that is shown. `reported` in this process, by task, the newest last; `configured`: the
    limits of one's own coordinator (None: another one rules).

    One's own coordinator has one budget for all tasks: what is used and left of it is what was reported last, of whichever task.
    """

    state: StateReader
    reported: Mapping[str, KnownBudget]
    configured: BudgetLimits | None
    now: Callable[[], float]

    def of(self, task: str) -> KnownBudget | None:
        """The budget of a task; None where nothing is known."""
        if self.configured is None:
            known = self.reported.get(task)
            return known or budget_at_rest(self.state, stored_budgets(self.state).get(task), None, self.now())
        newest, own = self.newest, self._own(task)
        if newest is None or own is None:
            return newest
        of_task = {name: getattr(own.budget, name) for name in ("version", "dual", "target_rate")}
        return replace(newest, budget=replace(newest.budget, **of_task))

    @property
    def newest(self) -> KnownBudget | None:
        """What was reported last of any task."""
        if self.reported:
            return list(self.reported.values())[-1]
        stored = list(stored_budgets(self.state).values())
        return budget_at_rest(self.state, stored[-1] if stored else None, self.configured, self.now())

    def dual(self, task: str) -> float | None:
        """The task's λ; None before it is known."""
        own, terms = self._own(task), self.state.terms(task)
        return own.budget.dual if own else terms.dual if terms else None

    def _own(self, task: str) -> KnownBudget | None:
        return self.reported.get(task) or stored_budgets(self.state).get(task)


_STORED = "budget:"


def stored_budgets(state: StateReader) -> dict[str, KnownBudget]:
    """The budgets of tasks as they were reported before, the newest last."""
    kept = state.rows("SELECT key, value FROM meta WHERE key LIKE ?", (f"{_STORED}%",))
    found = {str(key).removeprefix(_STORED): json.loads(text) for key, text in kept}
    known = {task: KnownBudget(BudgetSnapshot(**one["budget"]), one["as_of"]) for task, one in found.items()}
    return dict(sorted(known.items(), key=lambda one: one[1].as_of))


def store_budget(state: StateReader, task: str, known: KnownBudget) -> None:
    """Keep what is known for commands that read it while no agent runs, in the transaction under way."""
    text = json.dumps({"budget": asdict(known.budget), "as_of": known.as_of})
    state.database.execute("REPLACE INTO meta VALUES (?, ?)", (f"{_STORED}{task}", text))


def budget_at_rest(
    state: StateReader, known: KnownBudget | None, configured: BudgetLimits | None, now: float
) -> KnownBudget | None:
    """What the next agent is held to: the budget as it was known last, with the limits that hold now. `configured` None: the limits are
    another coordinator's.

    A limit that was reported and is not in this configuration stays, unless somebody has set limits here: the agent may have had another.
    The ledger begins to count a period when it is set first; if the period has begun again since, this device's own records show the use.
    """
    limits = NO_BUDGET_LIMITS if configured is None else limits_of(state, configured)
    if known is None and limits.words == NO_BUDGET_LIMITS.words:
        return None
    budget, as_of = (known.budget, known.as_of) if known else (BudgetSnapshot(0, 0.0, 0.0, 0, None, 0, None, 0, None), -math.inf)
    counted = {getattr(budget, unit.period) or "total" for unit in BUDGET_UNITS}
    fields: dict[str, Any] = {}
    for unit in BUDGET_UNITS:
        limit = getattr(limits, unit.limit)
        if limit is None and (configured is None or not has_set_limits(state)):
            limit, period = getattr(budget, unit.limit), getattr(budget, unit.period)
        else:
            period = "" if limit is None else limits.period
        used, window = getattr(budget, unit.name), period or "total"
        if known is not None and window not in {"total", *counted}:
            used = 0
        elif known is None or period != getattr(budget, unit.period) or now >= period_end(window, as_of):
            recorded = used_since(state.database, period_began(window, now))
            used = getattr(recorded, unit.name) + getattr(recorded, f"learning_{unit.name}")
        fields |= {unit.name: used, unit.limit: limit, unit.period: period}
    changed = replace(budget, **fields)
    return known if changed == budget else KnownBudget(changed, now)
