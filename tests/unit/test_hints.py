"""Hints: which parts of a local attempt may be sent, and the trial that tells whether they pay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.cloud.group_calls import GroupCalls
from edge.cloud.hints import LEAD, hint_of, with_hint
from edge.config.schema import AgentConfig
from edge.core.errors import CoordinatorUnavailable
from edge.core.types import Message
from edge.evaluation.cloud import RecordingAnswers
from edge.evaluation.evaluate import EvalRoles
from edge.evaluation.hint_trial import HintTrial, Pair, Reply, hint_report, trial_rng
from edge.evaluation.judging import Candidate, RolloutSettings
from edge.privacy.registry import MOST_DIGITS, PrivacyRegistry, private_cut
from edge.routing.policy import SelfOffload
from edge.testing.backend import ScriptedBackend
from edge.testing.coordinator import ScriptedCoordinatorClient
from edge.verifiers.math_answer import ExactMathAnswer
from tests.worlds.agent import item, local_answer, number_in

ASKED = (Message("system", "be brief"), Message("user", "What is 2+2?"))


@pytest.mark.parametrize(
    "private",
    [
        "jo.doe+x@mail.example.org",
        "sk-abcdefghijklmnopqrstuvwx",
        "ghp_abcdefghijklmnop1234",
        "eyJhbGciOi.eyJzdWIi.c2ln",
        "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----",
        "4111 1111 1111 1111",
        "4111-1111-1111-1111",
        "+49 170 1234567",
        "0049/170/1234567",
        "DE89370400440532013000",
        "123456789",
        "1,234,567,890",
        "AbCdEf0123456789AbCdEf01",
        "password: hunter2",
        "api_key=abc123",
        "Authorization: Bearer abcdef123456",
    ],
)
def test_addresses_keys_secrets_and_long_numbers_are_cut(private) -> None:
    text = private_cut(f"first {private} then")
    assert "[cut]" in text and text.startswith("first ") and text.endswith(" then")
    assert private.split("\n")[-1][-6:] not in text


@pytest.mark.parametrize("plain", ["Step 1: 123 + 4567 = 4690", "2024-11-22", "1/2 + 3/4 = 5/4", "3.14159", "x = 12345678"])
def test_ordinary_steps_stay(plain) -> None:
    assert private_cut(plain) == plain


@given(st.integers(min_value=10**MOST_DIGITS, max_value=10**40), st.text("abc .,", max_size=20))
def test_no_number_of_more_than_eight_digits_remains(number, around) -> None:
    assert str(number) not in private_cut(f"{around} {number} {around}")


def test_hint_is_the_text_before_the_help_request_without_tags() -> None:
    local = "<think>\nStep 1: 2 and 2\n</think>\nI need external assistance."
    assert hint_of(local, 100) == "Step 1: 2 and 2"


@given(st.text(max_size=300), st.integers(min_value=1, max_value=50))
def test_a_hint_is_never_longer_than_allowed(local, most) -> None:
    assert len(hint_of(local, most)) <= most


def test_hint_is_redacted_before_truncation() -> None:
    assert hint_of("call 123456789012 now", 12) == "call [cut] n"


def test_hints_are_off_by_default_and_an_empty_attempt_gives_none() -> None:
    assert AgentConfig().coordinator.hint_chars == 0
    assert with_hint(ASKED, "some steps", 0) == ASKED == with_hint(ASKED, "<think> </think>", 10)
    first, last = with_hint(ASKED, "some steps", 100)
    assert first == ASKED[0] and last.content.startswith("What is 2+2?\n\n") and last.content.endswith("\nsome steps")


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
