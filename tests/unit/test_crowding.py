"""With other programs running, learning uses fewer threads; where the user has set their number, a slow step explains itself once."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import psutil
import pytest

from edge.app.agents import build_agent, thread_fitting
from edge.cli.doctor import busy_cores, check_other_load
from edge.config.schema import AgentConfig, EngineConfig, LearningConfig
from edge.core.events import MemorySink
from edge.inference.llamacpp import LlamaCppBackend
from edge.learning.conditions import MachineLoadNotice, MachineProbe, Readings, SpareCores
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
    assert "60 %" in line and "--set engine.threads=1 --set learning.torch_threads=1" in line
    assert [event for event in sink.events if isinstance(event, StepProgress)] == [inside(1), inside(2), inside(3)]


@pytest.mark.parametrize(
    ("load", "waited_s", "step_s", "settings"),
    [(0.05, 0.0, 60.0, BOTH), (0.9, 0.0, 2.0, BOTH), (0.9, 600.0, 1.0, BOTH), (0.9, 0.0, 60.0, ())],
    ids=["a quiet machine", "a quick step", "learning waited", "no setting helps"],
)
def test_no_notice_is_given_where_it_would_not_help(
    load: float, waited_s: float, step_s: float, settings: tuple[str, ...]
) -> None:
    watch, sink, clock = watched(None, load, settings=settings)
    watch.emit(BEGINS)
    if waited_s:
        clock.advance(waited_s)
        watch.emit(LearningResumed(clock.now()))
    clock.advance(step_s)
    watch.emit(inside(1))
    assert notices(sink) == []


@pytest.mark.parametrize(
    ("engine_threads", "named"),
    [(0, BOTH[1:]), (2, BOTH)],
    ids=["the engine's threads are fitted", "the engine's threads are set"],
)
def test_the_doctor_warns_of_busy_cores_and_names_the_settings(
    monkeypatch: pytest.MonkeyPatch, engine_threads: int, named: tuple[str, ...]
) -> None:
    monkeypatch.setattr("edge.app.agents.usable_cores", lambda: 2)
    config = AgentConfig(engine=EngineConfig(threads=engine_threads))
    crowded, free = check_other_load(config, 1.9, 2), check_other_load(config, 0.1, 2)
    assert (crowded.state, free.state) == ("warn", "ok")
    assert [setting for setting in BOTH if setting in crowded.hint] == list(named)


def since_the_start(*loads: float | None) -> ScriptedProbe:
    """Readings of a probe that is read once before the first step, when nothing is measured yet."""
    return ScriptedProbe(*[Readings(other_load=load) for load in (None, *loads)])


@pytest.mark.parametrize(
    ("loads", "threads"),
    [
        ((None, 0.0, 0.05), (4, 4, 4)),  # not measured, then quiet
        ((0.25, 0.25), (3, 3)),  # one busy program on four cores
        ((1.0, 1.0), (1, 1)),  # never fewer than one
        ((0.5, 0.0, 0.0, 0.0, 0.0), (2, 2, 2, 2, 4)),  # more only after four readings in a row with room
        ((0.5, 0.0, 0.0, 0.5, 0.0, 0.0), (2, 2, 2, 2, 2, 2)),  # a program that comes and goes
        ((0.75, 0.25, 0.0, 0.0, 0.0), (1, 1, 1, 1, 3)),  # back to what all of them left
        ((0.5, None, 0.5), (2, 2, 2)),
    ],
)
def test_threads_are_reduced_immediately_and_restored_after_four_idle_checks(
    loads: tuple[float | None, ...], threads: tuple[int, ...]
) -> None:
    sink = MemorySink()
    spare = SpareCores(since_the_start(*loads), 4, sink, ManualClock())
    assert tuple(spare.threads() for _ in loads) == threads
    assert len(notices(sink)) == (min(threads) < 4), "a load that comes and goes is reported once"


class Engine:
    """Notes how many threads it was given."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def use_threads(self, threads: int) -> None:
        self.given.append(threads)


