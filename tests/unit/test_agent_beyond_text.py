"""Requests with tools: who is asked, the answer where nobody can call them, and the stored record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge.answering.draft import finish_of
from edge.core.errors import BudgetExhausted, CoordinatorUnavailable, InvalidRequest, Unsupported
from edge.core.types import BeyondText
from tests.worlds.agent import World, local_answer

SENT = json.dumps({"tools": [{"type": "function", "function": {"name": "weather"}}]})
TOOLS = BeyondText(SENT, ("tools",))
REFUSALS = [BudgetExhausted("no calls left"), CoordinatorUnavailable("gone"), InvalidRequest("this cloud LLM calls no tools")]


def world_of(tmp_path: Path, **options: Any) -> World:
    return World(tmp_path / "state", script=[local_answer(5)], **options)


@pytest.mark.parametrize("mode", ["auto", "cloud-only"])
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_cloud_failure_with_tools_is_no_answer(tmp_path: Path, mode: str, refusal: Any) -> None:
    world = world_of(tmp_path, mode=mode)
    world.client.fail_next("stream_complete", refusal)
    with pytest.raises(Unsupported if isinstance(refusal, InvalidRequest) else type(refusal), match=str(refusal)):
        await world.ask(beyond=TOOLS)


@pytest.mark.parametrize(
    "options", [{"mode": "local-only"}, {"switched_off": "switched off"}, {"switched_off": "off", "mode": "cloud-only"}]
)
async def test_tools_are_refused_before_any_text_where_the_cloud_is_not_asked(tmp_path: Path, options: Any) -> None:
    world = world_of(tmp_path, **options)
    with pytest.raises(Unsupported) as caught:
        await world.ask(beyond=TOOLS)
    assert (caught.value.parameter, world.client.calls) == ("tools", [])


async def test_optional_tools_are_sent_only_when_the_model_asks(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    record, _ = await world.ask(beyond=BeyondText(SENT))
    assert (record.source, world.client.calls) == ("local", [])


def test_finish_reason_is_always_one_of_openais() -> None:
    assert finish_of('{"finish_reason": "tool_calls"}') == "tool_calls"
    assert [finish_of(text) for text in ("", "{}", '{"finish_reason": "odd"}', '{"finish_reason": []}')] == [""] * 4
