"""A gRPC server between a device and its coordinator, which passes every call on and can keep a reply back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

STREAMED = {"StreamComplete", "WatchBudget"}
"""Methods with many replies. Batches are not offered: a client falls back to single calls."""
OnReply = Callable[[str], Awaitable[None]]


class Relay(grpc.GenericRpcHandler):
    """Serves `address`; `on_reply` is awaited with a method's name when its reply has come, before it is passed on."""

    def __init__(self, folder: Path, target: str, on_reply: OnReply) -> None:
        self.address = f"unix:{folder}/relay.sock"
        self._on_reply = on_reply
        self._channel = grpc.aio.insecure_channel(target)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """How one call is passed on."""
        path, name = handler_call_details.method, handler_call_details.method.rpartition("/")[2]
        if name == "CompleteBatch":
            return None
        if name in STREAMED:
            ask = self._channel.unary_stream(path)

            async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
                try:
                    async for reply in ask(request, timeout=context.time_remaining(), metadata=_named(context)):
                        yield reply
                except grpc.aio.AioRpcError as error:
                    await _refuse(context, error)

            return grpc.unary_stream_rpc_method_handler(stream)
        ask_once = self._channel.unary_unary(path)

        async def once(request: bytes, context: Any) -> bytes:
            try:
                reply: bytes = await ask_once(request, timeout=context.time_remaining(), metadata=_named(context))
            except grpc.aio.AioRpcError as error:
                await _refuse(context, error)
            await self._on_reply(name)
            return reply

        return grpc.unary_unary_rpc_method_handler(once)

    async def aclose(self) -> None:
        """Close the connection to the coordinator."""
        await self._channel.close()


def _named(context: Any) -> list[tuple[str, str]]:
    return [(key, value) for key, value in context.invocation_metadata() if key == "device-id"]


async def _refuse(context: Any, error: grpc.aio.AioRpcError) -> None:
    await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))


@asynccontextmanager
async def relay(folder: Path, target: str, on_reply: OnReply) -> AsyncIterator[Relay]:
    """A relay that serves until the block ends."""
    between, server = Relay(folder, target, on_reply), grpc.aio.server()
    server.add_generic_rpc_handlers((between,))
    server.add_insecure_port(between.address)
    await server.start()
    try:
        yield between
    finally:
        await server.stop(0)
        await between.aclose()


async def never() -> None:
    """Keep a reply back until the caller gives up."""
    await asyncio.Event().wait()
