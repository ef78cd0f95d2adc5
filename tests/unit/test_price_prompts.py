"""Prompts that state the price of help: wording, chosen price, source of λ, and the price for a wanted rate."""

from __future__ import annotations

import csv
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from edge.app.settings import agent_settings
from edge.cloud.group_calls import GroupCalls
from edge.config.schema import AgentConfig, LearningConfig
from edge.core.events import MemorySink
from edge.core.types import AnswerKind, FinishReason, LocalResponse, Message, Sampling, TaskItem
from edge.dagrpo.prompts import SYSTEM_PROMPT, prompt_messages
from edge.evaluation.evaluate import EvalRoles, Evaluation, candidates_of
from edge.evaluation.judging import RolloutSettings
from edge.evaluation.plan import EvalPlan, EvalRun
from edge.learning.methods import DaGrpo
from edge.learning.rollout import Batch, Rollout, ScoredGroup, drawn_dual
from edge.learning.run_folder import RunFolder
from edge.routing.policy import SelfOffload
from edge.state.events import RunFinished, StepFinished
from edge.testing.backend import ScriptedBackend
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedTerms
from edge.verifiers.math_answer import ExactMathAnswer
from tests.unit.agent_world import HELP, World, item, local_answer
from tests.unit.trained import scored, training_groups

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
QUESTIONS = range(7000, 7100)
"""Numbers of the world's seed."""
CHOICE = TaskItem("c", "qa", "facts", 1, "train", "Which?", "A", AnswerKind.CHOICE, 4, options=("this", "that"))


def test_price_line_precedes_the_question_and_nothing_changes_without_a_price() -> None:
    assert prompt_messages(CHOICE, "compact", 0.25) == (Message("user", "25\nWhich?\nA. this\nB. that"),)
    bare, priced = prompt_messages(CHOICE, "full"), prompt_messages(CHOICE, "full", 0.25)
    assert priced[1].content == f"Help costs 0.25.\n{bare[1].content}"
    assert bare[0].content == SYSTEM_PROMPT and priced[0].content.startswith(SYSTEM_PROMPT)
    assert "what help costs" in priced[0].content
    assert prompt_messages(CHOICE, "full", None) == bare


def settings(**values: Any) -> RolloutSettings:
    return RolloutSettings("run", 7, 2, 1.0, 64, "compact", "compact", 64, **values)


def test_prices_depend_on_seed_step_and_prompt_only_and_all_occur() -> None:
    priced = settings(price_levels=LEVELS)
    drawn = [[drawn_dual(priced, step, index) for index in range(8)] for step in range(100)]
    assert drawn == [[drawn_dual(replace(priced, group_size=4), step, index) for index in range(8)] for step in range(100)]
    assert drawn != [[drawn_dual(replace(priced, seed=8), step, index) for index in range(8)] for step in range(100)]
    counts = Counter(price for step in drawn for price in step)
    assert set(counts) == set(LEVELS) and min(counts.values()) > 800 / 5 * 0.75
    assert drawn_dual(settings(), 1, 0) is None


async def test_the_model_reads_the_groups_price_and_the_cloud_the_bare_question(tmp_path: Path) -> None:
    world, seen = World(tmp_path), []

    def script(messages: Any, sampling: Sampling, seed: int) -> str:
        seen.append(messages[-1].content)
        return [HELP, local_answer(1)][seed % 2]

    await world.client.open_step("math", 0, 6, 4, 0.3)
    priced = settings(price_levels=LEVELS)
    calls, chosen = GroupCalls(world.client, 1.0), replace(priced, group_size=4)
    rollout = Rollout(ScriptedBackend(script), calls, ExactMathAnswer(), SelfOffload(), ManualClock(), chosen)
    groups = await rollout.collect(Batch(3, "math", 0, tuple(item(number) for number in range(6))))
    assert [group.prompt_dual for group in groups] == [drawn_dual(priced, 3, index) for index in range(6)]
    for index, group in enumerate(groups):
        assert group.prompt_dual is not None
        assert seen.count(f"{round(100 * group.prompt_dual)}\nWhat is {index} + 1?") == 4, "all of a group read one price"
    assert len({group.prompt_dual for group in groups}) > 1
    assert {call.messages for call in world.client.calls} <= {(Message("user", f"What is {n} + 1?"),) for n in range(6)}
    assert world.client.calls


def group_at(price: float | None) -> ScoredGroup:
    """One right, one wrong, one helped and right, one helped in vain."""
    local = LocalResponse("x", (1, 2), (-0.5, -0.5), FinishReason.EOS)
    table = [(False, True, 1.0, 0), (False, False, 0.0, 0), (True, True, 1.0, 1), (True, False, 0.0, 1)]
    responses = tuple(scored(local, asked=asked, correct=right, reward=reward, cost=cost) for asked, right, reward, cost in table)
    return ScoredGroup(item(1), (1,), responses, None, prompt_dual=price)


