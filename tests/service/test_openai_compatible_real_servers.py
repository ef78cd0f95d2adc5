"""The OpenAI-compatible provider with real servers: llama-cpp-python's server with nano-cloud, and LiteLLM's proxy in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from coordinator.providers.openai_compatible import OpenAICompatibleProvider
from coordinator.providers.provider import ProviderDelta, ProviderError, ProviderRequest
from edge.core.types import Message
from tests.worlds.real_servers import API_KEY, MODEL, RealServer, litellm_proxy, llama_server
from tests.worlds.upstream_server import openai_provider, provider_request

MISSING = [
    name for name in ("uvicorn", "fastapi", "sse_starlette", "starlette_context", "pydantic_settings") if find_spec(name) is None
]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"llama-cpp-python's server needs {', '.join(MISSING)}")
TOO_LONG = (Message("user", "too long " * 1_000),)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with llama_server(tmp_path_factory.mktemp("llama")) as server:
        yield server


@pytest.fixture(scope="module")
def litellm(llama: RealServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with litellm_proxy(tmp_path_factory.mktemp("litellm"), llama) as server:
        yield server


@pytest.fixture(params=["llama", pytest.param("litellm", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> RealServer:
    found: RealServer = request.getfixturevalue(request.param)
    return found


@asynccontextmanager
async def provider_of(server: RealServer, key: str = API_KEY, **settings: Any) -> AsyncIterator[OpenAICompatibleProvider]:
    provider = openai_provider(server.base_url, key, **settings)
    try:
        yield provider
    finally:
        await provider.aclose()


def asks(deadline_s: float = 60.0, **changes: Any) -> ProviderRequest:
    return replace(provider_request(deadline_s=deadline_s, content="What is 3 + 4?"), **{"model": MODEL, **changes})


async def streamed(provider: OpenAICompatibleProvider, request: ProviderRequest) -> list[ProviderDelta]:
    return [piece async for piece in provider.stream(request)]


async def failure(provider: OpenAICompatibleProvider, request: ProviderRequest, streams: bool) -> ProviderError:
    with pytest.raises(ProviderError) as failed:
        await (streamed(provider, request) if streams else provider.complete(request))
    return failed.value


async def test_completion_has_text_a_finish_reason_and_usage_within_the_bounds(server: RealServer) -> None:
    async with provider_of(server) as provider:
        result = await provider.complete(asks())
        assert result.text and result.upstream_id and result.finish in ("stop", "length")
        assert result.usage is not None
        assert 0 < result.usage.input_tokens <= provider.input_token_bound(asks())
        assert 0 < result.usage.output_tokens <= asks().max_output_tokens


async def test_a_stream_brings_the_same_in_pieces(server: RealServer) -> None:
    """LiteLLM removes the text between think tags from whole answers but leaves it in streams."""
    async with provider_of(server) as provider:
        whole = await provider.complete(asks())
        pieces = await streamed(provider, asks())
        last = pieces[-1].result
        assert last is not None and len(pieces) > 2
        assert "".join(piece.text for piece in pieces) == last.text
        assert last.text.endswith(whole.text) and (server.name == "litellm" or last.text == whole.text)
        assert last.finish == whole.finish
        assert last.usage is None or 0 < last.usage.output_tokens <= asks().max_output_tokens


async def test_a_prompt_beyond_the_context_is_refused(server: RealServer) -> None:
    async with provider_of(server) as provider:
        error = await failure(provider, asks(messages=TOO_LONG), streams=False)
        assert (error.kind, error.executed) == ("http_400", False)


async def test_a_stream_that_a_server_ends_empty_instead_of_refusing_it_is_no_answer(server: RealServer) -> None:
    """Both servers send 200 before they check the prompt's length; LiteLLM even reports a finished answer."""
    async with provider_of(server) as provider:
        error = await failure(provider, asks(messages=TOO_LONG), streams=True)
        assert (error.kind, error.executed, error.usage) == ("garbage", True, None)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_wrong_key_is_refused(server: RealServer, streams: bool) -> None:
    async with provider_of(server, key="sk-wrong") as provider:
        error = await failure(provider, asks(), streams)
        assert error.executed is False and "sk-wrong" not in str(error)
        assert error.kind == ("http_401" if server.name == "llama" else "http_400")  # a LiteLLM without a database knows no keys


@pytest.mark.parametrize("streams", [False, True])
async def test_total_deadline_applies_and_the_server_survives(server: RealServer, streams: bool) -> None:
    async with provider_of(server) as provider:
        error = await failure(provider, asks(deadline_s=0.002), streams)
        assert error.kind in ("deadline", "connect_timeout")
        assert (await provider.complete(asks())).text


@pytest.mark.long
@pytest.mark.parametrize("streams", [False, True])
async def test_rate_limited_proxy_did_not_execute(litellm: RealServer, streams: bool) -> None:
    async with provider_of(litellm) as provider:
        error = await failure(provider, asks(model="busy"), streams)
        assert (error.kind, error.executed) == ("http_429", False)


@pytest.mark.long
@pytest.mark.parametrize("streams", [False, True])
async def test_proxy_with_a_dead_upstream_leaves_execution_unknown(litellm: RealServer, streams: bool) -> None:
    async with provider_of(litellm) as provider:
        error = await failure(provider, asks(model="dead"), streams)
        assert (error.kind, error.executed) == ("http_500", None)
