"""The learning strategies: what each computes from the same scored batch, compared with hand-computed values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from edge.app.settings import agent_settings
from edge.config.schema import AgentConfig, LearningConfig
from edge.core.types import FORCED, AllowedTokens, AnswerKind, FinishReason, LocalResponse, TaskItem, Turn, TurnStart
from edge.dagrpo.advantages import AdvantageScale
from edge.learning.methods import DaGrpo, EdgeOnly, FixedReward, Gapg, Grpo, Gvpo, Method
from edge.learning.rollout import ResponseOutcome, ScoredGroup, ScoredResponse
from edge.sizing import learner_settings, update_rule
from edge.training.learner import UpdateRule
from tests.worlds.agent import World
from tests.worlds.trained import TERMS, training_groups

ITEM = TaskItem("1", "sums", "sums", 1, "train", "What is 0 + 1?", "1", AnswerKind.MATH, 4)


def response(kind: str, tokens: int = 2) -> ScoredResponse:
    """r(ight), w(rong), h(elped and right), f(ailed although helped), b(ad format), m(asked), u(ncalled)."""
    local = LocalResponse(kind, tuple(range(1, tokens + 1)), (-0.5,) * tokens, FinishReason.EOS, None)
    asked, right = kind in "hfmu", kind in "rh"
    reward = {"r": 1.0, "h": 1.0, "b": -0.1}.get(kind, 0.0)
    cost = int(kind in "hfu")
    outcomes = {"m": ResponseOutcome.MASKED, "u": ResponseOutcome.UNCALLED}
    outcome = outcomes.get(kind, ResponseOutcome.ASKED if asked else ResponseOutcome.KEPT)
    return ScoredResponse(local, kind != "b", outcome, right, reward, cost)


def group(kinds: str, tokens: int = 2) -> ScoredGroup:
    return ScoredGroup(ITEM, (1, 2), tuple(response(kind, tokens) for kind in kinds), None)


def advantages(method: Method, *kinds: str) -> list[list[float]]:
    trained = training_groups(method, [group(one) for one in kinds])
    return [[sample.advantage for sample in one.samples] for one in trained]


def weights(method: Method, *kinds: str) -> list[float]:
    return [one.group_weight for one in training_groups(method, [group(kind) for kind in kinds])]


def test_da_grpo_subtracts_the_dual_times_the_cost_from_the_centred_reward() -> None:
    assert advantages(DaGrpo(), "rwhf") == [pytest.approx([0.75, -0.25, 0.25, -0.75])]
    assert weights(DaGrpo(), "rwhf") == [pytest.approx(1 / 3)]


def test_da_grpo_scaled_by_group_has_unit_deviation() -> None:
    [scaled] = advantages(DaGrpo(AdvantageScale.GROUP), "rwhf")
    assert sum(value * value for value in scaled) / 3 == pytest.approx(1.0, rel=1e-3)


def test_a_given_answer_takes_the_place_of_sampled_ones_and_the_samples_decide_when_to_ask() -> None:
    start, phrase = TurnStart((8, 9), (-1.0, -2.0), 0.5, False, among_few=True), (8, 9)
    given = Turn((5, 6), AllowedTokens((0, FORCED), (b"\xff",)))

    def decided(kinds: str, given: Turn | None) -> ScoredGroup:
        one = group(kinds)
        starts = [replace(start, asked=scored.asked) for scored in one.responses]
        responses = [
            replace(scored, response=replace(scored.response, start=own))
            for scored, own in zip(one.responses, starts, strict=True)
        ]
        return replace(one, responses=tuple(responses), given=given)

    [sampled], [shown] = (training_groups(DaGrpo(), [decided("rwhf", one)]) for one in (None, given))
    (answer,) = (sample for sample in shown.samples if sample.imitated)
    assert (answer.token_ids, answer.allowed) == (given.token_ids, given.allowed)
    assert answer.advantage * shown.group_weight == pytest.approx(1.0), "its log-likelihood counts once per prompt"
    assert [one for one in shown.samples if not one.imitated] == [one for one in sampled.samples if one.token_ids == phrase]
    [alone] = training_groups(DaGrpo(), [decided("rm", given)])
    assert [sample for sample in alone.samples if sample.advantage] == [replace(answer, advantage=1.0)], (
        "no baseline, no decision"
    )
    assert training_groups(DaGrpo(), [decided("rm", None)]) == []


def test_edge_only_never_asks_and_centres_the_task_reward() -> None:
    assert not EdgeOnly().may_ask
    assert advantages(EdgeOnly(), "rwwb") == [pytest.approx([0.775, -0.225, -0.225, -0.325])]


def test_fixed_reward_pays_the_configured_reward_for_help() -> None:
    assist = FixedReward(0.4, {"sums": 0.2})
    assert assist.rewards(group("rwhfb"), "sums") == [1.0, 0.0, 0.2, 0.0, -0.1]
    assert assist.rewards(group("rwhfb"), "other") == [1.0, 0.0, 0.4, 0.0, -0.1]


def test_grpo_divides_by_the_deviation_and_by_the_response_length() -> None:
    [trained] = training_groups(Grpo(FixedReward(0.4)), [group("rw", tokens=5)])
    deviation = 0.5**0.5 + 1e-4
    assert [sample.advantage for sample in trained.samples] == pytest.approx([0.5 / deviation / 5, -0.5 / deviation / 5])
    assert trained.group_weight == 0.5


def test_gvpo_weights_the_unscaled_advantage_by_beta_over_g_minus_one() -> None:
    method = Gvpo(FixedReward(0.4), beta=0.2)
    assert advantages(method, "rwhw") == [pytest.approx([0.65, -0.35, 0.05, -0.35])]
    assert weights(method, "rwhw") == [pytest.approx(0.2 / 3)]


def test_gapg_keeps_locally_solved_prompts_and_three_sevenths_as_many_cloud_solved_ones() -> None:
    method = Gapg(FixedReward(0.4), seed=1)
    batch = [group(kinds) for kinds in ["rw", "rw", "rw", "hw", "hw", "hw", "ww", "fw"]]
    kept = training_groups(method, batch)
    solved = [one for one in kept if one.samples[0].advantage == pytest.approx(0.5)]
    helped = [one for one in kept if one.samples[0].advantage == pytest.approx(0.2)]
    assert (len(solved), len(helped), len(kept)) == (3, 1, 4), "floor(3/7 x 3) = 1 of the three that only the cloud solved"
    assert training_groups(method, batch) == kept, "a step made again keeps the same prompts"


def test_gapg_does_not_count_badly_formatted_answers_and_keeps_all_help_at_rate_one() -> None:
    right_but_bad = replace(response("r"), format_ok=False, reward=-0.1)
    group_of_it = ScoredGroup(ITEM, (1, 2), (right_but_bad, response("w")), None)
    assert training_groups(Gapg(FixedReward(0.4)), [group_of_it]) == []
    batch = [group("rw"), group("hw"), group("hw")]
    assert len(training_groups(Gapg(FixedReward(0.4)), batch, terms=replace(TERMS, target_rate=1.0))) == 3


@pytest.mark.parametrize("method", [DaGrpo(), EdgeOnly(), Grpo(FixedReward(0.4)), Gvpo(FixedReward(0.4)), Gapg(FixedReward(0.4))])
def test_masked_responses_leave_their_group_and_a_group_of_one_is_dropped(method: Method) -> None:
    assert [len(one.samples) for one in training_groups(method, [group("rwm"), group("rm")])] == [2]


@pytest.mark.parametrize("method", [DaGrpo(), Grpo(FixedReward(0.4)), Gvpo(FixedReward(0.4))])
def test_group_that_all_asked_without_a_call_has_no_advantage(method: Method) -> None:
    assert advantages(method, "uuu") == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("name", ["da-grpo", "edge-only", "grpo", "gvpo", "gapg"])
def test_method_is_configured_by_name_and_edge_only_may_not_ask(name: str) -> None:
    config = AgentConfig.model_validate({"learning": {"method": name}})
    settings = agent_settings(config, "run")
    assert settings.method.name == name
    assert settings.rollout.may_ask == (name != "edge-only")


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({}, UpdateRule()),
        ({"method": "grpo", "objective": {"ratio_clip": 0.1}}, UpdateRule("clipped", 1, ratio_clip=0.1)),
        (
            {"method": "gvpo", "optimiser": {"updates_per_rollout": 2}, "objective": {"gvpo_beta": 0.3}},
            UpdateRule("gvpo", 2, gvpo_beta=0.3),
        ),
    ],
)
def test_each_method_has_its_update_rule(values: dict[str, object], rule: UpdateRule) -> None:
    learning = LearningConfig.model_validate(values)
    assert update_rule(learning) == rule
    assert learner_settings(AgentConfig(learning=learning))[1].rule == rule


@pytest.mark.parametrize(
    "values", [{"method": "grpo", "objective": {"advantage_scale": "group"}}, {"optimiser": {"updates_per_rollout": 2}}]
)
def test_setting_of_another_method_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="method"):
        LearningConfig.model_validate(values)


async def test_loop_uses_the_given_method(tmp_path: Path) -> None:
    world = World(tmp_path, method=EdgeOnly())
    steps = await world.learn(max_steps=2)
    assert [step.control.assist_rate for step in steps] == [0.0, 0.0]
    assert world.client.calls == []
    assert all(step.scores.format_ok < 1.0 for step in steps), "who asks all the same breaks the format"
