"""Requests with tools: who is asked, what is answered where nobody can call them, and what is kept of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge.answering.draft import finish_of
from edge.core.errors import BudgetExhausted, CoordinatorUnavailable, InvalidRequest, Unsupported
from edge.core.types import BeyondText
from tests.unit.agent_world import World, local_answer

SENT = json.dumps({"tools": [{"type": "function", "function": {"name": "weather"}}]})
TOOLS = BeyondText(SENT, ("tools",))
REFUSALS = [BudgetExhausted("no calls left"), CoordinatorUnavailable("gone"), InvalidRequest("this cloud LLM calls no tools")]


def world_of(tmp_path: Path, **options: Any) -> World:
    return World(tmp_path / "state", script=[local_answer(5)], **options)


@pytest.mark.parametrize("mode", ["auto", "prefer-local", "cloud-only"])
async def test_tools_are_asked_of_the_cloud_at_once_and_untouched(tmp_path: Path, mode: str) -> None:
    world = world_of(tmp_path, mode=mode)
    record, _ = await world.ask(beyond=TOOLS)
    assert (record.source, record.local_text, record.completion_tokens) == ("cloud", "", 0)
    assert record.reason == "tools: only the cloud follows this"
    assert [call.openai_json for call in world.client.calls] == [SENT]


@pytest.mark.parametrize("mode", ["auto", "cloud-only"])
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_where_the_cloud_fails_there_is_no_answer_without_tools(tmp_path: Path, mode: str, refusal: Any) -> None:
    world = world_of(tmp_path, mode=mode)
    world.client.fail_next("stream_complete", refusal)
    with pytest.raises(Unsupported if isinstance(refusal, InvalidRequest) else type(refusal), match=str(refusal)):
        await world.ask(beyond=TOOLS)


@pytest.mark.parametrize(
    "options", [{"mode": "local-only"}, {"switched_off": "switched off"}, {"switched_off": "off", "mode": "cloud-only"}]
)
async def test_where_the_cloud_is_not_asked_tools_are_refused_before_anything_is_said(tmp_path: Path, options: Any) -> None:
    world = world_of(tmp_path, **options)
    with pytest.raises(Unsupported) as caught:
        await world.ask(beyond=TOOLS)
    assert (caught.value.parameter, world.client.calls) == ("tools", [])


async def test_tools_that_may_not_be_used_go_along_only_when_the_model_asks(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    record, _ = await world.ask(beyond=BeyondText(SENT))
    assert (record.source, world.client.calls) == ("local", [])


def test_only_words_of_openais_say_why_a_completion_ended() -> None:
    assert finish_of('{"finish_reason": "tool_calls"}') == "tool_calls"
    assert [finish_of(told) for told in ("", "{}", '{"finish_reason": "odd"}', '{"finish_reason": []}')] == [""] * 4
