"""Cassettes replay what was recorded, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.config import UpstreamConfig
from coordinator.providers.provider import ProviderError, ProviderRequest
from coordinator.providers.recorded import RecordedProvider
from edge.core.errors import ConfigError
from edge.core.types import Message
from tests.scripted_provider import ScriptedAnswer, ScriptedProvider, always, in_turn, record


def asks(content: str = "a private question", key: str = "k", **changes: object) -> ProviderRequest:
    return ProviderRequest((Message("user", content),), "m", 12, 0.0, 5.0, key)


def player(cassette: Path) -> RecordedProvider:
    return RecordedProvider(UpstreamConfig(provider="recorded", path=str(cassette)), "test")


async def test_recorded_answer_is_replayed_under_any_key(tmp_path: Path) -> None:
    cassette = tmp_path / "c.jsonl"
    source = ScriptedProvider(in_turn(ScriptedAnswer("eins"), ScriptedAnswer("zwei\n", usage=None)))
    first = [await record(cassette, asks(content), source) for content in ("a private question", "two")]
    assert "private question" not in cassette.read_text()
    replayer = player(cassette)
    assert [await replayer.complete(asks(content, key="k2")) for content in ("a private question", "two")] == first


async def test_request_missing_on_the_cassette_was_not_executed(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text("")
    with pytest.raises(ProviderError) as failed:
        await player(tmp_path / "c.jsonl").complete(asks())
    assert (failed.value.kind, failed.value.executed) == ("not_recorded", False)


@pytest.mark.parametrize("line", ["nonsense", "{}", '{"request": "x", "result": {"text": "a"}}', '{"request": "x", "result": 3}'])
async def test_bad_cassette_line_and_a_missing_cassette_are_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "c.jsonl").write_text(f"\n{line}\n")
    with pytest.raises(ConfigError, match=r"c\.jsonl:2"):
        await player(tmp_path / "c.jsonl").start()
    with pytest.raises(ConfigError, match="cannot be read"):
        await player(tmp_path / "none.jsonl").start()


async def test_tool_calls_are_recorded_by_request_and_replayed(tmp_path: Path) -> None:
    called = '{"tool_calls":[]}'
    wanted = replace(asks(), openai_json='{"tools":[]}')
    source = ScriptedProvider(always(ScriptedAnswer("", finish="tool_calls", beyond_text=called)))
    await record(tmp_path / "c.jsonl", wanted, source)
    assert (await player(tmp_path / "c.jsonl").complete(wanted)).beyond_text == called
    with pytest.raises(ProviderError, match="no answer"):
        await player(tmp_path / "c.jsonl").complete(asks())
