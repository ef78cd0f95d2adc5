"""What this device has used, by its own records. Knows the tables of answers and steps; knows nothing of limits."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime

SECONDS_A_DAY = 86_400
_OF_ANSWERS = """
SELECT count(*), sum(json_extract(record, '$.call_key') <> ''), sum(json_extract(record, '$.cloud_tokens')),
    sum(json_extract(record, '$.charged_uusd'))
FROM requests WHERE created_at >= ?
"""
_OF_LEARNING = """
SELECT sum(json_extract(event, '$.cloud_calls')), sum(json_extract(event, '$.cloud_tokens')), sum(json_extract(event, '$.spend_uusd'))
FROM steps WHERE json_extract(event, '$.at') >= ?
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
    """What was used on a day, YYYY-MM-DD in UTC, and on all days."""

    day: str
    today: Used
    ever: Used


def used_today(database: sqlite3.Connection, now: float) -> UsedToday:
    """What was used on the day of `now`, in Unix seconds, and ever."""
    began = datetime.fromtimestamp(now - now % SECONDS_A_DAY, UTC)
    return UsedToday(began.date().isoformat(), used_since(database, began.timestamp()), used_since(database, 0.0))


def used_since(database: sqlite3.Connection, since: float) -> Used:
    """What was used since then, in Unix seconds (0: ever)."""
    return Used(*_sums(database, _OF_ANSWERS, since), *_sums(database, _OF_LEARNING, since))


def _sums(database: sqlite3.Connection, query: str, since: float) -> tuple[int, ...]:
    return tuple(int(value or 0) for value in database.execute(query, (since,)).fetchone())
