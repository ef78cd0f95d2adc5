"""Cloud answers as additional training responses: which ones, with what advantage, and never counted as sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from edge.app.settings import agent_settings
from edge.cloud.group_calls import GroupCalls
from edge.config.agent import resolve_agent_config
from edge.config.schema import LearningConfig
from edge.core.errors import CoordinatorUnavailable
from edge.core.types import FinishReason, LocalResponse, Sampling, Turn
from edge.dagrpo.advantages import dual_advantages
from edge.learning.methods import DaGrpo, EdgeOnly, FixedReward, Gapg, Grpo, Gvpo, Method
from edge.learning.rollout import Rollout, ScoredGroup, step_units
from edge.routing.policy import SelfOffload
from edge.rpc.client import CloudCall, StepUnits
from edge.sizing import batch_limits
from edge.state.events import StepFinished
from edge.testing.backend import EOS, ScriptedBackend
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedCoordinatorClient
from edge.training.batching import live_rows
from edge.training.loss import shaped_weights
from edge.verifiers.math_answer import ExactMathAnswer
from tests.worlds.agent import HELP, World, batch_of, item, local_answer, numbers
from tests.worlds.trained import scored, training_groups

SAMPLED = Sampling()
RIGHT = local_answer(1)
LONG = "<think>\n" + "\n".join(f"Step {n}: add" for n in range(1, 6)) + "\n</think>\n<answer>\\boxed{1}</answer>"


async def collected(
    texts: Sequence[str], answer: str, tmp_path: Path, *, fails: bool = False, **values: Any
) -> tuple[ScoredGroup, ScriptedBackend]:
    """One group of these texts, and the cloud's answer to it."""
    client = ScriptedCoordinatorClient(lambda call: answer)
    if fails:
        client.fail_next("complete", CoordinatorUnavailable("away"))
    await client.open_step("math", 0, 1, len(texts), 0.3)
    order = iter(texts)
    backend = ScriptedBackend(lambda messages, sampling, seed: next(order))
    settings = World(tmp_path).rollout_settings("run")
    settings = replace(settings, group_size=len(texts), prompt_form="compact", **{"cloud_samples": True, **values})
    rollout = Rollout(backend, GroupCalls(client, 1.0), ExactMathAnswer(), SelfOffload(), ManualClock(), settings)
    [group] = await rollout.collect(batch_of(item(0)))
    return group, backend


async def test_a_right_and_well_formed_answer_joins_in_the_models_own_tokens_with_its_end(tmp_path: Path) -> None:
    group, backend = await collected([HELP, local_answer(7)], f"\n{RIGHT} \n", tmp_path)
    assert group.cloud_sample.token_ids[-1] == EOS and EOS not in group.cloud_sample.token_ids[:-1]
    assert backend.text_of(group.cloud_sample.token_ids) == RIGHT, (
        "without the white space around it, which the model does not generate"
    )
    engine = ScriptedBackend([RIGHT])
    sampled = (await engine.sample_group([], replace(SAMPLED, max_tokens=64), [0])).responses[0]
    assert group.cloud_sample.token_ids == sampled.token_ids, "as the engine would have sampled it"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (local_answer(2), "wrong"),
        ("The answer is \\boxed{1}.", "right, but not in the form"),
        (LONG, "right, with a step too many"),
        (HELP, "no answer"),
        (RIGHT.replace("add", "add " * 64), "longer than a response may be"),
        ("", "nothing"),
    ],
)
async def test_unsuitable_cloud_answer_does_not_join(answer: str, why: str, tmp_path: Path) -> None:
    group, _ = await collected([HELP, local_answer(7)], answer, tmp_path)
    assert group.completion is not None and group.cloud_sample is None, why


async def test_without_a_request_or_with_a_failed_cloud_nothing_joins(tmp_path: Path) -> None:
    kept, _ = await collected([RIGHT, local_answer(7)], RIGHT, tmp_path)
    failed, _ = await collected([HELP, local_answer(7)], RIGHT, tmp_path, fails=True)
    skipped, _ = await collected([HELP, HELP], RIGHT, tmp_path, skip_unanimous_calls=True)
    assert [group.cloud_sample for group in (kept, failed, skipped)] == [None] * 3


async def test_disabled_nothing_joins_and_the_groups_are_otherwise_equal(tmp_path: Path) -> None:
    on, _ = await collected([HELP, local_answer(7)], RIGHT, tmp_path)
    off, _ = await collected([HELP, local_answer(7)], RIGHT, tmp_path, cloud_samples=False)
    assert on.cloud_sample and replace(on, cloud_sample=None) == off
    trained = training_groups(DaGrpo(), [off])
    joined = training_groups(DaGrpo(), [on])
    assert step_units([on]) == step_units([off]) == StepUnits(2, 1), "the cost of a step is that of the sampled responses"
    assert joined[0].samples[:2] == trained[0].samples and joined[0].group_weight == trained[0].group_weight


def group_of(table: Sequence[tuple[float, int]], sample: tuple[int, ...] = (5, 6, 0), weight: float = 1.0) -> ScoredGroup:
    local = LocalResponse("x", (1, 2), (-0.5, -0.25), FinishReason.EOS)
    responses = tuple(scored(local, asked=bool(cost), correct=reward > 0, reward=reward, cost=cost) for reward, cost in table)
    return ScoredGroup(item(1), (1, 2), responses, None, cloud_sample=Turn(sample) if sample else None, cost_weight=weight)