@pytest.mark.parametrize(
    ("set_engine", "set_torch", "with_learner", "engine", "learner"),
    [(0, 0, True, [1], [1]), (2, 0, True, [], [1]), (0, 2, True, [1], []), (0, 0, False, [1], [])],
    ids=["nothing is set", "the engine's is set", "torch's is set", "a run that must be repeatable"],
)
def test_only_unset_thread_counts_are_adjusted(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    set_engine: int,
    set_torch: int,
    with_learner: bool,
    engine: list[int],
    learner: list[int],
) -> None:
    monkeypatch.setattr("edge.app.agents.physical_cores", lambda: 2)
    monkeypatch.setattr("edge.learning.conditions.MachineProbe", lambda clock: ScriptedProbe(Readings(other_load=0.5)))
    config = AgentConfig(engine=EngineConfig(threads=set_engine), learning=LearningConfig(torch_threads=set_torch))
    fit = thread_fitting(config, tmp_path / "model.gguf", MemorySink(), ManualClock(), learner=with_learner)
    assert fit is not None
    serving, trainer = Engine(), list[int]()
    fit((serving,), SimpleNamespace(use_threads=trainer.append))  # type: ignore[arg-type]
    assert (serving.given, trainer) == (engine, learner)
    fit((serving,), None)  # an agent that only serves has no learner


@pytest.mark.parametrize("lives_here", [True, False], ids=["run", "ask or --no-learn"])
async def test_an_agent_that_only_answers_fits_its_threads_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lives_here: bool
) -> None:
    monkeypatch.setattr("edge.app.agents.physical_cores", lambda: 2)
    monkeypatch.setattr("edge.learning.conditions.MachineProbe", lambda clock: ScriptedProbe(Readings(other_load=0.5)))
    given: list[int] = []
    monkeypatch.setattr(LlamaCppBackend, "use_threads", lambda engine, threads: given.append(threads))
    config = AgentConfig(state_folder=str(tmp_path), mode="local-only")
    async with build_agent(config, MemorySink(), lives_here=lives_here):
        assert given[0] == 1


@pytest.mark.parametrize(("threads", "cores"), [(1, 2), (0, 1)])
def test_nothing_is_fitted_where_all_is_set_or_there_is_one_core(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, threads: int, cores: int
) -> None:
    monkeypatch.setattr("edge.app.agents.physical_cores", lambda: cores)
    config = AgentConfig(engine=EngineConfig(threads=threads), learning=LearningConfig(torch_threads=threads))
    assert thread_fitting(config, tmp_path / "model.gguf", MemorySink(), ManualClock(), learner=True) is None


class PsTimes(NamedTuple):
    user: float
    system: float = 0.0
    idle: float = 0.0
    children_user: float = 0.0
    children_system: float = 0.0


@pytest.mark.parametrize(
    ("ours", "own", "agents", "load"),
    [
        ((), PsTimes(6.0), PsTimes(5.0), 0.4),  # 9 s on two cores in 10 s, of which this process had one
        ((77,), PsTimes(6.0), PsTimes(8.0), 0.05),  # and a running agent at the same time seven
        ((), PsTimes(6.0, children_user=8.0), PsTimes(5.0), 0.0),  # or a child of its own that has ended
    ],
    ids=["another program", "a running agent", "a child that has ended"],
)
def test_load_of_the_agent_and_its_children_is_not_counted_as_other_programs(
    monkeypatch: pytest.MonkeyPatch, ours: tuple[int, ...], own: PsTimes, agents: PsTimes, load: float
) -> None:
    class Process:
        def __init__(self, pid: int = 0) -> None:
            self.pid = pid

        def cpu_times(self) -> PsTimes:
            return spent[self.pid]

        def children(self, recursive: bool) -> list[Process]:
            return []

    spent, machine, clock = {0: PsTimes(5.0), 77: PsTimes(1.0)}, [PsTimes(100.0)], ManualClock()
    monkeypatch.setattr(psutil, "Process", Process)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(psutil, "cpu_times", lambda: machine[0])
    probe = MachineProbe(clock, ours)
    probe.read()
    clock.advance(10.0)
    spent.update({0: own, 77: agents})
    machine[0] = PsTimes(109.0)
    assert probe.read().other_load == pytest.approx(load)


def test_doctor_does_not_count_a_running_agent_as_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def probe_of(clock: object, ours: list[int]) -> ScriptedProbe:
        seen.append(ours)
        return ScriptedProbe(Readings(other_load=None), Readings(other_load=0.25))

    monkeypatch.setattr("edge.learning.conditions.MachineProbe", probe_of)
    monkeypatch.setattr("edge.cli.doctor.announcement", lambda folder: {"pid": 77})
    assert busy_cores(AgentConfig()) == pytest.approx(0.25 * (os.cpu_count() or 1))
    assert seen == [[77]]
