"""Today's and total use, counted from the records in the state folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.state.folder import StateFolder
from edge.state.reader import Used, used_today

NOW = 1_800_000_000.0
DAY_START = NOW - NOW % 86_400 - 2 * 3600
"""Midnight two hours east of Greenwich."""


@pytest.fixture(autouse=True)
def east_of_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "TST-2")
        time.tzset()
        yield
    time.tzset()


def put(state: StateFolder, number: int, at: float, **fields: object) -> None:
    record = {"call_key": "", "cloud_tokens": 0, "charged_uusd": 0, **fields}
    state.put_request(f"r{number}", at, record)


def put_learning(state: StateFolder, number: int, at: float, spend_uusd: int, settled: int = 1) -> None:
    with state.database as database:
        values = (f"k{number}", "", at, "math", spend_uusd // 10, spend_uusd, settled)
        database.execute("INSERT INTO learning_spend VALUES (?, ?, ?, ?, ?, ?, ?, 0)", values)


def test_today_begins_at_local_midnight_and_learning_is_counted_apart(tmp_path: Path) -> None:
    with StateFolder(tmp_path / "state") as state:
        empty = used_today(state.database, NOW)
        assert (empty.day, empty.today, empty.ever) == ("2027-01-15", Used(), Used())
        put(state, 1, DAY_START - 1, call_state="completed", cloud_tokens=7, charged_uusd=50)
        put(state, 2, DAY_START, call_state="completed", cloud_tokens=5, charged_uusd=30)
        put(state, 3, NOW)
        put_learning(state, 1, DAY_START - 1, 200)
        put_learning(state, 2, DAY_START, 300)
        used = used_today(state.database, NOW)
    assert used.today == Used(2, 1, 5, 30, 1, 30, 300)
    assert used.ever == Used(3, 2, 12, 80, 2, 50, 500)


def test_usage_counts_billed_calls_only_but_all_charges(
    tmp_path: Path,
) -> None:
    with StateFolder(tmp_path / "state") as state:
        put(state, 1, NOW, call_key="a", call_state="failed")
        put(state, 2, NOW, call_key="b", call_state="refused")
        put(state, 3, NOW, call_key="c", call_state="completed", cached=True, cloud_tokens=9)
        put(state, 4, NOW, call_key="d", call_state="never_arrived")
        put(state, 5, NOW, call_key="e", call_state="in_doubt", charged_uusd=70)
        put(state, 6, NOW, call_key="f", call_state="failed", charged_uusd=30)
        put(state, 7, NOW, call_key="g", call_state="completed", cloud_tokens=4)
        put_learning(state, 1, NOW, 0)
        put_learning(state, 2, NOW, 0, settled=0)
        used = used_today(state.database, NOW)
    assert used.today == Used(7, 3, 4, 100, 0, 0, 0)
