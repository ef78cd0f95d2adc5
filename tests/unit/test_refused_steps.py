"""A step whose calls were refused by a budget has requests without a call, which is no discrepancy, whatever else was refused meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coordinator.config import TaskConfig
from coordinator.control.steps import MOST_REFUSED_STEPS, StepController
from coordinator.ledger.stores.memory import MemoryLedgerStore
from edge.rpc.client import StepUnits
from edge.testing.clock import ManualClock


@pytest.fixture
async def controller() -> AsyncIterator[StepController]:
    store = MemoryLedgerStore()
    yield StepController(store, {"*": TaskConfig()}, ManualClock())
    await store.aclose()


async def reported(controller: StepController, step: int) -> tuple[str, ...]:
    await controller.open_step("d", "group1", step, 8, 8, None)
    return (await controller.close_step("d", "group1", step, StepUnits(64, 10))).discrepancies


async def test_refused_user_question_during_a_step_causes_no_discrepancy(controller: StepController) -> None:
    controller.note_refusal("d", "group1", 0)
    controller.note_refusal("d", "group1", -1)
    assert await reported(controller, 0) == ()


async def test_report_after_the_next_steps_refusals_causes_no_discrepancy(controller: StepController) -> None:
    for step in (0, 1, 1):
        controller.note_refusal("d", "group1", step)
    assert [await reported(controller, step) for step in (0, 1)] == [(), ()]


async def test_step_without_refusals_or_calls_is_a_discrepancy(controller: StepController) -> None:
    controller.note_refusal("d", "group1", -1)
    controller.note_refusal("d", "other", 0)
    [discrepancy] = await reported(controller, 0)
    assert "10 help units" in discrepancy


@pytest.mark.parametrize("spread", ["many tasks of one device", "many devices", "many steps of one task"])
async def test_refusals_of_steps_that_nobody_reports_are_forgotten_oldest_first(controller: StepController, spread: str) -> None:
    controller.note_refusal("d", "group1", 0)
    for number in range(MOST_REFUSED_STEPS - 1):
        device, task, step = {
            "many tasks of one device": ("other", f"t{number}", 0),
            "many devices": (f"other{number}", "group1", 0),
            "many steps of one task": ("other", "group1", number),
        }[spread]
        controller.note_refusal(device, task, step)
    controller.note_refusal("d", "group1", 1)
    first, second = [await reported(controller, step) for step in (0, 1)]
    assert len(first) == 1 and second == ()


async def test_reported_step_gets_its_first_answer_again_and_makes_room_for_another(controller: StepController) -> None:
    for step in range(MOST_REFUSED_STEPS):
        controller.note_refusal("silent", "group1", step)
    for step in range(3):
        controller.note_refusal("d", "group1", step)
        assert await reported(controller, step) == ()
        again = await controller.close_step("d", "group1", step, StepUnits(64, 10))
        assert again.discrepancies == ()
    await controller.open_step("silent", "group1", 0, 8, 8, None)
    assert len((await controller.close_step("silent", "group1", 0, StepUnits(64, 10))).discrepancies) == 1
    for step in (1, 2, 3):
        await controller.open_step("silent", "group1", step, 8, 8, None)
        assert (await controller.close_step("silent", "group1", step, StepUnits(64, 10))).discrepancies == ()
