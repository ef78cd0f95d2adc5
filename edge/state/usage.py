"""What this device has used, by its own records.

A call counts as used when it was answered, or charged all the same, as in the coordinator's ledger: what was withheld, refused or came from
the cache does not, and neither does one whose end is not known yet. Days are local ones, as in learning's daily budget.

The table `used` has the sums of each hour and task, kept up by triggers in the transaction that writes an answer or a call.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge.core.clock import day_began, local_day
from edge.core.periods import HOUR_S
from edge.core.units import BUDGET_UNITS
from edge.state.reader import StateReader
from edge.state.schema import USE_OF_ROWS, USE_UNITS

_UNITS = tuple(unit.name for unit in BUDGET_UNITS)
_SUMS = ", ".join(f"sum({unit}) AS {unit}" for unit in USE_UNITS)
_OF_HOURS = f"SELECT {_SUMS} FROM used WHERE hour >= ?"  # noqa: S608 - of constants
_OF_ROWS = f"""
SELECT {_SUMS} FROM ({USE_OF_ROWS}) WHERE at BETWEEN ?1 AND ?2 * 3600 AND CAST(at / 3600 AS INTEGER) < ?2
"""  # noqa: S608 - of constants


@dataclass(frozen=True, slots=True)
class Used:
    """Answers to people, of them those that are not the cloud's, and cloud calls, tokens and micro-USD for them and for learning. In the
    order of `USE_UNITS`."""

    answers: int = 0
    local_answers: int = 0
    calls: int = 0
    tokens: int = 0
    spend_uusd: int = 0
    learning_calls: int = 0
    learning_tokens: int = 0
    learning_spend_uusd: int = 0

    def to_json(self) -> dict[str, Any]:
        """The answers, and the units of answers to people (serving) and of learning apart."""
        serving = {unit: getattr(self, unit) for unit in _UNITS}
        learning = {unit: getattr(self, f"learning_{unit}") for unit in _UNITS}
        return {"answers": self.answers, "serving": serving, "learning": learning}


@dataclass(frozen=True, slots=True)
class UsedToday:
    """What was used on a day, YYYY-MM-DD where this machine is, and on all days."""

    day: str
    today: Used
    ever: Used

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"day": self.day, "today": self.today.to_json(), "all": self.ever.to_json()}


def used_today(database: sqlite3.Connection, now: float) -> UsedToday:
    """What was used on the day of `now`, in Unix seconds, and ever."""
    return UsedToday(local_day(now), used_since(database, day_began(now)), used_since(database, 0.0))


def used_since(database: sqlite3.Connection, since: float) -> Used:
    """What was used since then, in Unix seconds (0: ever): the sums of whole hours, and the rows of the rest of the first one."""
    hour = math.ceil(since / HOUR_S)
    parts = [database.execute(_OF_ROWS, (since, hour)).fetchone(), database.execute(_OF_HOURS, (hour,)).fetchone()]
    return Used(*(sum(int(part or 0) for part in unit) for unit in zip(*parts, strict=True)))


def is_billed(record: Mapping[str, Any]) -> bool:
    """Whether an answer's record is of a billed call."""
    ended = record.get("call_state") in ("completed", "in_doubt")
    return bool(record.get("charged_uusd")) or (ended and not record.get("cached"))


@dataclass(frozen=True, slots=True)
class OfTask:
    """Billed cloud calls, tokens and spend (micro-USD) of one task ever, for answers and for learning."""

    calls: int = 0
    tokens: int = 0
    spend_uusd: int = 0


def used_by_task(state: StateReader) -> dict[str, OfTask]:
    """What each task has used, by its label; tasks that used nothing may be missing."""
    units = ", ".join(f"sum({unit} + learning_{unit})" for unit in _UNITS)
    rows = state.rows(f"SELECT task, {units} FROM used GROUP BY task")  # noqa: S608 - of constants
    return {str(task): OfTask(*map(int, sums)) for task, *sums in rows}
