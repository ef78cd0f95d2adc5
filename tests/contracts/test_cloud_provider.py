"""The contract of CloudProvider, over every provider."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from coordinator.config import UpstreamConfig
from coordinator.providers.bundled import BundledProvider
from coordinator.providers.provider import CloudProvider, ProviderError, ProviderRequest, ProviderResult, why_not_openai
from coordinator.providers.recorded import RecordedProvider
from edge.core.types import Message, TokenUsage
from tests.worlds import anthropic_traffic as traffic
from tests.worlds.coordinator import TOOLS, ProgrammedProvider
from tests.worlds.recordings import record
from tests.worlds.tiny_gguf import write_tiny_model
from tests.worlds.upstream_server import (
    answers,
    completion,
    delta,
    in_turn,
    openai_provider,
    running_upstream,
    sends,
    tool_answer,
    tool_stream,
)
from tools.simulate.faults.upstream import SimulatedUpstream, UpstreamMood

TOOL_CALLS = [{"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}]
TOOL_ANSWER = tool_answer(TOOL_CALLS)
TOOL_STREAM = tool_stream(TOOL_CALLS)
Opener = Callable[[Path], AbstractAsyncContextManager[CloudProvider]]
_keys = itertools.count()
HOW_MUCH = "How much is 6 times 7?"
PROMPTS = ("", "x", "Wörter " * 30)


def asks(content: str = HOW_MUCH, deadline_s: float = 30.0) -> ProviderRequest:
    return ProviderRequest((Message("user", content),), "m", 12, 0.0, deadline_s, f"d1|k{next(_keys)}|1")


def wants_tools() -> ProviderRequest:
    return replace(asks(), openai_json=TOOLS)


async def forty_two(request: ProviderRequest) -> ProviderResult:
    if request.openai_json:
        return ProviderResult("", TokenUsage(2, 3), "up", "tool_calls", json.dumps({"tool_calls": TOOL_CALLS}))
    await asyncio.sleep(0.05)
    return ProviderResult("forty two", TokenUsage(2, 3), "up", "stop")


@asynccontextmanager
async def programmed(folder: Path) -> AsyncIterator[CloudProvider]:
    yield ProgrammedProvider(forty_two)


@asynccontextmanager
async def recorded(folder: Path) -> AsyncIterator[CloudProvider]:
    source = ProgrammedProvider(forty_two)
    for request in (*map(asks, (HOW_MUCH, *PROMPTS, "to be cancelled")), wants_tools()):
        await record(folder / "cassette.jsonl", request, source)
    yield RecordedProvider(UpstreamConfig(provider="recorded", path=str(folder / "cassette.jsonl")), "test")


@asynccontextmanager
async def bundled(folder: Path) -> AsyncIterator[CloudProvider]:
    yield BundledProvider(UpstreamConfig(path=str(write_tiny_model(folder / "tiny.gguf").path), max_concurrency=4), "test")


@asynccontextmanager
async def openai_compatible(folder: Path) -> AsyncIterator[CloudProvider]:
    async def behave(request):  # type: ignore[no-untyped-def]
        await asyncio.sleep(0.05)
        body = await request.json()
        if "tools" in body:
            return await (sends(*TOOL_STREAM) if body["stream"] else answers(TOOL_ANSWER))(request)
        if body["stream"]:
            return await sends(delta("forty "), delta("two", "stop"))(request)
        return await in_turn(answers(completion()))(request)

    async with running_upstream(behave) as upstream:
        yield openai_provider(upstream.base_url)


@asynccontextmanager
async def anthropic(folder: Path) -> AsyncIterator[CloudProvider]:
    async def behave(request):  # type: ignore[no-untyped-def]
        await asyncio.sleep(0.05)
        body = await request.json()
        stream, whole = (
            (traffic.TOOL_STREAM, traffic.TOOL_MESSAGE) if "tools" in body else (traffic.WHOLE_STREAM, traffic.message())
        )
        return await (sends(*stream) if body["stream"] else answers(whole))(request)

    async with traffic.playing(behave) as upstream:
        yield traffic.anthropic_provider(upstream.base_url)


@asynccontextmanager
async def simulated(folder: Path) -> AsyncIterator[CloudProvider]:
    yield SimulatedUpstream(asyncio.get_running_loop(), Random(1), UpstreamMood({}, slow_s=0.02))


@pytest.fixture(params=[programmed, recorded, bundled, openai_compatible, anthropic, simulated])
async def provider(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CloudProvider]:
    opener: Opener = request.param
    async with opener(tmp_path) as provider:
        await provider.start()
        yield provider
        await provider.aclose()


async def test_starting_or_closing_twice_is_harmless(provider: CloudProvider) -> None:
    await provider.start()
    assert (await provider.complete(asks())).finish
    await provider.aclose()


async def test_many_concurrent_calls_are_all_answered(provider: CloudProvider) -> None:
    request = asks()
    results = await asyncio.gather(*(provider.complete(request) for _ in range(10)))
    assert len({(result.text, result.finish) for result in results}) == 1


async def test_streamed_pieces_join_to_the_result_text(provider: CloudProvider) -> None:
    pieces = [piece async for piece in provider.stream(asks())]
    result = pieces[-1].result
    assert result is not None
    assert "".join(piece.text for piece in pieces) == result.text
    assert all(piece.result is None for piece in pieces[:-1])


async def test_input_bound_is_never_below_the_billed_tokens(provider: CloudProvider) -> None:
    for content in PROMPTS:
        request = asks(content)
        bound = provider.input_token_bound(request)
        usage = (await provider.complete(request)).usage
        assert usage is None or usage.input_tokens <= bound


@pytest.mark.parametrize("provider", [bundled, openai_compatible, anthropic, simulated], indirect=True)
async def test_deadline_ends_a_slow_call(provider: CloudProvider) -> None:
    with pytest.raises(ProviderError) as failed:
        await provider.complete(asks("deadline", deadline_s=1e-6))
    assert failed.value.kind in ("deadline", "connect_timeout")


async def test_a_cancelled_call_leaves_the_provider_usable(provider: CloudProvider) -> None:
    asking = asyncio.create_task(provider.complete(asks("to be cancelled")))
    await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert (await provider.complete(asks())).finish


async def test_a_stream_left_early_leaves_the_provider_usable(provider: CloudProvider) -> None:
    pieces = provider.stream(asks())
    await anext(pieces)
    await pieces.aclose()
    assert (await provider.complete(asks())).finish


@pytest.mark.parametrize("provider", [bundled, openai_compatible, anthropic], indirect=True)
async def test_closed_provider_is_not_opened_again(provider: CloudProvider) -> None:
    await provider.aclose()
    with pytest.raises(ProviderError) as failed:
        await provider.complete(asks())
    assert (failed.value.kind, failed.value.executed) == ("closed", False)


@pytest.mark.parametrize("provider", [programmed, recorded, openai_compatible, anthropic], indirect=True)
async def test_tool_calls_are_returned_in_openai_form_whole_and_streamed(provider: CloudProvider) -> None:
    assert why_not_openai(provider, TOOLS) == ""
    whole = await provider.complete(wants_tools())
    streamed = [piece async for piece in provider.stream(wants_tools())][-1].result
    for result in (whole, streamed):
        assert result is not None and (result.text, result.finish) == ("", "tool_calls")
        (called,) = json.loads(result.beyond_text)["tool_calls"]
        assert (called["id"], called["type"], called["function"]["name"]) == ("call_1", "function", "add")
        assert json.loads(called["function"]["arguments"]) == {"a": 2}


@pytest.mark.parametrize("provider", [programmed, recorded, openai_compatible, anthropic], indirect=True)
async def test_openai_fields_raise_the_input_bound_by_at_least_their_bytes(provider: CloudProvider) -> None:
    request = replace(asks("not asked before"), openai_json=TOOLS)
    long = replace(request, openai_json=json.dumps({"messages": [{"role": "user", "content": "w" * 5000}]}))
    plain = provider.input_token_bound(replace(request, openai_json=""))
    assert provider.input_token_bound(request) >= plain + len(TOOLS) // 2
    assert provider.input_token_bound(long) >= 5000


@pytest.mark.parametrize("provider", [bundled, simulated], indirect=True)
async def test_provider_without_tool_support_declares_it(provider: CloudProvider) -> None:
    assert why_not_openai(provider, TOOLS) == "this upstream cannot call tools"
    assert (
        why_not_openai(provider, '{"response_format": {"type": "json_object"}}') == "this upstream cannot follow response_format"
    )
