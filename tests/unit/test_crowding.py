"""Beside other programs learning computes with fewer threads; where a person has set their number, a slow step says why, once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from edge.app.agents import thread_fitting
from edge.cli.doctor import busy_cores, check_other_load
from edge.config.schema import AgentConfig, EngineConfig, LearningConfig
from edge.core.events import MemorySink
from edge.learning.conditions import MachineLoadNotice, MachineProbe, Readings, SpareCores, thread_settings
from edge.state.events import LearningResumed, Notice, RunStarted, StepProgress
from edge.testing.clock import ManualClock
from edge.testing.probe import ScriptedProbe

BOTH = ("engine.threads=1", "learning.torch_threads=1")
BEGINS = RunStarted("run", "nano-edge", 0, None, 0, 0.0)


def inside(step: int) -> StepProgress:
    return StepProgress(step, "rollout", 1, 4)


def watched(*loads: float | None, settings: tuple[str, ...] = BOTH) -> tuple[MachineLoadNotice, MemorySink, ManualClock]:
    sink, clock = MemorySink(), ManualClock()
    return MachineLoadNotice(sink, ScriptedProbe(*[Readings(other_load=load) for load in loads]), clock, settings), sink, clock


def notices(sink: MemorySink) -> list[str]:
    return [event.text for event in sink.events if isinstance(event, Notice)]


def test_a_slow_step_beside_other_programs_names_both_settings_once() -> None:
    watch, sink, clock = watched(None, 0.6)
    watch.emit(BEGINS)
    for step in (1, 2, 3):
        clock.advance(11.0)
        watch.emit(inside(step))
    (line,) = notices(sink)
    assert "other programs use 60 %" in line
    assert "--set engine.threads=1 --set learning.torch_threads=1" in line
    assert [event for event in sink.events if isinstance(event, StepProgress)] == [inside(1), inside(2), inside(3)]


def test_a_slow_step_on_a_quiet_machine_and_a_quick_one_on_a_busy_one_are_no_news() -> None:
    quiet, told_quiet, clock = watched(None, 0.05)
    quiet.emit(BEGINS)
    clock.advance(60.0)
    quiet.emit(inside(1))
    quick, told_quick, clock = watched(None, 0.9)
    quick.emit(BEGINS)
    clock.advance(2.0)
    quick.emit(inside(1))
    assert notices(told_quiet) == notices(told_quick) == []


def test_time_that_learning_waited_is_no_slow_step() -> None:
    watch, sink, clock = watched(None, 0.9)
    watch.emit(BEGINS)
    clock.advance(600.0)
    watch.emit(LearningResumed(clock.now()))
    clock.advance(1.0)
    watch.emit(inside(1))
    assert notices(sink) == []


@pytest.mark.parametrize(
    ("engine", "torch", "cores", "wanted"),
    [(0, 0, 2, BOTH), (1, 0, 2, ("learning.torch_threads=1",)), (1, 1, 8, ()), (0, 0, 1, ()), (4, 1, 8, ("engine.threads=1",))],
)
def test_only_settings_that_would_change_something_are_named(
    engine: int, torch: int, cores: int, wanted: tuple[str, ...]
) -> None:
    assert thread_settings(engine, torch, cores) == wanted


def test_nothing_is_said_where_no_setting_would_help() -> None:
    watch, sink, clock = watched(None, 0.9, settings=())
    watch.emit(BEGINS)
    clock.advance(60.0)
    watch.emit(inside(1))
    assert notices(sink) == []


def test_the_doctor_warns_of_busy_cores_and_names_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.app.agents.usable_cores", lambda: 2)
    crowded, free = check_other_load(AgentConfig(), 1.9, 2), check_other_load(AgentConfig(), 0.1, 2)
    assert (crowded.state, free.state) == ("warn", "ok")
    assert all(setting in crowded.hint for setting in BOTH)


def since_the_start(*loads: float | None) -> ScriptedProbe:
    """Readings of a probe that is read once before the first step, when nothing is measured yet."""
    return ScriptedProbe(*[Readings(other_load=load) for load in (None, *loads)])


@pytest.mark.parametrize(
    ("loads", "threads"),
    [
        ((None, 0.0, 0.05), (4, 4, 4)),  # not measured, then quiet
        ((0.25, 0.25), (3, 3)),  # one busy program on four cores
        ((1.0, 1.0), (1, 1)),  # never fewer than one
        ((0.5, 0.0, 0.0, 0.0), (2, 2, 4, 4)),  # more only after two readings in a row with room
        ((0.5, 0.0, 0.5, 0.0), (2, 2, 2, 2)),  # a program that comes and goes
        ((0.75, 0.25, 0.0), (1, 1, 3)),  # back to what both of them left
        ((0.5, None, 0.5), (2, 2, 2)),
    ],
)
def test_threads_give_way_at_once_and_come_back_when_there_is_room_twice(
    loads: tuple[float | None, ...], threads: tuple[int, ...]
) -> None:
    spare = SpareCores(since_the_start(*loads), 4, MemorySink(), ManualClock())
    assert tuple(spare.threads() for _ in loads) == threads


def test_each_change_of_threads_is_one_line() -> None:
    sink = MemorySink()
    spare = SpareCores(since_the_start(0.5, 0.5, 0.0, 0.0), 2, sink, ManualClock())
    assert [spare.threads() for _ in range(4)] == [1, 1, 1, 2]
    less, more = notices(sink)
    assert less == "other programs use 50 % of the processors: learning uses 1 thread of 2 from here on"
    assert more == "other programs use 0 % of the processors: learning uses 2 threads of 2 from here on"


class CountedThreads:
    """An engine and a learner that note what they were given."""

    def __init__(self) -> None:
        self.engine: list[int] = []
        self.learner: list[int] = []


class Engine:
    def __init__(self, counted: CountedThreads) -> None:
        self.counted = counted

    async def use_threads(self, threads: int) -> None:
        self.counted.engine.append(threads)


class Trainer:
    def __init__(self, counted: CountedThreads) -> None:
        self.counted = counted

    def use_threads(self, threads: int) -> None:
        self.counted.learner.append(threads)


@pytest.mark.parametrize(("set_engine", "set_torch", "engine", "learner"), [(0, 0, [1], [1]), (2, 0, [], [1]), (0, 2, [1], [])])
async def test_only_threads_that_nobody_has_set_are_fitted_and_one_engine_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, set_engine: int, set_torch: int, engine: list[int], learner: list[int]
) -> None:
    monkeypatch.setattr("edge.app.agents.physical_cores", lambda: 2)
    monkeypatch.setattr("edge.learning.conditions.MachineProbe", lambda clock: ScriptedProbe(Readings(other_load=0.5)))
    config = AgentConfig(engine=EngineConfig(threads=set_engine), learning=LearningConfig(torch_threads=set_torch))
    fit = thread_fitting(config, tmp_path / "model.gguf", MemorySink(), ManualClock())
    assert fit is not None
    counted = CountedThreads()
    serving = Engine(counted)
    await fit((serving, serving), Trainer(counted))  # type: ignore[arg-type]
    assert (counted.engine, counted.learner) == (engine, learner)


@pytest.mark.parametrize(("threads", "cores"), [(1, 2), (0, 1)])
def test_nothing_is_fitted_where_all_is_set_or_there_is_one_core(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, threads: int, cores: int
) -> None:
    monkeypatch.setattr("edge.app.agents.physical_cores", lambda: cores)
    config = AgentConfig(engine=EngineConfig(threads=threads), learning=LearningConfig(torch_threads=threads))
    assert thread_fitting(config, tmp_path / "model.gguf", MemorySink(), ManualClock()) is None


def test_the_doctor_does_not_take_a_running_agent_for_another_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A child process keeps one core busy; with an announcement that names it as the agent it is not counted."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        monkeypatch.setattr("edge.cli.doctor.announcement", lambda folder: {"pid": busy.pid})
        monkeypatch.setattr("psutil.Process.children", lambda self, recursive: [])  # as a process that this one has not started
        as_agent = busy_cores(AgentConfig())
        monkeypatch.setattr("edge.cli.doctor.announcement", lambda folder: None)
        as_other = busy_cores(AgentConfig())
    finally:
        busy.kill()
        busy.wait()
    assert as_other > as_agent + 0.2


def test_work_of_a_child_that_has_ended_is_not_taken_for_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    process = type("Process", (), {"cpu_times": lambda self: own[0], "children": lambda self, recursive: []})
    monkeypatch.setattr(psutil, "Process", process)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(psutil, "cpu_times", lambda: machine[0])
    own, machine, clock = [times(5.0)], [times(100.0)], ManualClock()
    probe = MachineProbe(clock)
    probe.read()
    clock.advance(10.0)
    own[0], machine[0] = times(6.0, children_user=8.0), times(109.0)
    assert probe.read().other_load == 0.0


def times(user: float, children_user: float = 0.0) -> PsTimes:
    return PsTimes(user, 0.0, 0.0, children_user, 0.0)


class PsTimes(NamedTuple):
    user: float
    system: float
    idle: float
    children_user: float
    children_system: float