def test_advantage_uses_the_price_in_the_prompt_and_not_lambda() -> None:
    groups = [group_at(0.0), group_at(0.25), group_at(1.0), group_at(None)]
    trained = training_groups(DaGrpo(), groups, 0.5)
    assert [[sample.advantage for sample in group.samples] for group in trained] == [
        pytest.approx([0.5, -0.5, 0.5, -0.5]),
        pytest.approx([0.625, -0.375, 0.375, -0.625]),
        pytest.approx([1.0, 0.0, 0.0, -1.0]),
        pytest.approx([0.75, -0.25, 0.25, -0.75]),
    ]
    assert {group.group_weight for group in trained} == {1 / 3}


async def learned(folder: Path, **values: Any) -> tuple[World, list[StepFinished]]:
    world = World(folder, terms=ScriptedTerms(dual_lr=0.1, step_credit_kappa=None), prompts_per_step=5, **values)
    async with world.agent() as agent:
        await agent.learn()
        return world, agent.steps()


async def test_step_protocol_continues_and_each_step_reports_the_rate_at_each_price(tmp_path: Path) -> None:
    world, steps = await learned(tmp_path / "priced", price_levels=LEVELS)
    assert {call.messages[-1].content.splitlines()[0] for call in world.client.calls} <= {f"What is {n} + 1?" for n in QUESTIONS}
    for step in steps:
        assert step.control.dual_after == pytest.approx(
            max(0.0, step.control.dual_before + 0.1 * (step.control.assist_rate - 0.3))
        )
        assert sum(rate.prompts for rate in step.scores.prices) == step.scores.prompts == 5
        weighted = sum(rate.prompts * rate.assist_rate for rate in step.scores.prices) / 5
        assert weighted == pytest.approx(step.control.assist_rate)
        assert [rate.price for rate in step.scores.prices] == sorted({rate.price for rate in step.scores.prices})
        assert StepFinished.from_json(step.to_json()) == step
    with closing(RunFolder(tmp_path / "run", "")) as folder:
        folder.finish(steps, world.events(RunFinished)[-1], None)
    with (tmp_path / "run" / "metrics.csv").open(encoding="utf-8") as file:
        row = next(csv.DictReader(file))
    for rate in steps[0].scores.prices:
        assert float(row[f"price_{rate.price:g}.assist_rate"]) == rate.assist_rate


async def test_evaluation_states_its_price_for_the_own_and_the_forced_answer_alike(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []

    def script(messages: Any, sampling: Sampling, seed: int) -> str:
        seen.append((messages[-1].content, sampling.suppress_help))
        return local_answer(2) if sampling.suppress_help else HELP

    world = World(tmp_path)
    roles = EvalRoles(ScriptedBackend(script), ExactMathAnswer(), SelfOffload(), GroupCalls(world.client, 1.0))
    evaluation = Evaluation(roles, settings(price=0.75, price_levels=LEVELS))
    await evaluation.judge_all(candidates_of([(item(1), 1.0)]), "tag")
    assert seen == [("75\nWhat is 1 + 1?", False), ("75\nWhat is 1 + 1?", True)]
    assert [call.messages for call in world.client.calls] == [(Message("user", "What is 1 + 1?"),)]


async def test_the_report_names_the_price_and_a_journal_of_another_price_is_another_evaluations(tmp_path: Path) -> None:
    roles = EvalRoles(ScriptedBackend([local_answer(2)]), ExactMathAnswer(), SelfOffload(), None)
    plan = EvalPlan(("sums",), cloud="none")
    bare, priced = (EvalRun(plan, roles, settings(price=price), None, 0, MemorySink(), ManualClock()) for price in (None, 0.5))
    assert "price" not in bare._identity(), "a journal from before prices can be continued"
    assert priced._identity()["price"] == 0.5
    assert (await priced.outcome(candidates_of([(item(1), 1.0)]))).report.to_json()["price"] == 0.5


@pytest.mark.parametrize(
    ("values", "levels", "price"),
    [
        ({"price": 0.3}, (), 0.3),
        ({"price_levels": [1.0, 0.0, 0.5]}, (1.0, 0.0, 0.5), 0.5),
        ({"price_levels": [0.0, 1.0], "price": 0.25}, (0.0, 1.0), 0.25),
    ],
)
def test_evaluations_state_the_given_price_or_the_middle_one_of_learning(
    values: dict[str, object], levels: tuple[float, ...], price: float | None
) -> None:
    rollout = agent_settings(AgentConfig.model_validate({"learning": values}), "run").rollout
    assert (rollout.price_levels, rollout.price) == (levels, price)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"price_levels": [0.0, 0.5, 0.5]}, "price_levels"),
        ({"price_levels": [0.333]}, "whole cents"),
        ({"price_levels": [-0.5]}, "price_levels"),
        ({"price": 12.0}, "price"),
        ({"price_levels": [0.5], "method": "grpo"}, "da-grpo"),
    ],
)
def test_prices_that_cannot_be_learned_with_are_refused(values: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        LearningConfig.model_validate(values)
