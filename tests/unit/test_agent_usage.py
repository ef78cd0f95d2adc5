"""Today's and total use, counted from the records in the state folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edge.serve.running_agent import RunningAgent
from edge.state.folder import StateFolder
from edge.state.usage import OfTask, Used, used_by_task, used_since, used_today
from tests.unit.conftest import TimeZone
from tests.worlds.agent import World

NOW = 1_800_000_000.0
DAY_START = NOW - NOW % 86_400 - 2 * 3600
"""Midnight two hours east of Greenwich."""


@pytest.fixture(autouse=True)
def east_of_greenwich(time_zone: TimeZone) -> None:
    time_zone("TST-2")


def put(state: StateFolder, number: int, at: float, **fields: object) -> None:
    record = {"call_key": "", "cloud_tokens": 0, "charged_uusd": 0, **fields}
    state.put_request(f"r{number}", at, record)


def put_learning(state: StateFolder, number: int, at: float, spend_uusd: int, settled: int = 1) -> None:
    with state.database as database:
        values = (f"k{number}", "", at, "math", spend_uusd // 10, spend_uusd, settled)
        database.execute("INSERT INTO learning_spend VALUES (?, ?, ?, ?, ?, ?, ?, 0)", values)


def test_today_begins_at_local_midnight_and_learning_is_counted_apart(state: StateFolder) -> None:
    empty = used_today(state.database, NOW)
    assert (empty.day, empty.today, empty.ever) == ("2027-01-15", Used(), Used())
    put(state, 1, DAY_START - 1, call_state="completed", cloud_tokens=7, charged_uusd=50)
    put(state, 2, DAY_START, call_state="completed", cloud_tokens=5, charged_uusd=30)
    put(state, 3, NOW)
    put_learning(state, 1, DAY_START - 1, 200)
    put_learning(state, 2, DAY_START, 300)
    used = used_today(state.database, NOW)
    assert used.today == Used(2, 0, 1, 5, 30, 1, 30, 300)
    assert used.ever == Used(3, 0, 2, 12, 80, 2, 50, 500)


def test_usage_counts_billed_calls_only_but_all_charges(
    state: StateFolder,
) -> None:
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
    assert used.today == Used(7, 0, 3, 4, 100)


def test_sums_follow_a_rewritten_answer_and_a_deleted_call(state: StateFolder) -> None:
    put(state, 1, NOW, call_state="unsettled", task="math", source="cloud")
    put(state, 1, NOW, call_state="completed", task="math", source="cloud", cloud_tokens=6, charged_uusd=20)
    put(state, 2, NOW, task="qa", source="local-fallback")
    put_learning(state, 1, NOW, 90)
    put_learning(state, 2, NOW, 0, settled=0)
    with state.database as database:
        database.execute("DELETE FROM learning_spend WHERE call_key = 'k1'")
        database.execute("UPDATE learning_spend SET tokens = 3, spend_uusd = 40, settled = 1 WHERE call_key = 'k2'")
    assert used_since(state.database, NOW) == Used(2, 1, 1, 6, 20, 1, 3, 40)
    assert used_since(state.database, NOW + 1.0) == Used()
    assert used_by_task(state) == {"math": OfTask(2, 9, 60), "qa": OfTask()}


async def test_cost_of_a_scrape_does_not_grow_with_the_answers(tmp_path: Path) -> None:
    world, steps = World(tmp_path / "state"), 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    async with world.agent() as agent:
        control, state = RunningAgent(agent), agent.components.state

        async def scrape() -> int:
            nonlocal steps
            steps = 0
            state.database.set_progress_handler(count, 100)
            await asyncio.gather(control.status(), control.usage(), control.budget(), control.headline())
            state.database.set_progress_handler(None, 100)
            return steps

        put(state, 0, world.clock.now(), task="math")
        await scrape()
        few = await scrape()
        for number in range(2000):
            put(state, number, world.clock.now(), task="math", source="cloud", charged_uusd=5, cloud_model="nano-cloud")
            put_learning(state, number, world.clock.now(), 10)
        assert await scrape() < 2 * few
