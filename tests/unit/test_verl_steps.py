"""The driver's learning steps across verl's restarts. Needs no verl."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.cloud.group_calls import GroupCalls
from edge.core.errors import CoordinatorUnavailable, PermissionDenied, StateError
from edge.dagrpo.dual import dual_step
from edge.evaluation.judging import RolloutSettings
from edge.routing.policy import SelfOffload
from edge.rpc.client import StepUnits
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedCoordinatorClient, ScriptedTerms
from edge.verifiers.by_kind import VerifierByKind
from tests.worlds.agent import HELP, item
from tools.integrations.loop_thread import LoopThread
from tools.integrations.scoring import Scorer
from tools.integrations.verl.outcomes import score_one
from tools.integrations.verl.settings import STATE_FILE, DagrpoSettings
from tools.integrations.verl.steps import RunState, TrainingSteps

AWAY = CoordinatorUnavailable("nobody there", reason="UNREACHABLE")


def settings_in(folder: Path) -> DagrpoSettings:
    return DagrpoSettings("run", "math", 0.3, 4, 4, 64, folder / STATE_FILE, True, {}, None)


class Drivers:
    """One coordinator, and drivers one after the other: a driver that dies is just left."""

    def __init__(self, folder: Path) -> None:
        self.client = ScriptedCoordinatorClient(
            lambda call: "\\boxed{8}", terms=ScriptedTerms(dual_lr=0.1, step_credit_kappa=None)
        )
        self.folder = folder
        self._all: list[TrainingSteps] = []

    def start(self) -> TrainingSteps:
        steps = TrainingSteps(lambda: self.client, ManualClock(), settings_in(self.folder), 0.5)
        self._all.append(steps)
        steps.begin()
        return steps

    def stop(self) -> None:
        for steps in self._all:
            steps.shut()


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    found = Drivers(tmp_path)
    yield found
    found.stop()


def one_step(steps: TrainingSteps, help_units: int) -> tuple[float, float]:
    """λ of the step and after it."""
    opened = steps.open()
    steps.report(StepUnits(16, help_units))
    return opened.dual, steps.close()


def alone(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run on a separate event loop, as another process would."""
    thread = LoopThread()
    try:
        thread.run(coroutine)
    finally:
        thread.close()


async def asked(client: ScriptedCoordinatorClient, step: int) -> None:
    settings = RolloutSettings("run", 0, 1, 1.0, 64, "full", "compact", 64)
    scorer = Scorer(GroupCalls(client, 5.0), VerifierByKind(), SelfOffload(), ManualClock(), settings)
    await score_one(scorer, item(7), HELP, cut=False, task="math", task_step=step)


def test_the_dual_of_a_step_is_the_coordinators_and_moves_once_for_each_step(drivers):
    steps, dual = drivers.start(), 0.5
    for number, help_units in enumerate((16, 0, 8)):
        assert steps.open().task_step == number
        before = steps.now.dual
        steps.report(StepUnits(16, help_units))
        after = steps.close()
        assert (before, after) == (dual, dual_step(dual, help_units / 16, 0.3, 0.1))
        dual = after


def test_driver_killed_in_a_step_reopens_it_with_its_number_dual_and_calls(drivers):
    one_step(drivers.start(), 8)
    dying = drivers.start()
    before = dying.open()
    alone(asked(drivers.client, before.task_step))

    again = drivers.start().open()
    alone(asked(drivers.client, again.task_step))
    assert again == before
    assert len(drivers.client.calls) == 1


def test_a_report_written_before_the_driver_died_is_delivered_by_the_next_one(drivers):
    dying = drivers.start()
    dying.open()
    dying.report(StepUnits(16, 16))

    steps = drivers.start()
    opened = steps.open()
    assert (opened.task_step, opened.dual) == (1, dual_step(0.5, 1.0, 0.3, 0.1))
    assert RunState(drivers.folder / STATE_FILE).waiting_reports() == []


def test_close_whose_reply_was_lost_moves_the_dual_only_once(drivers):
    dying = drivers.start()
    dying.open()
    dying.report(StepUnits(16, 16))
    alone(drivers.client.close_step("math", 0, StepUnits(16, 16)))  # arrived, and the driver died before the answer

    opened = drivers.start().open()
    assert (opened.task_step, opened.dual) == (1, dual_step(0.5, 1.0, 0.3, 0.1))


def test_steps_repeated_from_an_older_checkpoint_use_the_coordinators_numbers_and_dual(drivers):
    first = drivers.start()
    for _ in range(3):
        _, dual = one_step(first, 8)
    drivers.folder.joinpath(STATE_FILE).unlink()  # an older copy of the folder, or another machine

    opened = drivers.start().open()
    assert (opened.task_step, opened.dual) == (3, dual)


def test_while_the_coordinator_is_away_steps_use_the_last_dual_and_are_reported_later(drivers, caplog):
    steps = drivers.start()
    _, dual = one_step(steps, 8)
    drivers.client.fail_next("open_step", AWAY, times=2)
    with caplog.at_level(logging.WARNING):
        assert one_step(steps, 16) == (dual, dual)
        assert one_step(steps, 0) == (dual, dual)
    assert "the coordinator is away" in caplog.text
    assert [report.units.help for _, report in RunState(drivers.folder / STATE_FILE).waiting_reports()] == [16, 0]

    opened = steps.open()
    wanted = dual_step(dual_step(dual, 1.0, 0.3, 0.1), 0.0, 0.3, 0.1)
    assert (opened.task_step, opened.dual, opened.offline) == (3, pytest.approx(wanted), False)


def test_undeliverable_report_waits_with_the_dual_unchanged(drivers):
    steps = drivers.start()
    opened = steps.open()
    steps.report(StepUnits(16, 16))
    drivers.client.fail_next("close_step", AWAY)
    assert steps.close() == opened.dual
    assert steps.open().task_step == 1
    assert steps.now.dual == dual_step(0.5, 1.0, 0.3, 0.1)


@pytest.mark.parametrize("error", [AWAY, PermissionDenied("not this task")])
def test_unusable_coordinator_is_reported_before_the_first_step(drivers, error):
    drivers.client.fail_next("register", error)
    with pytest.raises(type(error)):
        drivers.start()


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}', '{"format": 1, "terms": [{"task": 1}], "waiting_reports": []}'])
def test_damaged_state_file_is_named_with_the_consequence(tmp_path, text):
    path = tmp_path / STATE_FILE
    path.write_text(text)
    with pytest.raises(StateError, match=STATE_FILE) as refusal:
        RunState(path)
    assert "step numbers are taken" in refusal.value.hint
