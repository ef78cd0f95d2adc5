"""A person is told once why steps are slow, and which settings help."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from edge.cli.doctor import check_other_load
from edge.config.schema import AgentConfig
from edge.core.events import MemorySink
from edge.learning.conditions import MachineLoadNotice, MachineProbe, Readings, thread_settings
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
