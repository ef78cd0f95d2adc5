"""A coordinator client that can also put many calls on one CompleteBatch stream: for load tools, fault tools and gateways.

The agent makes plain concurrent Complete calls: at the 8 prompts of a step a stream gains nothing (DECISIONS.md, record 64).
Whatever the stream did not take or did not answer for good is asked for by itself; so is every call at a coordinator without CompleteBatch.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from coordinator.calls.batch import ManyAtOnce
from edge.core.errors import CoordinatorError, CoordinatorUnavailable, InvalidRequest, Unauthenticated
from edge.rpc import codec
from edge.rpc.client import CallReply, CloudCall
from edge.rpc.errors import from_rpc_error
from edge.rpc.grpc_client import GrpcCoordinatorClient, is_upstream_failure, may_be_asked_again
from edge.rpc.v1 import call_pb2

OpenStream = Callable[[float], Awaitable[Any]]
Alone = Callable[[CloudCall, float, CoordinatorError | None], Awaitable[CallReply]]
GREETING_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    call: CloudCall
    end: float
    reply: asyncio.Future[CallReply]


class BatchStream:
    """One batch. `open_stream(end)` gives the RPC, or None where there is no such RPC; at most `most` calls are under way.

    `alone(call, end, seen)` asks for one call after the stream answered `seen`, or None when the call was never on it.
    """

    def __init__(self, open_stream: OpenStream, alone: Alone, *, most: int, max_bytes: int, deadline_s: float) -> None:
        self._open_stream = open_stream
        self._alone = alone
        self._max_bytes = max_bytes
        self._deadline_s = deadline_s
        self._many: ManyAtOnce[CloudCall, CallReply] = ManyAtOnce(self._ask, CallReply.failed, most)
        self._waiting: dict[str, list[_Waiting]] = defaultdict(list)
        self._tasks: set[asyncio.Task[None]] = set()
        self._rpc: Any = None
        self._opening: asyncio.Task[None] | None = None
        self._over: CoordinatorError | None = None
        self._writing = asyncio.Lock()

    async def replies(self, calls: AsyncIterable[CloudCall]) -> AsyncGenerator[CallReply, None]:
        """One reply for each call. Closing it early cancels the stream; the calls on it are settled by the coordinator."""
        try:
            async with aclosing(self._many.replies(calls)) as replies:
                async for reply in replies:
                    yield reply
        finally:
            if self._rpc is not None:
                self._rpc.cancel()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, call: CloudCall) -> CallReply:
        end = asyncio.get_running_loop().time() + self._deadline_s
        try:
            reply = await self._on_stream(call, end)
            seen = reply.outcome if reply and isinstance(reply.outcome, CoordinatorError) else None
        except CoordinatorError as error:
            reply, seen = None, error
        return reply if reply is not None and seen is None else await self._alone(call, end, seen)

    async def _on_stream(self, call: CloudCall, end: float) -> CallReply | None:
        """The stream's reply for a call, None where there is no stream to put it on. Raises the typed error that ended the stream."""
        item = self._item(call)
        if self._rpc is None and self._over is None:
            await self._opened(end)
        if self._rpc is None or self._over is not None:
            return None
        waiting = _Waiting(call, end, asyncio.get_running_loop().create_future())
        self._waiting[call.call_key].append(waiting)
        try:
            async with asyncio.timeout_at(end + 1.0):
                await asyncio.shield(self._start(self._write(item, end)))  # a write that is cut cuts the stream
                return await waiting.reply
        except TimeoutError as error:
            raise CoordinatorUnavailable("the deadline is over", reason="DEADLINE_EXCEEDED") from error
        finally:
            self._forget(waiting)

    def _item(self, call: CloudCall) -> call_pb2.CompleteBatchRequest:
        """Raises InvalidRequest on what the wire cannot carry: on the stream it would end the others, too."""
        try:
            item = codec.encode_item(call, self._deadline_s)
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidRequest(f"cannot be sent: {error}") from error
        if item.ByteSize() > self._max_bytes:
            raise InvalidRequest(f"cannot be sent: {item.ByteSize()} bytes are more than the {self._max_bytes} allowed")
        return item

    async def _opened(self, end: float) -> None:
        """Open the stream; calls that come meanwhile share one try, later ones try again. Raises CoordinatorUnavailable."""
        if self._opening is None:
            self._opening = self._start(self._open(end))
        await asyncio.shield(self._opening)

    async def _open(self, end: float) -> None:
        try:
            self._rpc = await self._open_stream(end)
            if self._rpc is not None:
                self._start(self._read())
        finally:
            self._opening = None

    async def _write(self, item: call_pb2.CompleteBatchRequest, end: float) -> None:
        async with self._writing:
            item.timeout.FromNanoseconds(max(0, round((end - asyncio.get_running_loop().time()) * 1e9)))
            with suppress(grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):  # the reader finds out why
                await self._rpc.write(item)

    async def _read(self) -> None:
        """Hand out replies until the stream ends, however it does."""
        try:
            async for response in self._rpc:
                self._hand_out(codec.decode_reply(response))
        except grpc.RpcError as error:
            self._end(_for_a_call_on_it(from_rpc_error(error)))
        except grpc.aio.UsageError:
            self._end(CoordinatorUnavailable("the connection was closed", reason="CONNECTION_LOST"))
        finally:
            self._end(CoordinatorUnavailable("the coordinator ended the stream early", reason="CONNECTION_LOST"))

    def _hand_out(self, reply: CallReply) -> None:
        if not reply.call_key:  # nobody knows whose; asked for by itself, the bad one gets its error and the others are answered
            self._end(CoordinatorUnavailable("the coordinator could not read a call", reason="CONNECTION_LOST"))
        for waiting in self._waiting.get(reply.call_key, ()):
            if not waiting.reply.done():
                waiting.reply.set_result(reply)
                return

    def _end(self, error: CoordinatorError) -> None:
        """The stream is over, and so it is for the calls that still wait on it; the first reason counts."""
        self._over = self._over or error
        for each in self._waiting.values():
            for waiting in each:
                if not waiting.reply.done():
                    waiting.reply.set_exception(error)

    def _forget(self, waiting: _Waiting) -> None:
        mine = self._waiting[waiting.call.call_key]
        mine.remove(waiting)
        if not mine:
            del self._waiting[waiting.call.call_key]
        if waiting.reply.done() and not waiting.reply.cancelled():
            waiting.reply.exception()

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class BatchingClient(GrpcCoordinatorClient):
    """`GrpcCoordinatorClient` with batches."""

    _knows_batches = True

    async def complete_batch(self, calls: AsyncIterable[CloudCall], deadline_s: float) -> AsyncGenerator[CallReply, None]:
        """Ask for many calls as they come, on one stream; one reply for each, in any order.

        `deadline_s` counts for each call from when it was taken from `calls`. A call that fails is a reply and ends nothing.
        """
        policy = self._policy
        batch = BatchStream(
            self._open_batch,
            partial(self._complete_alone, self._shown()),
            most=policy.batch_calls,
            max_bytes=policy.max_message_bytes,
            deadline_s=deadline_s,
        )
        async with aclosing(batch.replies(calls)) as replies:
            async for reply in replies:
                yield reply

    async def _open_batch(self, end: float) -> Any:
        """The stream of a batch; None where the coordinator is known to have none. Raises CoordinatorUnavailable.

        A coordinator greets with its metadata at once, so that one without batches is known before anything is written.
        """
        if not self._knows_batches:
            return None
        stub = await self._ready_stub(end)
        batch = stub.CompleteBatch(metadata=self._metadata)
        greeting = asyncio.create_task(batch.initial_metadata())
        await asyncio.wait([greeting], timeout=min(GREETING_TIMEOUT_S, self._left(end)))
        if batch.done() and await batch.code() is grpc.StatusCode.UNIMPLEMENTED:
            self._knows_batches = False
        await _ended(greeting)
        return batch if self._knows_batches else None

    async def _complete_alone(self, shown: object, call: CloudCall, end: float, seen: CoordinatorError | None) -> CallReply:
        """One call of a batch by itself, after the stream answered `seen` (None: it was never put there). Never raises CoordinatorError.

        `shown` when the batch began; once there is a fresher credential, the stream's refusal of the old one concerns no call.
        """
        if isinstance(seen, Unauthenticated) and self._has_fresher_than(shown):
            seen = None
        if seen is not None and not may_be_asked_again(seen):
            return CallReply(call.call_key, seen)
        failures = int(seen is not None and is_upstream_failure(seen))
        delay_s = 0.0 if seen is None else self._delay_s(seen, 0)
        if seen is not None and (not self._goes_on(seen, failures) or delay_s >= self._left(end)):
            return CallReply(call.call_key, seen)
        await asyncio.sleep(delay_s)
        try:
            lost = seen is not None and seen.reason == "CONNECTION_LOST"
            return CallReply(call.call_key, await self._complete_until(call, end, failures, lost=lost))
        except CoordinatorError as error:
            return CallReply(call.call_key, error)


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _for_a_call_on_it(error: CoordinatorError) -> CoordinatorError:
    """What the end of the stream means for a call that was on it: it may have run, so its result is looked up first.

    INTERNAL is also what gRPC makes of a stream that the other side ended while something was being written on it.
    """
    if error.reason not in ("DRAINING", "INTERNAL"):
        return error
    return CoordinatorUnavailable(str(error), reason="CONNECTION_LOST", retry_after_s=error.retry_after_s)
