"""Recorded cloud answers in one format for device and coordinator, and interrupted evaluations."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.config import UpstreamConfig
from coordinator.providers.provider import ProviderRequest
from coordinator.providers.recorded import RecordedProvider
from edge.cloud.group_calls import CloudOutcome
from edge.core.errors import ConfigError, StateError
from edge.core.types import Message, TokenUsage
from edge.evaluation.cloud import RecordingAnswers, ReplayedAnswers, digest_of
from edge.evaluation.evaluate import bill_of
from edge.evaluation.judging import WRONG, Bill, Judged, RolloutSettings, Verdict
from edge.evaluation.plan import Journal
from edge.rpc.cassette import RecordedAnswer, append_answer
from edge.rpc.client import CloudCall, CloudCompletion


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
