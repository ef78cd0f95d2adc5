"""Cassettes replay what was recorded; scripts do what they are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.providers.provider import ProviderError, ProviderRequest
from coordinator.providers.recorded import RecordedProvider
from edge.core.errors import ConfigError
from edge.core.types import Message, TokenUsage
from tests.scripted_provider import ScriptedAnswer, ScriptedFailure, ScriptedHang, ScriptedProvider, always, in_turn


def asks(content: str = "a private question", key: str = "k", **changes: object) -> ProviderRequest:
    return ProviderRequest((Message("user", content),), "m", 12, 0.0, 5.0, key)


async def test_what_was_recorded_is_replayed_without_the_source(tmp_path: Path) -> None:
    cassette = tmp_path / "c.jsonl"
    source = ScriptedProvider(in_turn(ScriptedAnswer("eins"), ScriptedAnswer("zwei\n", usage=None)))
    recorder = RecordedProvider(cassette, source)
    first = [
        await recorder.complete(asks("one")),
        await recorder.complete(asks("two")),
        await recorder.complete(asks("one", "k2")),
    ]
    assert len(source.requests) == 2
    replayer = RecordedProvider(cassette)
    assert [await replayer.complete(asks(content)) for content in ("one", "two", "one")] == first
    assert replayer.input_token_bound(asks("one")) == 20


async def test_a_cassette_holds_no_prompts(tmp_path: Path) -> None:
    recorder = RecordedProvider(tmp_path / "c.jsonl", ScriptedProvider())
    await recorder.complete(asks())
    assert "private question" not in (tmp_path / "c.jsonl").read_text()


async def test_a_request_that_is_not_on_the_cassette_was_not_executed(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text("")
    with pytest.raises(ProviderError) as failed:
        await RecordedProvider(tmp_path / "c.jsonl").complete(asks())
    assert (failed.value.kind, failed.value.executed) == ("not_recorded", False)


@pytest.mark.parametrize("line", ["nonsense", "{}", '{"request": "x", "result": {"text": "a"}}', '{"request": "x", "result": 3}'])
async def test_a_bad_line_of_a_cassette_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "c.jsonl").write_text(f"\n{line}\n")
    with pytest.raises(ConfigError, match=r"c\.jsonl:2"):
        await RecordedProvider(tmp_path / "c.jsonl").start()


async def test_a_missing_cassette_is_an_error_only_for_a_replayer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        await RecordedProvider(tmp_path / "none.jsonl").start()
    await RecordedProvider(tmp_path / "none.jsonl", ScriptedProvider()).start()


async def test_calls_of_tools_are_recorded_under_their_request_and_played_again(tmp_path: Path) -> None:
    called = '{"tool_calls":[]}'
    wanted = replace(asks(), openai_json='{"tools":[]}')
    source = ScriptedProvider(always(ScriptedAnswer("", finish="tool_calls", beyond_text=called)))
    await RecordedProvider(tmp_path / "c.jsonl", source).complete(wanted)
    player = RecordedProvider(tmp_path / "c.jsonl")
    assert (await player.complete(wanted)).beyond_text == called
    with pytest.raises(ProviderError, match="no answer"):
        await player.complete(asks())


async def test_a_failure_of_the_source_is_not_recorded(tmp_path: Path) -> None:
    recorder = RecordedProvider(tmp_path / "c.jsonl", ScriptedProvider(in_turn(ScriptedFailure(), ScriptedAnswer("late"))))
    with pytest.raises(ProviderError):
        await recorder.complete(asks())
    assert (await recorder.complete(asks())).text == "late"


async def test_a_script_plays_its_acts_in_turn_and_remembers_what_was_asked() -> None:
    failure = ScriptedFailure("http_429", executed=False, retry_after_s=3.0, usage=TokenUsage(1, 2))
    provider = ScriptedProvider(in_turn(ScriptedAnswer("a"), failure, ScriptedAnswer("b")))
    assert (await provider.complete(asks(key="1"))).text == "a"
    with pytest.raises(ProviderError) as failed:
        await provider.complete(asks(key="2"))
    assert (failed.value.executed, failed.value.retry_after_s, failed.value.usage) == (False, 3.0, TokenUsage(1, 2))
    assert [(await provider.complete(asks(key=key))).text for key in "34"] == ["b", "b"]
    assert [request.idempotency_key for request in provider.requests] == ["1", "2", "3", "4"]


async def test_a_scripted_stream_can_break_off_after_some_text() -> None:
    provider = ScriptedProvider(always(ScriptedFailure("cut", text_before="half an")))
    pieces = provider.stream(asks())
    assert (await anext(pieces)).text == "half an"
    with pytest.raises(ProviderError):
        await anext(pieces)


async def test_a_hanging_script_ends_at_the_deadline() -> None:
    request = ProviderRequest((Message("user", "x"),), "m", 12, 0.0, 0.01, "k")
    with pytest.raises(ProviderError) as failed:
        await ScriptedProvider(always(ScriptedHang())).complete(request)
    assert (failed.value.kind, failed.value.executed) == ("deadline", None)
