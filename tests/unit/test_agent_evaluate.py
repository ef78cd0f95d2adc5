"""Evaluations: the requests to model, cloud and judges, weighted scores and the cost-quality curve, recordings, and interruptions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.config import UpstreamConfig
from coordinator.providers.provider import ProviderRequest
from coordinator.providers.recorded import RecordedProvider
from edge.cloud.group_calls import CloudOutcome, GroupCalls
from edge.core.errors import BudgetExhausted, ConfigError, ContextOverflow, EdgeError, StateError
from edge.core.types import Message, Sampling, TaskItem, TokenUsage
from edge.dagrpo.metrics import effective_trials, wilson_interval, wilson_interval_of_share
from edge.evaluation.cloud import RecordingAnswers, ReplayedAnswers, digest_of
from edge.evaluation.cost_quality import cost_quality, threshold_curve
from edge.evaluation.evaluate import EvalRoles, Evaluation, MathJudge, bill_of, candidates_of, counted_once
from edge.evaluation.judging import WRONG, Bill, Candidate, Judged, JudgedItem, RolloutSettings, Verdict
from edge.evaluation.plan import Journal
from edge.evaluation.scores import Measured, Scores, build_report, score
from edge.routing.policy import SelfOffload
from edge.rpc.cassette import RecordedAnswer, append_answer
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


def call(content: str = "a private question", key: str = "k") -> CloudCall:
    return CloudCall(key, "math", -1, "p", 1, (Message("user", content),), 64, temperature=0.0)


class Cloud:
    """Answers with the number of the call, or fails; counts."""

    def __init__(self, failures: int = 0) -> None:
        self.calls = 0
        self._failures = failures

    async def ask(self, call: CloudCall) -> CloudOutcome:
        self.calls += 1
        await asyncio.sleep(0)
        if self.calls <= self._failures:
            return CloudOutcome(None, reason="away")
        return CloudOutcome(CloudCompletion(call.call_key, f"answer {self.calls} ü\n", TokenUsage(3, 4), 11, False, "real model"))


async def test_a_replay_gives_text_usage_and_charge_of_the_recording(tmp_path: Path) -> None:
    recorder = RecordingAnswers(tmp_path / "r.jsonl", Cloud(), "compact")
    first = [await recorder.ask(call(content)) for content in ("one", "two")]
    replayed = ReplayedAnswers(tmp_path / "r.jsonl")
    for content, outcome in zip(("one", "two"), first, strict=True):
        again = (await replayed.ask(call(content, key="other"))).completion
        assert outcome.completion is not None
        assert again == replace(outcome.completion, call_key="other", model="default")


async def test_cached_answer_in_a_replay_is_a_call_without_cost(tmp_path: Path) -> None:
    append_answer(tmp_path / "r.jsonl", digest_of(call()), RecordedAnswer("4", TokenUsage(3, 4), charged_uusd=0, cached=True))
    outcome = await ReplayedAnswers(tmp_path / "r.jsonl").ask(call())
    assert bill_of(outcome) == Bill(1, 0, 0, cached=1)


async def test_replay_asks_like_the_recording_regardless_of_configuration(tmp_path: Path) -> None:
    settings = RolloutSettings("run", 0, 2, 1.0, 64, "compact", "full", 512)
    await RecordingAnswers(tmp_path / "r.jsonl", Cloud(), "compact").ask(replace(call(), model_alias="other"))
    asked = ReplayedAnswers(tmp_path / "r.jsonl").asked_as(settings)
    assert (asked.model_alias, asked.max_output_tokens, asked.cloud_prompt_form) == ("other", 64, "compact")
    (tmp_path / "empty.jsonl").write_text("")
    assert ReplayedAnswers(tmp_path / "empty.jsonl").asked_as(settings) == settings


async def test_a_recording_holds_no_questions_and_no_failures(tmp_path: Path) -> None:
    recorder = RecordingAnswers(tmp_path / "r.jsonl", Cloud(failures=1), "compact")
    outcomes = [await recorder.ask(call()) for _ in range(2)]
    assert [outcome.completion is None for outcome in outcomes] == [True, False]
    (line,) = (tmp_path / "r.jsonl").read_text().splitlines()
    assert "private question" not in line


async def test_two_items_with_the_same_question_make_one_call(tmp_path: Path) -> None:
    cloud = Cloud()
    recorder = RecordingAnswers(tmp_path / "r.jsonl", cloud, "compact")
    both = await asyncio.gather(recorder.ask(call(key="a")), recorder.ask(call(key="b")))
    assert cloud.calls == 1
    assert len({outcome.completion.text for outcome in both if outcome.completion}) == 1


async def test_truncated_recording_is_repaired_when_continued_and_an_error_in_a_replay(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    recorder = RecordingAnswers(path, Cloud(), "compact")
    await recorder.ask(call("one"))
    await recorder.ask(call("two"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigError, match=r"r\.jsonl:2: not a cassette line"):
        ReplayedAnswers(path)
    cloud = Cloud()
    later = RecordingAnswers(path, cloud, "compact")
    await later.ask(call("one"))
    await later.ask(call("two"))
    assert cloud.calls == 1
    assert (await ReplayedAnswers(path).ask(call("two"))).completion is not None


@pytest.mark.parametrize("content", ['{"report": 1}', "name,score\nx,1", '{\n"request": 1\n}\n'])
def test_foreign_file_is_refused_and_left_unchanged(tmp_path: Path, content: str) -> None:
    path = tmp_path / "mine"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"mine:1: not a cassette line"):
        RecordingAnswers(path, Cloud(), "compact")
    assert path.read_text() == content


async def test_coordinator_replays_what_a_device_recorded(tmp_path: Path) -> None:
    outcome = await RecordingAnswers(tmp_path / "r.jsonl", Cloud(), "compact").ask(call())
    request = ProviderRequest(call().messages, "default", 64, 0.0, 5.0, "k")
    played = await RecordedProvider(UpstreamConfig(provider="recorded", path=str(tmp_path / "r.jsonl")), "r").complete(request)
    assert outcome.completion is not None
    assert (played.text, played.usage) == (outcome.completion.text, outcome.completion.usage)


# --- the journal ----------------------------------------------------------------------------------------------------------

DONE = Judged(True, True, WRONG, Verdict(True, True, None), Verdict(True), Verdict(False), 12, 0.25, Bill(1, 7, 9))
FACTS = {"model": "abc", "temperature": 0.0, "adapter": None}


def journal(tmp_path: Path, tag: str = "t", **changes: object) -> Journal:
    return Journal(tmp_path / "j.jsonl", {**FACTS, **changes}, tag)


def known(tmp_path: Path) -> dict[str, Judged]:
    with closing(journal(tmp_path)) as opened:
        return opened.known


def filled(tmp_path: Path) -> Path:
    first = journal(tmp_path, "first")
    first.add("a", DONE)
    first.add("b", replace(DONE, tokens=5))
    first.close()
    return first.path


def test_journal_returns_the_scored_items_and_its_initial_tag(tmp_path: Path) -> None:
    filled(tmp_path)
    again = journal(tmp_path, "second")
    assert (again.known, again.tag) == ({"a": DONE, "b": replace(DONE, tokens=5)}, "first")
    again.close()


def test_items_with_a_failed_call_are_not_stored(tmp_path: Path) -> None:
    first = journal(tmp_path)
    first.add("a", replace(DONE, failure="away"))
    first.close()
    assert known(tmp_path) == {}


@pytest.mark.parametrize("cut", [1, 40])
def test_truncated_line_is_scored_again(tmp_path: Path, cut: int) -> None:
    path = filled(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    again = journal(tmp_path)
    assert list(again.known) == ["a"]
    again.add("b", DONE)
    again.close()
    assert list(known(tmp_path)) == ["a", "b"]


def test_journal_of_another_evaluation_is_refused_with_the_difference(tmp_path: Path) -> None:
    before = filled(tmp_path).read_text()
    with pytest.raises(StateError, match=r"temperature was 0\.0 and is 1\.0"):
        journal(tmp_path, temperature=1.0)
    assert (tmp_path / "j.jsonl").read_text() == before


def test_damaged_journal_or_foreign_file_is_named_with_the_line_and_left_unchanged(tmp_path: Path) -> None:
    path = filled(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    for content, line in ((lines[0] + '{"item": "a"}\n' + lines[2], 2), ("something else", 1), ("something\nelse\n", 1)):
        path.write_text(content)
        with pytest.raises(StateError, match=rf"j\.jsonl:{line}"):
            journal(tmp_path)
        assert path.read_text() == content


def test_charged_call_without_an_answer_is_in_the_bill() -> None:
    assert bill_of(CloudOutcome(None, reason="cut", lost_uusd=70)) == Bill(1, 0, 70)
    assert bill_of(CloudOutcome(None, reason="away")) == Bill()


RIGHT = Verdict(True)


def judged(number: int, *, asked: bool = False, weight: float = 1.0, **facts: Any) -> JudgedItem:
    local = facts.pop("local", True)
    cloud = facts.pop("cloud", None)
    own = RIGHT if local and not asked else WRONG
    joint = (None if cloud is None else Verdict(cloud)) if asked else own
    known: dict[str, Any] = {"tokens": 10, "help_log_odds": None, "bill": Bill(), **facts}
    verdict = None if cloud is None else Verdict(cloud)
    return JudgedItem(Candidate(item(number), weight), Judged(asked, True, own, Verdict(local), joint, verdict, **known))


def measured(**changes: Any) -> Measured:
    facts: dict[str, Any] = {
        "sources": ("sums",), "model": "m", "model_sha256": "", "adapter": None, "adapter_version": 0, "temperature": 0.0, "seed": 0,
        "max_tokens": 64, "max_steps": None, "per_level": None, "cloud": "coordinator", "cloud_all": True,
    }  # fmt: skip
    return Measured(**{**facts, **changes})


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_with_equal_weights_shares_and_intervals_are_those_of_the_counts(outcomes: list[tuple[bool, bool]]) -> None:
    items = [judged(n, asked=asked, local=local, cloud=True, weight=0.3) for n, (asked, local) in enumerate(outcomes)]
    scores = score(items)
    right = sum(local for _, local in outcomes)
    assert scores.forced_local_accuracy == right / len(outcomes)
    assert scores.intervals.forced_local_accuracy == pytest.approx(wilson_interval(right, len(outcomes)))
    assert scores.coverage == pytest.approx(sum(not asked for asked, _ in outcomes) / len(outcomes))


def test_weights_apply_to_every_share_and_local_accuracy_is_weighted_by_local_answers() -> None:
    items = [judged(0, weight=3.0), judged(1, weight=1.0, local=False), judged(2, weight=4.0, asked=True, cloud=True)]
    scores = score(items)
    assert (scores.assist_rate, scores.kept_accuracy, scores.forced_local_accuracy) == (0.5, 0.75, 7 / 8)
    assert scores.joint_accuracy == 7 / 8


def test_weighted_interval_uses_the_effective_number_of_items() -> None:
    items = [judged(0, weight=3.0), judged(1, weight=1.0, local=False)]
    assert effective_trials([3.0, 1.0]) == pytest.approx(1.6)
    assert score(items).intervals.forced_local_accuracy == pytest.approx(wilson_interval_of_share(0.75, 1.6))


def test_without_local_answers_there_is_no_local_accuracy() -> None:
    scores = score([judged(0, asked=True, cloud=True)])
    assert (scores.kept_accuracy, scores.intervals.kept_accuracy, scores.coverage) == (None, None, 0.0)


def test_report_is_json_by_family_and_level_with_the_measured_setup() -> None:
    bill = Bill(1, 30, 7)
    items = [judged(n, asked=n % 2 == 0, cloud=True, bill=bill) for n in range(6)]
    body = json.loads(json.dumps(build_report(measured(), items).to_json(), allow_nan=False))
    assert (body["schema"], body["model"], body["with_cloud"], body["cloud"]) == (1, "m", True, "coordinator")
    [family] = body["families"]
    assert (family["family"], [level["level"] for level in family["levels"]]) == ("sums", [1, 2, 3])
    assert (body["scores"]["cloud_calls"], body["extra"]) == (3, {"calls": 3, "tokens": 90, "spend_uusd": 21, "cached": 0})
    assert sum(level["scores"]["items"] for level in family["levels"]) == 6


def test_log_odds_are_ranked_by_what_is_right_when_asking_is_impossible_whoever_asked() -> None:
    wrong = [judged(number, asked=number < 6, local=False, cloud=True, help_log_odds=2.0 + number) for number in range(8)]
    right = [judged(10 + number, help_log_odds=-1.0 * number) for number in range(8)]
    ranking = score([*wrong, *right, judged(20), judged(21, local=False, help_log_odds=None)]).ranking
    assert (ranking["right"], ranking["wrong"], ranking["auc"]) == (8, 8, 1.0)
    assert "16 judged answers: tells right from wrong better than chance" in ranking["words"]
    assert "too few judged answers (1)" in score([judged(0, help_log_odds=1.0)]).ranking["words"]


def test_scores_survive_json() -> None:
    for one in (judged(0), judged(1, asked=True, cloud=False, help_log_odds=float("-inf"), bill=Bill(1, 2, 3))):
        assert Judged.from_json(json.loads(json.dumps(one.judged.to_json()))) == one.judged


# --- the curve ------------------------------------------------------------------------------------------------------------


def knowing(number: int, local: bool, log_odds: float | None, cloud: bool = True, **facts: Any) -> JudgedItem:
    return judged(number, local=local, cloud=cloud, help_log_odds=log_odds, **facts)


def test_the_curve_runs_from_forced_local_to_the_cloud() -> None:
    points = list(threshold_curve([knowing(0, False, 2.0), knowing(1, True, 1.0), knowing(2, True, -1.0, cloud=False)]))
    assert [point.threshold for point in points] == [None, 2.0, 1.0, -1.0]
    assert [round(point.assist_rate, 6) for point in points] == [0.0, 0.333333, 0.666667, 1.0]
    assert [round(point.joint_accuracy, 6) for point in points] == [0.666667, 1.0, 1.0, 0.666667]


def test_items_without_a_decision_are_never_sent() -> None:
    items = [knowing(0, False, None), knowing(1, False, 1.0)]
    quality = cost_quality(build_report(measured(), items), items)
    assert (quality.points[-1].assist_rate, quality.points[-1].joint_accuracy, quality.without_decision) == (0.5, 0.5, 0.5)


@given(st.lists(st.tuples(st.booleans(), st.floats(-5, 5)), min_size=1, max_size=30))
def test_no_threshold_beats_the_oracle_when_the_cloud_is_always_right(facts: list[tuple[bool, float]]) -> None:
    items = [knowing(number, local, log_odds) for number, (local, log_odds) in enumerate(facts)]
    quality = cost_quality(build_report(measured(), items), items)
    local = quality.forced_local_accuracy
    for point in quality.points:
        assert point.joint_accuracy <= local + min(point.assist_rate, 1 - local) + 1e-9
    json.dumps(quality.to_json(), allow_nan=False)


def test_infinite_log_odds_stay_comparable_and_can_be_written() -> None:
    items = [knowing(0, False, float("inf")), knowing(1, True, float("-inf"))]
    text = json.dumps(cost_quality(build_report(measured(), items), items).to_json(), allow_nan=False)
    assert json.loads(text)["points"][1]["joint_accuracy"] == 1.0


def test_curve_needs_every_cloud_answer() -> None:
    items = [knowing(0, True, 1.0), judged(1)]
    with pytest.raises(EdgeError, match="not known for 1 of 2 items"):
        cost_quality(build_report(measured(), items), items)
