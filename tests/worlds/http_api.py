"""The APIs that upstreams have over HTTP, each with its provider and a server on loopback that behaves as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.providers.provider import CloudProvider, ProviderDelta, ProviderError, ProviderRequest, ProviderResult
from edge.rpc.grpc_client import GrpcCoordinatorClient
from tests.worlds import anthropic_traffic as anthropic
from tests.worlds.coordinator import connected, running_coordinator
from tests.worlds.upstream_server import (
    Behaviour,
    Upstream,
    completion,
    delta,
    openai_provider,
    provider_request,
    running_upstream,
)

API_KEY = "sk-very-secret"


@dataclass(frozen=True)
class Api:
    """One of them."""

    name: str
    path: str
    provider: Callable[..., CloudProvider]
    answer: Callable[..., dict[str, Any]]
    """A whole answer, "forty-two" for 12 tokens in and 3 out, with changes."""
    begun: tuple[bytes, ...]
    """A stream before its first text."""
    text: Callable[[str], bytes]
    """An event that brings text."""

    def __str__(self) -> str:
        return self.name


OPENAI = Api("openai", "/v1/chat/completions", openai_provider, completion, (), delta)
ANTHROPIC = Api(
    "anthropic",
    "/v1/messages",
    anthropic.anthropic_provider,
    anthropic.message,
    (anthropic.START, anthropic.BLOCK),
    anthropic.text,
)


@asynccontextmanager
async def provider_for(api: Api, behaviour: Behaviour, **settings: Any) -> AsyncIterator[tuple[Any, Upstream]]:
    """A started provider with a key, and the server that it asks."""
    async with running_upstream(behaviour, api.path) as upstream:
        provider = api.provider(upstream.base_url, API_KEY, **settings)
        await provider.start()
        try:
            yield provider, upstream
        finally:
            await provider.aclose()


async def pieces_of(provider: CloudProvider, request: ProviderRequest | None = None) -> list[ProviderDelta]:
    """All pieces of a streamed answer."""
    return [piece async for piece in provider.stream(request or provider_request())]


async def result_of(api: Api, behaviour: Behaviour, *, streams: bool = False, **settings: Any) -> ProviderResult:
    """What a request is answered with, whole or at the end of its stream."""
    async with provider_for(api, behaviour, **settings) as (provider, _):
        if not streams:
            whole: ProviderResult = await provider.complete(provider_request())
            return whole
        result = (await pieces_of(provider))[-1].result
        assert result is not None
        return result


async def failure(
    api: Api, behaviour: Behaviour, request: ProviderRequest | None = None, *, streams: bool = False, **settings: Any
) -> tuple[ProviderError, int]:
    """How a request fails, and how many reached the server."""
    async with provider_for(api, behaviour, **settings) as (provider, upstream):
        return await failed(provider, request, streams=streams), len(upstream.bodies)


@asynccontextmanager
async def brokered(
    folder: Path, behaviour: Behaviour, api: Api = OPENAI, **limits: Any
) -> AsyncIterator[tuple[GrpcCoordinatorClient, MemoryLedgerStore, Upstream]]:
    """A client that tries once, the ledger of its coordinator, and that one's upstream."""
    store = MemoryLedgerStore()
    async with running_upstream(behaviour, api.path) as upstream:
        provider: Any = api.provider(upstream.base_url, **limits)
        async with running_coordinator(folder, provider, store=store), connected(folder, max_retries=0) as client:
            yield client, store, upstream


async def failed(provider: CloudProvider, request: ProviderRequest | None = None, *, streams: bool = False) -> ProviderError:
    """How a request of this provider fails."""
    asked = request or provider_request()
    with pytest.raises(ProviderError) as caught:
        await (pieces_of(provider, asked) if streams else provider.complete(asked))
    return caught.value
