"""Cassettes replay what was recorded, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.config import UpstreamConfig
from coordinator.providers.provider import ProviderError, ProviderRequest, ProviderResult
from coordinator.providers.recorded import RecordedProvider
from edge.core.errors import ConfigError
from edge.core.types import Message, TokenUsage
from tests.worlds.coordinator import CALLED, TOOLS, ProgrammedProvider
from tests.worlds.recordings import record


def asks(content: str = "a private question", key: str = "k", **changes: object) -> ProviderRequest:
    return ProviderRequest((Message("user", content),), "m", 12, 0.0, 5.0, key)


def player(cassette: Path) -> RecordedProvider:
    return RecordedProvider(UpstreamConfig(provider="recorded", path=str(cassette)), "test")


async def two_answers(request: ProviderRequest) -> ProviderResult:
    if request.messages[0].content == "two":
        return ProviderResult("zwei\n", None, "up", "stop")
    return ProviderResult("eins", TokenUsage(20, 10), "up", "stop")


async def test_recorded_answer_is_replayed_under_any_key(tmp_path: Path) -> None:
    cassette, source = tmp_path / "c.jsonl", ProgrammedProvider(two_answers)
    first = [await record(cassette, asks(content), source) for content in ("a private question", "two")]
    assert "private question" not in cassette.read_text()
    replayer = player(cassette)
    assert [await replayer.complete(asks(content, key="k2")) for content in ("a private question", "two")] == first


async def test_request_missing_on_the_cassette_was_not_executed(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text("")
    with pytest.raises(ProviderError) as failed:
        await player(tmp_path / "c.jsonl").complete(asks())
    assert (failed.value.kind, failed.value.executed) == ("not_recorded", False)


USAGE_BELOW_NOTHING = (
    '{"request": "x", "result": {"text": "", "usage": {"input_tokens": -1, "output_tokens": 1}, "upstream_id": "", "finish": "", '
    '"beyond_text": ""}, "charged_uusd": 0, "cached": false, "model": "m", "max_output_tokens": 12, "prompt_form": "full"}'
)


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[]", "{}", '{"request": "x", "result": {"text": "a"}}', '{"request": "x", "result": 3}', USAGE_BELOW_NOTHING],
)
async def test_bad_cassette_line_and_a_missing_cassette_are_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "c.jsonl").write_text(f"\n{line}\n")
    with pytest.raises(ConfigError, match=r"c\.jsonl:2"):
        await player(tmp_path / "c.jsonl").start()
    with pytest.raises(ConfigError, match="cannot be read"):
        await player(tmp_path / "none.jsonl").start()


async def test_requests_with_and_without_tools_are_told_apart(tmp_path: Path) -> None:
    await record(tmp_path / "c.jsonl", replace(asks(), openai_json=TOOLS), ProgrammedProvider())
    assert (await player(tmp_path / "c.jsonl").complete(replace(asks(), openai_json=TOOLS))).beyond_text == CALLED
    with pytest.raises(ProviderError, match="no answer"):
        await player(tmp_path / "c.jsonl").complete(asks())
