"""The requests of an evaluation to model, cloud and judges, and the meaning of its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.cloud.group_calls import GroupCalls
from edge.core.errors import BudgetExhausted, ContextOverflow
from edge.core.types import Message, Sampling, TaskItem
from edge.evaluation.evaluate import EvalRoles, Evaluation, JudgedItem, MathJudge, candidates_of, counted_once
from edge.evaluation.judging import Candidate
from edge.evaluation.scores import Scores, score
from edge.routing.policy import SelfOffload
from edge.rpc.client import CloudCall, CloudCompletion
from edge.testing.backend import ScriptedBackend
from edge.verifiers.math_answer import ExactMathAnswer, MathVerdict
from tests.worlds.agent import HELP, Sums, World, item, local_answer, number_in


def by_level(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
    """Level 1 right; level 2 asks and would be right when forced; level 3 asks and would be wrong."""
    number = number_in(messages[-1].content)
    level = 1 + number % 3
    if level == 1:
        return local_answer(number + 1)
    if not sampling.suppress_help:
        return HELP
    return local_answer(number + 1 if level == 2 else 0)


class Examination:
    """Judges sums in a scripted world and records the questions."""

    def __init__(self, folder: Path, script: Any = by_level, *, failures: int = 0, temperature: float = 0.0) -> None:
        world = World(folder / "state")
        self.client = world.client
        self.client.fail_next("complete", BudgetExhausted("gone"), times=failures)
        self.backend: Any = ScriptedBackend(script)
        self.settings = replace(world.rollout_settings("run"), temperature=temperature, prompt_form="compact")

    async def judged(
        self,
        items: Sequence[TaskItem],
        *,
        with_cloud: bool = True,
        cloud_all: bool = False,
        math: MathJudge | None = None,
        known: Any = None,
        max_steps: int | None = None,
    ) -> list[JudgedItem]:
        desk = GroupCalls(self.client, 1.0) if with_cloud else None
        roles = EvalRoles(self.backend, ExactMathAnswer(), SelfOffload(), desk, math)
        evaluation = Evaluation(roles, self.settings, cloud_all=cloud_all)
        return await evaluation.judge_all(candidates_of(((one, 1.0) for one in items), max_steps), "tag", known)


async def nine_sums(tmp_path: Path, *, failures: int = 0, **options: Any) -> Scores:
    return score(await Examination(tmp_path, failures=failures).judged(Sums().test(9), **options))


async def test_each_accuracy_matches_its_definition_and_has_its_rate(tmp_path: Path) -> None:
    scores = await nine_sums(tmp_path)
    assert (scores.items, scores.kept_accuracy, scores.coverage) == (9, 1.0, pytest.approx(1 / 3))
    assert scores.assist_rate == pytest.approx(2 / 3)
    assert scores.forced_local_accuracy == pytest.approx(2 / 3)
    assert (scores.joint_accuracy, scores.format_ok, scores.cloud_failures) == (1.0, 1.0, 0)
    assert (scores.cloud_calls, scores.spend_uusd, scores.cloud_accuracy, scores.cloud_answers) == (6, 600, 1.0, 6)
    assert scores.oracle_bound == pytest.approx(2 / 3 + min(2 / 3, 1 / 3) * 1.0)
    refused = await nine_sums(tmp_path / "refused", failures=2)
    assert (refused.cloud_failures, refused.joint_accuracy) == (2, pytest.approx(7 / 9)), "a refused call is a wrong joint answer"


async def test_cached_answer_is_a_call_without_cost(tmp_path: Path) -> None:
    examination = Examination(tmp_path, failures=1)
    complete = examination.client.complete

    async def from_the_cache(call: CloudCall, deadline_s: float) -> CloudCompletion:
        completion = await complete(call, deadline_s)
        return replace(completion, cached=number_in(call.messages[0].content) != 1)

    examination.client.complete = from_the_cache  # type: ignore[method-assign]
    scores = score(await examination.judged(Sums().test(9)))
    assert (scores.cloud_calls, scores.cloud_failures) == (5, 1)
    assert scores.cloud_cached == scores.cloud_answers - scores.spend_uusd // 100 >= 4


async def test_without_a_cloud_the_overall_accuracy_is_unknown(tmp_path: Path) -> None:
    scores = await nine_sums(tmp_path, with_cloud=False)
    assert (scores.joint_accuracy, scores.intervals.joint_accuracy, scores.oracle_bound, scores.cloud_calls) == (None,) * 3 + (0,)
    assert scores.forced_local_accuracy == pytest.approx(2 / 3)


async def test_cloud_all_asks_every_item_once_and_keeps_the_bill_of_the_own_decisions(tmp_path: Path) -> None:
    examination = Examination(tmp_path)
    judged = await examination.judged(Sums().test(9), cloud_all=True)
    scores = score(judged)
    assert (len(examination.client.calls), scores.cloud_answers) == (9, 9)
    assert (scores.cloud_calls, scores.spend_uusd, scores.assist_rate) == (6, 600, pytest.approx(2 / 3))
    assert [one.judged.joint for one in judged if not one.judged.asked] == [
        one.judged.own for one in judged if not one.judged.asked
    ]


async def test_failed_answer_that_was_not_requested_changes_no_score(tmp_path: Path) -> None:
    examination = Examination(tmp_path, lambda *_: local_answer(0), failures=9)
    wrong = score(await examination.judged(Sums().test(9), cloud_all=True))
    assert (wrong.cloud_failures, wrong.joint_accuracy, wrong.cloud_accuracy) == (0, 0.0, None)


async def test_the_forced_answer_is_sampled_with_the_same_seed(tmp_path: Path) -> None:
    seeds: dict[str, list[tuple[bool, int]]] = {}

    def remember(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        seeds.setdefault(messages[-1].content, []).append((sampling.suppress_help, seed))
        assert sampling.temperature == 1.0
        return HELP

    await Examination(tmp_path, remember, temperature=1.0).judged(Sums().test(4))
    assert all([flag for flag, _ in pair] == [False, True] and len({seed for _, seed in pair}) == 1 for pair in seeds.values())
    assert len({pair[0][1] for pair in seeds.values()}) == 4


async def test_question_that_does_not_fit_is_a_wrong_answer_and_the_others_continue(tmp_path: Path) -> None:
    examination = Examination(tmp_path, lambda messages, *_: local_answer(number_in(messages[-1].content) + 1))
    examination.backend = _Short(examination.backend, "900002")
    scores = score(await examination.judged(Sums().test(4)))
    assert (scores.too_long, scores.items, scores.kept_accuracy) == (1, 4, 0.75)


class _Short:
    """A backend whose context is too small for one question."""

    def __init__(self, backend: ScriptedBackend, too_long: str) -> None:
        self._backend = backend
        self._too_long = too_long

    async def sample_group(self, messages: Sequence[Message], *rest: Any) -> Any:
        if self._too_long in messages[-1].content:
            raise ContextOverflow("too long")
        return await self._backend.sample_group(messages, *rest)


async def test_mathematics_is_compared_by_both_rules(tmp_path: Path) -> None:
    class Generous:
        def verdict(self, item: TaskItem, response: str) -> MathVerdict:
            exact = ExactMathAnswer().is_correct(item, response)
            return MathVerdict(exact, exact or "boxed{0}" in response)

    scores = await nine_sums(tmp_path, math=Generous())
    assert scores.math is not None
    assert (scores.math.items, scores.math.exact.forced_local) == (9, scores.forced_local_accuracy)
    assert (scores.math.equivalent.forced_local, scores.math.equivalent.kept) == (1.0, 1.0)


async def test_a_larger_step_limit_replaces_the_items_own(tmp_path: Path) -> None:
    steps = "\n".join(f"Step {number}: add" for number in range(1, 8))
    long = f"<think>\n{steps}\n</think>\n<answer>\\boxed{{900001}}</answer>"
    examination = Examination(tmp_path, lambda *_: long)
    four, eight = [score(await examination.judged(Sums().test(1), max_steps=limit)) for limit in (None, 8)]
    assert (four.format_ok, four.kept_accuracy) == (0.0, 0.0)
    assert (eight.format_ok, eight.kept_accuracy) == (1.0, 1.0)


async def test_known_scores_are_not_computed_again(tmp_path: Path) -> None:
    first = Examination(tmp_path / "a")
    judged = await first.judged(Sums().test(6))
    again = Examination(tmp_path / "b", lambda *_: "nonsense")
    known = {one.candidate.key: one.judged for one in judged}
    assert await again.judged(Sums().test(6), known=known) == judged
    assert again.client.calls == []


def test_a_repeated_question_is_one_candidate_with_both_weights() -> None:
    one, other = item(1), item(2)
    candidates = candidates_of([(one, 0.5), (other, 1.0), (one, 0.25)])
    assert [(candidate.item, candidate.weight) for candidate in candidates] == [(one, 0.75), (other, 1.0)]


def test_item_of_several_sources_counts_once_with_the_first_weight() -> None:
    first = [Candidate(item(1), 0.5), Candidate(item(2))]
    second = [Candidate(replace(item(1), task="group")), Candidate(item(3), 2.0)]
    candidates = counted_once([first, second, first])
    assert [(one.item, one.weight, one.repeats) for one in candidates] == [
        (item(1), 0.5, 2),
        (item(2), 1.0, 1),
        (item(3), 2.0, 0),
    ]


def test_key_distinguishes_items_by_their_question() -> None:
    one = candidates_of([(item(1), 1.0)])[0]
    changes = [{"question": "?"}, {"options": ("a",)}, {"max_steps": 9}, {"answer": "0"}, {"preamble": "x"}]
    assert len({one.key, *(replace(one, item=replace(one.item, **change)).key for change in changes)}) == 6
    assert replace(one, weight=3.0).key == one.key
