"""A coordinator inside the test's own event loop, with a provider scripted by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from coordinator.app import Coordinator
from coordinator.calls.admission import Gate
from coordinator.calls.prices import Price
from coordinator.calls.upstreams import Upstream
from coordinator.config import ServerConfig
from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.ledger.stores.store import LedgerStore
from coordinator.providers.provider import ProviderDelta, ProviderError, ProviderRequest, ProviderResult
from edge.core.clock import Clock
from edge.core.types import Message, TokenUsage
from edge.rpc.client import CloudCall
from edge.rpc.grpc_client import ClientPolicy, GrpcCoordinatorClient
from edge.rpc.v1 import admin_pb2_grpc

Behaviour = Callable[[ProviderRequest], Awaitable[ProviderResult]]
PRICE = Price(1_000_000, 2_000_000)  # 1 micro-USD per input token, 2 per output token


TOOLS = '{"tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}], "tool_choice": "auto"}'
CALLED = '{"tool_calls":[{"id":"call_1","type":"function","function":{"name":"add","arguments":"{\\"a\\": 2}"}}]}'


async def answer(request: ProviderRequest) -> ProviderResult:
    """The last message in capitals, or CALLED where there are tools; 10 tokens in, 5 out."""
    if request.openai_json:
        return ProviderResult("", TokenUsage(10, 5), "up-1", "tool_calls", CALLED)
    return ProviderResult(request.messages[-1].content.upper(), TokenUsage(10, 5), "up-1", "stop")


def failing(kind: str = "refused", executed: bool | None = False, retry_after_s: float | None = None) -> Behaviour:
    """A behaviour that raises a ProviderError."""

    async def behave(request: ProviderRequest) -> ProviderResult:
        raise ProviderError("scripted", kind=kind, executed=executed, retry_after_s=retry_after_s)

    return behave


class ProgrammedProvider:
    """A CloudProvider that runs `behaviour` and remembers its requests."""

    name = "programmed"

    def __init__(self, behaviour: Behaviour = answer) -> None:
        self.behaviour = behaviour
        self.requests: list[ProviderRequest] = []
        self.running = 0

    async def start(self) -> None:
        """Nothing to start."""

    def input_token_bound(self, request: ProviderRequest) -> int:
        """Four tokens per character, never below what `answer` bills."""
        return 10 + len(request.openai_json) + 4 * sum(len(message.content) for message in request.messages)

    def why_not_openai(self, openai_json: str) -> str:
        """It takes all."""
        return ""

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Remember and behave."""
        self.requests.append(request)
        self.running += 1
        try:
            return await self.behaviour(request)
        finally:
            self.running -= 1

    async def stream(self, request: ProviderRequest) -> AsyncIterator[ProviderDelta]:
        """The answer, one character at a time."""
        result = await self.complete(request)
        for character in result.text:
            yield ProviderDelta(character)
        yield ProviderDelta("", result)

    async def aclose(self) -> None:
        """Nothing to close."""


class Held:
    """A behaviour that waits until the test releases it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.release = asyncio.Event()

    async def __call__(self, request: ProviderRequest) -> ProviderResult:
        self.reached.set()
        await self.release.wait()
        return await answer(request)


def upstream(provider: ProgrammedProvider, **changes: Any) -> Upstream:
    """An upstream around a provider, priced with PRICE."""
    settings: dict[str, Any] = {
        "alias": "default",
        "provider": provider,
        "model": "m",
        "price": PRICE,
        "gate": Gate("default", 8, 64),
        "deadline_s": 20.0,
        "max_output_tokens": 1000,
    }
    return Upstream(**{**settings, **changes})


@asynccontextmanager
async def running_coordinator(
    folder: Path,
    provider: ProgrammedProvider,
    *,
    store: Any = None,
    alias_settings: dict[str, Any] | None = None,
    clock: Clock | None = None,
    **config: Any,
) -> AsyncIterator[Coordinator]:
    """A coordinator that listens on `folder`/c.sock, over a memory ledger unless a store is given."""
    settings = ServerConfig.model_validate({"listen": (f"unix:{folder}/c.sock",), "state_dir": str(folder), **config})
    upstreams = {"default": upstream(provider, **(alias_settings or {}))}
    coordinator = Coordinator(settings, store=store or MemoryLedgerStore(), upstreams=upstreams, clock=clock)
    async with coordinator:
        yield coordinator


@asynccontextmanager
async def connected(folder: Path, device_id: str = "", **policy: Any) -> AsyncIterator[GrpcCoordinatorClient]:
    """A client of the coordinator in `folder`."""
    client = GrpcCoordinatorClient(f"unix:{folder}/c.sock", device_id=device_id, policy=ClientPolicy(**policy))
    try:
        yield client
    finally:
        await client.aclose()


async def fleet_use(store: LedgerStore) -> tuple[tuple[int, int], tuple[int, int]]:
    """Calls and micro-USD that are committed and that are reserved, over the whole fleet."""
    row = next(row for row in await store.list_budgets_after("", 1_000, with_steps=True) if row.key == "fleet")
    return (row.committed.calls, row.committed.uusd), (row.reserved.calls, row.reserved.uusd)


def call(key: str = "k1", prompt: str = "what is 2+2?", **changes: Any) -> CloudCall:
    """A serving call; pass step and prompt_id for a learning one."""
    settings: dict[str, Any] = {
        "call_key": key,
        "task": "math",
        "step": -1,
        "prompt_id": "p1",
        "help_units": 1,
        "messages": (Message("user", prompt),),
        "max_output_tokens": 20,
    }
    return CloudCall(**{**settings, **changes})


def raw_channel(folder: Path, listener: str = "c.sock") -> grpc.aio.Channel:
    """To the coordinator in `folder`."""
    return grpc.aio.insecure_channel(f"unix:{folder}/{listener}")


@asynccontextmanager
async def administrator(folder: Path) -> AsyncIterator[Any]:
    """A stub at the admin listener of the coordinator in `folder`."""
    async with raw_channel(folder, "admin.sock") as channel:
        yield admin_pb2_grpc.AdminServiceStub(channel)
