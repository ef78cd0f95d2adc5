"""When learning may use the machine: limits, pauses, notices, and the real probe once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge.config.schema import WhenConfig
from edge.core.clock import SystemClock
from edge.core.concurrency import ServingPrecedence
from edge.core.events import MemorySink
from edge.core.types import Message
from edge.learning.conditions import (
    DiskSpace,
    MachineConditions,
    MachineProbe,
    Readiness,
    Readings,
    pause_learning,
    reason_to_wait,
    within_hours,
)
from edge.state.answer_record import AnswerRequest
from edge.state.events import LearningWaits
from edge.state.folder import StateFolder
from edge.testing.clock import ManualClock
from edge.testing.probe import ScriptedProbe
from tests.until import until
from tests.worlds.agent import World
from tests.worlds.fleet import in_virtual_time

MAINS, BATTERY = Readings(on_mains=True, battery_percent=80.0), Readings(on_mains=False, battery_percent=80.0)


class LoopClock(ManualClock):
    """Goes as the event loop does."""

    def now(self) -> float:
        return 1_700_000_000.0 + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass
class Waiting:
    """A readiness over prepared readings."""

    state: StateFolder
    readings: tuple[Readings, ...] = ()
    rules: WhenConfig = field(default_factory=WhenConfig)

    def __post_init__(self) -> None:
        self.clock, self.sink = LoopClock(), MemorySink()
        self.precedence = ServingPrecedence(self.clock)
        conditions = MachineConditions(self.rules, ScriptedProbe(*self.readings)) if self.readings else None
        self.readiness = Readiness(self.precedence, conditions, DiskSpace(self.state.folder), self.state, self.sink, self.clock)

    def waits(self) -> list[tuple[float, str]]:
        rows = self.state.database.execute("SELECT ended_at - began_at, reason FROM waits ORDER BY id")
        return [(seconds, str(reason)) for seconds, reason in rows]

    def notices(self) -> list[str]:
        return [event.reason if isinstance(event, LearningWaits) else "goes on" for event in self.sink.events]


@pytest.mark.parametrize(
    ("readings", "figure"),
    [
        (BATTERY, "battery"),
        (replace(MAINS, battery_percent=12.4), "12 %"),
        (replace(MAINS, temperature_c=97.6), "98 °C"),
        (replace(MAINS, other_load=0.62), "62 %"),
    ],
)
def test_violated_limit_is_named_with_the_reading(readings: Readings, figure: str) -> None:
    assert figure in reason_to_wait(WhenConfig(max_other_load=0.5), readings, 12, 1e9)


def test_met_missing_or_unknown_limits_do_not_block() -> None:
    free = WhenConfig(on_mains=False, min_battery_percent=None, max_temperature_c=None)
    assert reason_to_wait(free, Readings(False, 1.0, 120.0, 1.0), 3, 0.0) == ""
    for readings in (Readings(), MAINS, replace(MAINS, temperature_c=90.0)):
        assert reason_to_wait(WhenConfig(max_other_load=0.5), readings, 12, 1e9) == ""


def test_hours_may_span_midnight() -> None:
    assert [hour for hour in range(24) if within_hours(hour, 22, 3)] == [0, 1, 2, 22, 23]
    assert [hour for hour in range(24) if within_hours(hour, 9, 12)] == [9, 10, 11]
    assert all(within_hours(hour, 0, 24) and within_hours(hour, 5, 5) for hour in range(24))
    assert "between 22 and 7" in reason_to_wait(WhenConfig(from_hour=22, until_hour=7), MAINS, 12, 1e9)


def test_recent_answer_holds_learning_back(state: StateFolder) -> None:
    waiting = Waiting(state, (MAINS,), WhenConfig(quiet_s=60.0))

    async def use() -> float:
        await waiting.readiness.ready()
        assert waiting.sink.events == [], "no request was answered yet"
        with waiting.precedence.serving():
            await asyncio.sleep(10.0)
        await waiting.readiness.ready()
        return waiting.clock.monotonic()

    assert in_virtual_time(lambda _: use()) == pytest.approx(70.0)
    assert waiting.notices() == ["waiting: somebody was answered a moment ago", "goes on"]


def test_learning_never_starts_during_an_answer(state: StateFolder) -> None:
    waiting = Waiting(state, (BATTERY, MAINS), WhenConfig(check_s=5.0))

    async def use() -> float:
        async def serve() -> None:
            await asyncio.sleep(3.0)
            with waiting.precedence.serving():
                await asyncio.sleep(100.0)

        serving = asyncio.create_task(serve())
        await waiting.readiness.ready()
        await serving
        return waiting.clock.monotonic()

    assert in_virtual_time(lambda _: use()) == pytest.approx(103.0)


def test_on_battery_it_waits_with_a_notice_and_resumes_on_mains(state: StateFolder) -> None:
    waiting = Waiting(state, (*[BATTERY] * 10, MAINS), WhenConfig(check_s=5.0))

    async def use() -> tuple[str, float]:
        ready = asyncio.create_task(waiting.readiness.ready())
        await asyncio.sleep(20.0)
        meanwhile = waiting.readiness.waiting
        await ready
        return meanwhile, waiting.clock.monotonic()

    assert in_virtual_time(lambda _: use()) == ("waiting: on battery", pytest.approx(50.0)), "ten checks of five seconds"
    assert waiting.notices() == ["waiting: on battery", "goes on"]
    assert waiting.waits() == [(pytest.approx(50.0), "on battery")]
    assert waiting.readiness.waiting == ""


def test_wait_ended_by_a_stop_does_not_announce_a_resumption(state: StateFolder) -> None:
    waiting = Waiting(state, (BATTERY,), WhenConfig(check_s=5.0))

    async def use() -> None:
        ready = asyncio.create_task(waiting.readiness.ready())
        await asyncio.sleep(18.0)
        assert waiting.waits() == [(pytest.approx(15.0), "on battery")], "kept as far as it was checked, should this be killed"
        ready.cancel()
        await asyncio.gather(ready, return_exceptions=True)

    in_virtual_time(lambda _: use())
    assert waiting.notices() == ["waiting: on battery"]
    assert (waiting.readiness.waiting, waiting.waits()) == ("", [(pytest.approx(18.0), "on battery")])


def test_reason_with_changed_numbers_is_the_same_wait(state: StateFolder) -> None:
    hot = [Readings(temperature_c=degrees) for degrees in (95.0, 94.0, 93.0)]
    waiting = Waiting(state, (*hot, BATTERY, MAINS))
    in_virtual_time(lambda _: waiting.readiness.ready())
    assert waiting.notices() == ["waiting: hot: 95 °C, above 90 °C", "waiting: on battery", "goes on"]
    assert waiting.waits() == [(pytest.approx(15.0), "hot"), (pytest.approx(5.0), "on battery")]


def test_pause_outlives_its_process_and_a_resume_acts_immediately(state: StateFolder) -> None:
    Waiting(state).readiness.pause(True)
    for readings in ((), (MAINS,)):
        again = Waiting(state, readings, WhenConfig(check_s=5.0))
        again.readiness.pause(True)

        async def use(waiting: Waiting) -> float:
            ready = asyncio.create_task(waiting.readiness.ready())
            await asyncio.sleep(1003.0)
            assert waiting.readiness.waiting == "paused by you" and not ready.done()
            waiting.readiness.pause(False)
            await ready
            return waiting.clock.monotonic()

        assert in_virtual_time(lambda _, again=again: use(again)) == pytest.approx(1003.0)
        assert again.notices() == ["paused by you", "goes on"]


async def test_stop_ends_the_wait_of_an_agent_and_its_status_has_the_reason(tmp_path: Path) -> None:
    world = World(tmp_path, conditions=MachineConditions(WhenConfig(check_s=0.01), ScriptedProbe(MAINS, BATTERY)))
    async with world.agent() as agent:
        learning = asyncio.create_task(agent.learn())
        await until(lambda: agent.status().waiting)
        status = agent.status()
        agent.request_stop()
        finished = await learning
    assert (status.learning, status.waiting, status.paused) == ("paused", "waiting: on battery", False)
    assert (finished.reason, finished.steps_done) == ("stopped", 1)


async def test_paused_agent_answers_and_resumes_learning(tmp_path: Path) -> None:
    world = World(tmp_path)
    with StateFolder(tmp_path) as state:
        pause_learning(state, True)
    async with world.agent() as agent:
        assert (agent.status().paused, agent.status().waiting) == (True, "paused by you")
        learning = asyncio.create_task(agent.learn())
        answer = await agent.answerer.answer(AnswerRequest((Message("user", "What is 3 + 1?"),)))
        assert answer.id and agent.status().steps_done == 0
        agent.learning.pause(False)
        assert (await learning).steps_done == 4
        assert not agent.status().paused


def test_the_real_probe_reads_this_machine_and_never_raises() -> None:
    probe = MachineProbe(SystemClock())
    first, second = probe.read(), probe.read()
    assert first.other_load is None
    assert second.other_load is None or 0.0 <= second.other_load <= 1.0
    assert first.on_mains in (None, True, False)
    assert first.temperature_c is None or 1.0 <= first.temperature_c <= 125.0


def test_missing_sensors_are_reported_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    monkeypatch.setattr(psutil, "sensors_battery", lambda: None)
    monkeypatch.delattr(psutil, "sensors_temperatures", raising=False)
    assert replace(MachineProbe(SystemClock()).read(), other_load=None) == Readings()


def test_hottest_plausible_cpu_reading_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    sensors = {
        "coretemp": [SimpleNamespace(current=61.0), SimpleNamespace(current=127.5)],
        "nvme": [SimpleNamespace(current=80.0)],
        "cpu_thermal": [SimpleNamespace(current=70.5)],
    }
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: sensors, raising=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: SimpleNamespace(percent=55, power_plugged=False))
    readings = MachineProbe(SystemClock()).read()
    assert (readings.temperature_c, readings.on_mains, readings.battery_percent) == (70.5, False, 55)
