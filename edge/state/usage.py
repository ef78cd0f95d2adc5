"""What this device has used, by its own records. Knows which answers' and learning's calls were billed; knows nothing of limits.

A call counts when it was answered, or charged all the same, as in the coordinator's ledger: what was withheld, refused or came from the
cache does not, and neither does one whose end is not known yet. Days are local ones, as in learning's purse.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge.core.days import day_began, local_day

_ENDED = ("completed", "in_doubt")
_BILLED = f"""(json_extract(record, '$.charged_uusd') > 0
    OR (json_extract(record, '$.call_state') IN {_ENDED} AND NOT coalesce(json_extract(record, '$.cached'), 0)))"""
_OF_ANSWERS = f"""
SELECT count(*), sum({_BILLED}), sum(CASE WHEN {_BILLED} THEN json_extract(record, '$.cloud_tokens') ELSE 0 END),
    sum(json_extract(record, '$.charged_uusd'))
FROM requests WHERE created_at >= ?
"""  # noqa: S608 - of constants
_OF_LEARNING = """
SELECT sum(settled AND (tokens > 0 OR spend_uusd > 0)), sum(tokens), sum(spend_uusd) FROM learning_spend WHERE at >= ?
"""


@dataclass(frozen=True, slots=True)
class Used:
    """Answers to people, and cloud calls, tokens and spend (micro-USD) for them and for learning."""

    answers: int = 0
    calls: int = 0
    tokens: int = 0
    spend_uusd: int = 0
    learning_calls: int = 0
    learning_tokens: int = 0
    learning_spend_uusd: int = 0


@dataclass(frozen=True, slots=True)
class UsedToday:
    """What was used on a day, YYYY-MM-DD where this machine is, and on all days."""

    day: str
    today: Used
    ever: Used


def used_today(database: sqlite3.Connection, now: float) -> UsedToday:
    """What was used on the day of `now`, in Unix seconds, and ever."""
    return UsedToday(local_day(now), used_since(database, day_began(now)), used_since(database, 0.0))


def is_billed(record: Mapping[str, Any]) -> bool:
    """Whether an answer's record stands for a billed call."""
    return bool(record.get("charged_uusd")) or (record.get("call_state") in _ENDED and not record.get("cached"))


def used_since(database: sqlite3.Connection, since: float) -> Used:
    """What was used since then, in Unix seconds (0: ever)."""
    return Used(*_sums(database, _OF_ANSWERS, since), *_sums(database, _OF_LEARNING, since))


def _sums(database: sqlite3.Connection, query: str, since: float) -> tuple[int, ...]:
    return tuple(int(value or 0) for value in database.execute(query, (since,)).fetchone())


@dataclass(frozen=True, slots=True)
class OfTask:
    """Billed cloud calls, tokens and spend (micro-USD) of one task ever, for answers and for learning."""

    calls: int = 0
    tokens: int = 0
    spend_uusd: int = 0


_BY_TASK = f"""
SELECT task, sum(calls), sum(tokens), sum(spend_uusd) FROM (
    SELECT json_extract(record, '$.task') AS task, {_BILLED} AS calls,
        CASE WHEN {_BILLED} THEN json_extract(record, '$.cloud_tokens') ELSE 0 END AS tokens,
        json_extract(record, '$.charged_uusd') AS spend_uusd
    FROM requests
    UNION ALL SELECT task, settled AND (tokens > 0 OR spend_uusd > 0), tokens, spend_uusd FROM learning_spend
) GROUP BY task
"""  # noqa: S608 - of constants


def used_by_task(rows: Callable[[str], Sequence[tuple[Any, ...]]]) -> dict[str, OfTask]:
    """What each task has used, by its label; tasks that used nothing may be missing. `rows` gives what a query finds."""
    return {str(task): OfTask(*(int(value or 0) for value in sums)) for task, *sums in rows(_BY_TASK)}
