"""`AgentControl` as commands use it: a running agent over HTTP and an idle state folder give the same answers and the same refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from pydantic import BaseModel

from edge.agent import AgentStatus
from edge.budget.quota import Quota
from edge.budget.whatif import Outlook, WhatIf
from edge.cli.folder_agent import FolderAgent
from edge.cli.remote import agent_control
from edge.cli.remote_control import RemoteControl
from edge.cloud.sent import SentChoice
from edge.config.schema import AgentConfig
from edge.core.errors import NotFound, StateError, TooFewAnswers
from edge.core.types import Message
from edge.inference.backend import ModelInfo
from edge.learning.adapters import Version
from edge.rpc.client import BudgetSnapshot
from edge.serve.agent_schemas import (
    AdapterVersionView,
    LearningPausedView,
    LedgerBudgetView,
    ModelView,
    OutlookView,
    QuotaView,
    StatusView,
    WhatIfView,
)
from edge.serve.endpoint import build_app
from edge.serve.ports import AgentControl
from edge.serve.running_agent import AgentAnswers, RunningAgent
from edge.state.answer_record import AnswerRequest
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedTerms
from edge.testing.endpoint import ScriptedAnswers, ScriptedControl
from tests.until import until
from tests.worlds.agent import World, asks_about_even_numbers
from tests.worlds.served_agent import served

ANSWERS = 24


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """A folder in which 24 questions were answered, half of them by the cloud, and two steps were learned."""
    world = World(tmp_path / "state", script=asks_about_even_numbers, terms=ScriptedTerms(calls_limit=60, price_uusd_per_call=70))
    async with world.agent() as agent:
        for number in range(ANSWERS):
            await agent.answerer.answer(AnswerRequest((Message("user", f"What is {number} + 1?"),), id=f"a{number}"))
        await agent.learn(2)
    return world


@pytest.fixture(params=["running", "folder"])
async def control(request: pytest.FixtureRequest, world: World) -> AsyncIterator[AgentControl]:
    config = AgentConfig(state_folder=str(world.folder))
    if request.param == "folder":
        async with agent_control(config) as chosen:
            assert isinstance(chosen, FolderAgent)
            yield chosen
        return
    async with served(world), agent_control(config) as chosen:
        assert isinstance(chosen, RemoteControl)
        yield chosen


async def test_status_reports_learning_progress(control: AgentControl) -> None:
    status = await control.status()
    assert (status.steps_done, status.task, status.trained_version) == (2, "math", 2)
    assert (status.address is not None) == status.running == (status.pid is not None)
    assert (await control.ready()).ready == status.running


MIRRORS = [
    (AgentStatus, StatusView),
    (ModelInfo, ModelView),
    (Quota, QuotaView),
    (BudgetSnapshot, LedgerBudgetView),
    (Version, AdapterVersionView),
    (WhatIf, WhatIfView),
    (Outlook, OutlookView),
]


@pytest.mark.parametrize(("value", "view"), MIRRORS, ids=lambda one: one.__name__)
def test_a_view_has_every_field_of_the_value_that_it_shows(value: Any, view: type[BaseModel]) -> None:
    assert {field.name for field in fields(value)} <= set(view.model_fields)


async def test_what_is_read_holds_no_field_that_the_endpoint_does_not_describe(control: AgentControl) -> None:
    await control.feedback("a4", "bad", "5")
    found = [await control.status(), await control.budget(), await control.usage(), await control.report(0.0),
             await control.headline(), await control.sent(SentChoice(limit=5)), *await control.adapters()]  # fmt: skip
    found += [
        await control.whatif([0.25], "", 1000),
        await control.pause_learning(False),
        await control.feedback("a4", "good", None),
    ]
    while found:
        view = found.pop()
        assert not view.model_extra, type(view)
        for value in dict(view).values():
            found += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, BaseModel)]


async def test_the_endpoint_describes_its_status(world: World) -> None:
    async with world.agent() as agent:
        described = build_app(AgentAnswers(agent), RunningAgent(agent), ManualClock()).app.openapi()
        status = (await RunningAgent(agent).status()).model_dump(mode="json")
    jsonschema_rs.validate({**described, "$ref": "#/components/schemas/StatusView"}, status)


async def test_steps_after_a_number_are_listed_oldest_first(control: AgentControl) -> None:
    assert [step.step for step in await control.steps(0)] == [1, 2]
    assert [step.step for step in await control.steps(1)] == [2]
    assert await control.steps(2) == []


async def test_why_explains_an_answer_and_refuses_an_unknown_one(control: AgentControl) -> None:
    record = await control.why("a4")
    assert (record.id, record.source) == ("a4", "cloud")
    assert (await control.why("last")).id == f"a{ANSWERS - 1}"
    with pytest.raises(NotFound):
        await control.why("nothing")


async def test_the_headline_agrees_with_the_answers_and_the_usage(control: AgentControl) -> None:
    headline, usage = await control.headline(), (await control.usage()).all
    if isinstance(control, RemoteControl):  # for the folder's clock, this machine's, the world's answers are of another month
        assert (headline.answers, headline.answered_locally) == (ANSWERS, 0.5)
        assert headline.spent_this_month_uusd == usage.serving.spend_uusd + usage.learning.spend_uusd
    assert headline.right_in_the_end is headline.gained is None, "nothing was examined"


async def test_feedback_is_stored_and_refused_for_an_unknown_answer(control: AgentControl) -> None:
    kept = {"id": "a4", "verdict": "bad", "correction": "5"}
    assert (await control.feedback("a4", "bad", "5")).model_dump().items() >= kept.items()
    assert (await control.why("a4")).verdict == "bad"
    with pytest.raises(NotFound):
        await control.feedback("nothing", "good", None)


def dials(budgets: Any) -> dict[str, float | None]:
    return {task.task: task.target_rate for task in budgets.tasks}


async def test_dial_is_set_for_one_task_for_all_tasks_and_forgotten(control: AgentControl) -> None:
    budgets = await control.set_dial(None, 0.15)
    assert (budgets.target_rate, dials(budgets)) == (0.15, {"chat": 0.15, "math": 0.15})
    budgets = await control.set_dial("code", 0.4)
    assert dials(await control.budget()) == dials(budgets) == {"chat": 0.15, "math": 0.15, "code": 0.4}
    assert dials(await control.forget_task("code")) == {"chat": 0.15, "math": 0.15}
    with pytest.raises(NotFound):
        await control.forget_task("code")


async def test_the_target_is_that_of_the_dial_that_peoples_questions_have(control: AgentControl) -> None:
    await control.set_dial("chat", 0.15)
    budget, report = await control.budget(), await control.report(0.0)
    assert budget.target == report.target == "15 % of questions may ask"
    await control.set_dial("chat", None)
    assert (await control.budget()).target == "the model decides; it learns to ask for help at 30 %"


async def test_cloud_and_learning_are_paused_and_resumed(control: AgentControl) -> None:
    paused = await control.pause(True)
    assert (paused.paused, bool(paused.switched_off)) == (True, True)
    resumed = await control.pause(False)
    assert (resumed.paused, resumed.switched_off) == (False, "")
    assert (await control.pause_learning(True)).paused and (await control.status()).paused
    assert not (await control.pause_learning(False)).paused


async def test_whatif_replays_other_rates_once_there_are_enough_answers(control: AgentControl) -> None:
    found = await control.whatif([0.25, 0.5], "", 1000)
    assert (found.answers, [outlook.target_rate for outlook in found.outlooks]) == (ANSWERS, [0.25, 0.5])
    with pytest.raises(TooFewAnswers):
        await control.whatif([0.25], "nosuch", 1000)


async def test_the_report_and_the_usage_count_the_same_answers(control: AgentControl) -> None:
    report, usage = await control.report(0.0), await control.usage()
    assert sum(one.answers for one in report.answers) == usage.all.answers == ANSWERS
    assert usage.all.serving.calls == ANSWERS // 2
    assert report.learning.steps == 2


async def test_sent_entries_are_listed_and_an_unknown_entry_is_refused(control: AgentControl) -> None:
    found = await control.sent(SentChoice(limit=5))
    assert ([entry.id for entry in found.sent], found.waiting_reports) == ([], [])
    with pytest.raises(NotFound):
        await control.sent_entry(99)


async def test_adapters_are_listed_and_rollback_to_an_unknown_version_is_refused(control: AgentControl) -> None:
    assert [version.version for version in await control.adapters()] == [1, 2]
    with pytest.raises(NotFound):
        await control.rollback(9)
    assert (await control.rollback(0)).serving == 0
    assert (await control.status()).adapter_version == 0


@pytest.fixture
def nowhere(tmp_path: Path) -> FolderAgent:
    return FolderAgent(AgentConfig(state_folder=str(tmp_path / "none")))


async def test_reading_a_missing_folder_does_not_create_it(nowhere: FolderAgent, tmp_path: Path) -> None:
    assert ((await nowhere.status()).steps_done, await nowhere.steps(0)) == (0, [])
    assert (await nowhere.usage()).all.answers == 0
    assert (await nowhere.budget()).tasks == []
    for change in (nowhere.pause(True), nowhere.pause_learning(True), nowhere.set_dial(None, 0.1), nowhere.forget_task("math")):
        with pytest.raises(StateError, match="no agent has used"):
            await change
    with pytest.raises(NotFound):
        await nowhere.feedback("a1", "good", None)
    assert list(tmp_path.iterdir()) == []


async def test_end_of_a_pause_is_shown_immediately_while_learning_still_waits(tmp_path: Path) -> None:
    async with World(tmp_path).agent() as agent:
        control = RunningAgent(agent)
        await control.pause_learning(True)
        learning = asyncio.create_task(agent.learn())
        await until(lambda: agent.learning.readiness.waiting)
        assert await control.pause_learning(False) == LearningPausedView(paused=False, waiting="")
        await learning


async def test_the_scripted_report_has_the_keys_of_a_real_one(tmp_path: Path) -> None:
    async with World(tmp_path).agent() as agent:
        real = await RunningAgent(agent).report(5.0)
    assert real.model_copy(update={"now": 0.0}) == await ScriptedControl(ScriptedAnswers([])).report(5.0)
