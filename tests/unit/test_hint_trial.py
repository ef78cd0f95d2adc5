"""The trial of hints: the same items with and without, and a positive verdict only on evidence."""

from __future__ import annotations

import pytest

from edge.cloud.group_calls import GroupCalls
from edge.cloud.hints import LEAD
from edge.core.errors import CoordinatorUnavailable
from edge.evaluation.cloud import RecordingAnswers
from edge.evaluation.evaluate import EvalRoles
from edge.evaluation.hint_trial import HintTrial, Pair, Reply, hint_report, trial_rng
from edge.evaluation.judging import Candidate, RolloutSettings
from edge.privacy.registry import PrivacyRegistry
from edge.routing.policy import SelfOffload
from edge.testing.backend import ScriptedBackend
from edge.testing.coordinator import ScriptedCoordinatorClient
from edge.verifiers.math_answer import ExactMathAnswer
from tests.worlds.agent import item, local_answer, number_in

STEPS = "<think>\nStep 1: ask jo@x.org of Falcon\n</think>\nI need external assistance."
SETTINGS = RolloutSettings("run", 7, 2, 0.0, 64, "compact", "compact", 64, hint_cut=PrivacyRegistry(terms=["Falcon"]).cut)


def reply(right: bool, tokens: int = 100, spend_uusd: int = 50, cached: bool = False) -> Reply:
    return Reply(right, tokens // 2, tokens - tokens // 2, spend_uusd, cached)


def pairs(count: int, without: Reply, hinted: Reply) -> list[Pair]:
    return [Pair(f"{number}", without, hinted) for number in range(count)]


def report_of(found: list[Pair], margin: float = 0.03):
    return hint_report(found, len(found), len(found), 400, margin, trial_rng(0))


def asking_in_part(messages, sampling, seed) -> str:
    number = number_in(messages[-1].content)
    return STEPS if number % 2 else local_answer(number + 1)


def trial(client: ScriptedCoordinatorClient, record=None, tag: str = "t") -> HintTrial:
    desk = GroupCalls(client, 5.0)
    cloud = desk if record is None else RecordingAnswers(record, desk, "compact")
    roles = EvalRoles(ScriptedBackend(asking_in_part), ExactMathAnswer(), SelfOffload(), cloud)
    return HintTrial(roles, SETTINGS, 200, tag)


def right_without_hints(call) -> str:
    question = call.messages[-1].content
    return "no idea" if LEAD in question else local_answer(number_in(question) + 1)


async def test_items_that_ask_are_sent_twice_with_and_without_the_redacted_steps() -> None:
    client = ScriptedCoordinatorClient(right_without_hints)
    asked = trial(client)
    found = await asked.run([Candidate(item(number)) for number in range(6)])
    assert asked.asked == len(found) == 3 and len(client.calls) == 6
    assert all(pair.without.right and not pair.hinted.right for pair in found)
    hinted = [call.messages[-1].content for call in client.calls if LEAD in call.messages[-1].content]
    assert len(hinted) == 3 and all(text.endswith("Step 1: ask [cut] of [cut]") for text in hinted)


async def test_interrupted_trial_resumes_without_paying_twice(tmp_path) -> None:
    client = ScriptedCoordinatorClient(right_without_hints)
    client.fail_next("complete", CoordinatorUnavailable("away"), times=1)
    candidates = [Candidate(item(number)) for number in range(6)]
    first = await trial(client, tmp_path / "record.jsonl").run(candidates)
    assert sum(bool(pair.failure) for pair in first) == 1
    paid = len(client.calls)
    second = await trial(client, tmp_path / "record.jsonl", "later").run(candidates)
    assert not any(pair.failure for pair in second) and len(client.calls) == paid + 1


def test_hints_pay_when_equally_good_answers_cost_less_or_gains_exceed_the_cost() -> None:
    report = report_of(pairs(160, reply(True, spend_uusd=100), reply(True, spend_uusd=60)))
    assert (report.verdict, report.setting, report.cost_unit) == ("pays", "coordinator.hint_chars=400", "uusd")
    assert report.ratio is not None and report.ratio[1] == pytest.approx(0.6)
    dearer = reply(True, spend_uusd=55)
    assert report_of(pairs(60, reply(True), dearer) + pairs(150, reply(False), dearer)).verdict == "pays"


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([], "not known"),
        (pairs(10, reply(True, spend_uusd=100), reply(True, spend_uusd=10)), "not known"),
        (pairs(40, reply(True, spend_uusd=100), reply(True, spend_uusd=10)), "not known"),
        (pairs(160, reply(True), reply(True)), "does not pay"),
        (pairs(160, reply(True, spend_uusd=100), reply(False, spend_uusd=10)), "does not pay"),
        (pairs(160, reply(False), reply(False)), "not known"),
        (
            pairs(80, reply(True, spend_uusd=100), reply(True, spend_uusd=60)) + pairs(40, reply(True), reply(False)),
            "does not pay",
        ),
    ],
)
def test_hints_stay_off_in_every_other_case(found: list[Pair], verdict: str) -> None:
    report = report_of(found)
    assert report.verdict == verdict and report.setting == "coordinator.hint_chars=0"


def test_cached_answers_are_compared_by_tokens() -> None:
    found = pairs(160, reply(True, 100, 0, cached=True), reply(True, 80, 40))
    assert (report_of(found).cost_unit, report_of(found).verdict) == ("tokens", "pays")
