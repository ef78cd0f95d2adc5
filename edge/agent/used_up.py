"""A refusal for want of budget, for people. Knows what the coordinator tells of it; knows nothing of ledgers' keys and of asking."""

from __future__ import annotations

from collections.abc import Mapping

from edge.core.errors import BudgetExhausted
from edge.core.money import dollars

_WHOSE = {
    "device_task": " of this task",
    "fleet": " of all devices",
    "fleet_task": " of this task on all devices",
    "step": " of this step",
}
_SETTINGS = {"calls": "budget.calls_limit", "tokens": "budget.tokens_limit", "uusd": "budget.spend_limit_uusd"}
_MOST_DIGITS = 19


def what_is_used_up(error: BudgetExhausted) -> str:
    """`62 of 60 calls`; where the coordinator tells no numbers, its own words."""
    told = error.metadata
    numbers = [_number(told, name) for name in ("used", "limit", "needed", "kept")]
    if None in numbers[:2]:
        return told.get("told") or str(error)
    used, limit, needed, kept = (number or 0 for number in numbers)
    unit, whose = told.get("unit", "calls").partition(",")[0], _WHOSE.get(told.get("scope", ""), "")
    aside = f", {_amount(kept, unit)} kept for other devices" if kept else ""
    short = f"; this call may need {_amount(needed, unit)}" if used + kept < limit else ""
    return f"{_share(used, limit, unit)}{whose}{aside}{short}"


def for_who_demanded_the_cloud(error: BudgetExhausted, *, own_coordinator: bool) -> BudgetExhausted:
    """The same error in one line that says what can be done; a coordinator of one's own is held to the agent's configuration."""
    what = what_is_used_up(error)
    setting = _SETTINGS.get(error.metadata.get("unit", "").partition(",")[0], "the budget's limit")
    more = f"raise {setting}" if own_coordinator else "ask who runs the coordinator for more"
    metadata = {**error.metadata, "told": what}
    return BudgetExhausted(f"the budget is used up ({what})", hint=f"{more}, or ask without --cloud", metadata=metadata)


def _share(used: int, limit: int, unit: str) -> str:
    return f"{dollars(used)} of {dollars(limit)}" if unit == "uusd" else f"{used} of {limit} {unit}"


def _amount(amount: int, unit: str) -> str:
    return dollars(amount) if unit == "uusd" else str(amount)


def _number(told: Mapping[str, str], name: str) -> int | None:
    text = told.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None