def test_advantage_of_the_answer_is_its_reward_minus_the_mean_of_the_others() -> None:
    # rewards 1, 0, 1, 0; costs 0, 0, 1, 0: mean reward 0.5, mean cost 0.25; at λ = 0.5 the answer's Â is 1 - 0.5 + 0.5 * 0.25
    [trained] = training_groups(DaGrpo(), [group_of([(1.0, 0), (0.0, 0), (1.0, 1), (0.0, 0)])])
    assert [sample.advantage for sample in trained.samples] == pytest.approx([0.625, -0.375, 0.125, -0.375, 0.625])
    assert [sample.off_policy for sample in trained.samples] == [False] * 4 + [True]
    assert trained.samples[-1].token_ids == (5, 6, 0) and trained.samples[-1].behaviour_logprobs == (0.0, 0.0, 0.0)
    assert trained.group_weight == pytest.approx(1 / 3), "one more sample of the same weight"
    rows = live_rows([trained, trained])
    assert [row.coefficient for row in rows[:5]] == pytest.approx([0.625 / 6, -0.375 / 6, 0.125 / 6, -0.375 / 6, 0.625 / 6])
    assert [row.off_policy for row in rows[:5]] == [False] * 4 + [True]
    [all_asked] = training_groups(DaGrpo(), [group_of([(1.0, 1), (1.0, 1)])])
    assert [sample.advantage for sample in all_asked.samples] == pytest.approx([0.0, 0.0, 0.5]), "as loudly as help is dear"
    [weighted] = training_groups(DaGrpo(), [group_of([(1.0, 1), (0.0, 0)], weight=0.4)])
    assert weighted.samples[-1].advantage == pytest.approx(1 - 0.5 + 0.2 * 0.5), "λ is that of the group's call"


responses = st.lists(st.tuples(st.sampled_from([1.0, 0.0, -0.1]), st.integers(0, 1)), min_size=2, max_size=8)


@given(responses, st.floats(0, 2))
def test_right_answer_is_never_penalised_and_equals_a_free_right_response_of_the_group(
    table: list[tuple[float, int]], dual: float
) -> None:
    rewards, costs = [reward for reward, _ in table], [cost for _, cost in table]
    *advantages_G, advantage = dual_advantages(rewards, costs, dual, free_rewards=[1.0])
    assert advantages_G == dual_advantages(rewards, costs, dual), "the group's own are as without it"
    assert advantage >= -1e-12
    for one, (reward, cost) in zip(advantages_G, table, strict=True):
        if (reward, cost) == (1.0, 0):
            assert advantage == pytest.approx(one)


@pytest.mark.parametrize("method", [EdgeOnly(), Grpo(FixedReward(0.4)), Gvpo(FixedReward(0.4)), Gapg(FixedReward(0.4))])
def test_other_methods_have_no_such_sample(method: Method) -> None:
    [trained] = training_groups(method, [group_of([(1.0, 0), (0.0, 0)])])
    assert len(trained.samples) == 2


def test_token_weight_is_the_slope_of_the_shaped_objective_and_a_quarter_at_gamma() -> None:
    assert shaped_weights(torch.tensor([0.1]).log()).tolist() == pytest.approx([0.25])
    logprob = torch.tensor([-14.0, -3.0, -1.0, -0.1], dtype=torch.float64, requires_grad=True)
    prob = logprob.exp()
    (slope,) = torch.autograd.grad((prob / (prob + 0.1)).sum(), logprob)
    assert torch.allclose(slope, shaped_weights(logprob))
    assert not shaped_weights(logprob).requires_grad


def cloud_answer(call: CloudCall) -> str:
    """Right and well formed for every second question."""
    number = int(call.messages[-1].content.split()[2])
    return local_answer(number + 1) if number % 2 else f"It is \\boxed{{{number + 1}}}."


async def learned(folder: Path, max_steps: Sequence[int | None] = (None,), **values: Any) -> list[StepFinished]:
    world = World(folder, prompts_per_step=6, **values)
    world.client = ScriptedCoordinatorClient(cloud_answer, terms=world.terms)
    for most in max_steps:
        found = await world.learn(max_steps=most)
    return found


async def test_steps_count_cloud_answers_separately_and_resume_identically(tmp_path: Path) -> None:
    on, off = await learned(tmp_path / "on", cloud_samples=True), await learned(tmp_path / "off")
    assert sum(step.cloud.cloud_samples for step in on) > 0
    assert all(step.cloud.cloud_sample_tokens >= 5 * step.cloud.cloud_samples for step in on)
    assert {(step.cloud.cloud_samples, step.cloud.cloud_sample_tokens) for step in off} == {(0, 0)}
    for field in [
        "responses",
        "tokens",
        "assist_rate",
        "dual_after",
        "cloud_calls",
        "spend_uusd",
        "reward_mean",
        "joint_accuracy",
    ]:
        assert [step.flat()[field] for step in on] == [step.flat()[field] for step in off], field
    cut = await learned(tmp_path / "cut", (1, 2, None), cloud_samples=True)
    assert [numbers(step) for step in cut] == [numbers(step) for step in on]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        *(({"method": method}, "of method da-grpo") for method in ("edge-only", "grpo", "gvpo", "gapg")),
        ({"objective": {"cloud_samples": "on", "advantage_scale": "group"}}, "needs advantage_scale none"),
    ],
)
def test_method_that_cannot_learn_from_cloud_answers_is_refused(values: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        LearningConfig.model_validate({"objective": {"cloud_samples": "on"}, **values})


def test_a_bare_on_switches_it_on_and_memory_is_planned_for_one_response_more() -> None:
    on = resolve_agent_config(sets=["learning.objective.cloud_samples=on"]).config
    off = resolve_agent_config().config
    assert agent_settings(on, "run").rollout.cloud_samples and not agent_settings(off, "run").rollout.cloud_samples
    path = Path(__file__).parents[2] / "edge" / "models" / "files" / "nano-edge.gguf"
    assert batch_limits(on, path).group_size == batch_limits(off, path).group_size + 1 == 9
