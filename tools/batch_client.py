"""A coordinator client that can also put many calls on one CompleteBatch stream, for load tools, fault tools and tests.

The agent makes plain concurrent Complete calls: at the 8 prompts of a step a stream gains nothing (DECISIONS.md, record 64).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import suppress
from typing import Any

import grpc

from edge.core.errors import CoordinatorError, CoordinatorUnavailable
from edge.rpc import codec
from edge.rpc.client import CallReply, CloudCall
from edge.rpc.errors import from_rpc_error
from edge.rpc.grpc_client import GrpcCoordinatorClient


class BatchingClient(GrpcCoordinatorClient):
    """`GrpcCoordinatorClient` with batches."""

    async def complete_batch(self, calls: AsyncIterable[CloudCall], deadline_s: float) -> AsyncGenerator[CallReply, None]:
        """Ask for many calls as they come, on one stream; one reply for each, in any order, and one without a key for each that the
        coordinator could not read.

        Nothing is asked again: what ended the stream, or kept it from being opened, is the reply to every call without one. Closing it
        early cancels the stream; the calls on it are settled by the coordinator.
        """
        try:
            stub = await self._ready_stub(self._end(deadline_s))
            rpc = stub.CompleteBatch(metadata=self._metadata)
        except CoordinatorError as error:
            async for call in calls:
                yield CallReply(call.call_key, error)
            return
        unanswered: Counter[str] = Counter()
        writing = asyncio.create_task(_write(rpc, calls, deadline_s, unanswered))
        try:
            ended: CoordinatorError = CoordinatorUnavailable("the coordinator ended the stream early", reason="CONNECTION_LOST")
            try:
                async for response in rpc:
                    reply = codec.decode_reply(response)
                    unanswered[reply.call_key] -= 1
                    yield reply
            except grpc.RpcError as error:
                ended = from_rpc_error(error)
            except grpc.aio.UsageError:
                ended = CoordinatorUnavailable("the connection was closed", reason="CONNECTION_LOST")
            await writing
            for key in unanswered.elements():
                yield CallReply(key, ended)
        finally:
            rpc.cancel()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


async def _write(rpc: Any, calls: AsyncIterable[CloudCall], deadline_s: float, unanswered: Counter[str]) -> None:
    """Put each call on the stream, or what is left of it, and count its key. Raises ValueError on what the wire cannot carry."""
    over = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)  # whoever reads finds out why
    try:
        async for call in calls:
            unanswered[call.call_key] += 1
            item = codec.encode_item(call, deadline_s)
            with suppress(*over):
                await rpc.write(item)
    finally:
        with suppress(*over):
            await rpc.done_writing()
