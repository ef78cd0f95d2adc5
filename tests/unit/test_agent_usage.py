"""What was used, today and ever, is counted from the state folder's records."""

from __future__ import annotations

import json
from pathlib import Path

from edge.agent.state import StateFolder
from edge.agent.usage import Used, used_today

NOW = 1_800_000_000.0
DAY_START = NOW - NOW % 86_400


def put(state: StateFolder, number: int, at: float, **fields: object) -> None:
    record = {"call_key": "", "cloud_tokens": 0, "charged_uusd": 0, **fields}
    state.put_request(f"r{number}", at, record)


def put_step(state: StateFolder, number: int, at: float, calls: int) -> None:
    event = json.dumps({"at": at, "cloud_calls": calls, "cloud_tokens": 10 * calls, "spend_uusd": 100 * calls})
    with state.database as database:
        database.execute("INSERT INTO steps VALUES (?, 'math', ?, ?)", (number, number, event))


def test_an_empty_folder_has_used_nothing(tmp_path: Path) -> None:
    with StateFolder(tmp_path / "state") as state:
        told = used_today(state.database, NOW)
    assert (told.day, told.today, told.ever) == ("2027-01-15", Used(), Used())


def test_today_begins_at_midnight_in_utc_and_learning_is_counted_apart(tmp_path: Path) -> None:
    with StateFolder(tmp_path / "state") as state:
        put(state, 1, DAY_START - 1, call_key="a", cloud_tokens=7, charged_uusd=50)
        put(state, 2, DAY_START, call_key="b", cloud_tokens=5, charged_uusd=30)
        put(state, 3, NOW)
        put_step(state, 1, DAY_START - 1, 2)
        put_step(state, 2, DAY_START, 3)
        told = used_today(state.database, NOW)
    assert told.today == Used(2, 1, 5, 30, 3, 30, 300)
    assert told.ever == Used(3, 2, 12, 80, 5, 50, 500)
