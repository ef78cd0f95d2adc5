"""A step whose calls were refused by a budget has requests without a call, which is no discrepancy, whatever else was refused meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coordinator.config import TaskConfig
from coordinator.control.steps import StepController
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
