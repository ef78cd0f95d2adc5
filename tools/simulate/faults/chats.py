"""A device's calls over the OpenAI-compatible endpoint: a client that asks and retries as OpenAI's do, and ways to chat that strain the
coordinator. Every request is a line of the device's log, and so is every reply."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import grpc
import msgspec

from coordinator.endpoint.listener import CHAT, KEY_HEADER, TASK_HEADER, USAGE
from coordinator.service.access import DEVICE_ID_KEY
from edge.core.types import Message
from edge.rpc.client import CloudCall
from edge.rpc.grpc_client import GrpcCoordinatorClient
from tools.simulate.faults.log import ChatParts, DeviceLog
from tools.simulate.faults.terms import FOREIGN_TASK
from tools.simulate.faults.upstream import MAX_OUTPUT_TOKENS
from tools.simulate.virtual.chat import USER_HEADER, Head
from tools.simulate.virtual.network import SimulatedChannel

MAX_RETRIES = 2
UNITS = ("calls", "tokens", "uusd")
LONGEST_WAIT_S = 60.0
"""A longer `retry-after` is not waited for, but taken for no advice."""
DONE = b"data: [DONE]"
LOST = ("CONNECTION_LOST", "TIMED_OUT")
"""Outcomes that the client finds out by itself."""
BROKEN = "BROKEN"
"""The outcome of a stream that ends properly with neither an answer nor an error."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What is asked. Without an `idempotency_key` each request is a call of its own."""

    task: str
    question: str
    asker: str = ""
    idempotency_key: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    streamed: bool = False
    model: str = "default"

    @property
    def body(self) -> bytes:
        """As it is sent."""
        about: dict[str, Any] = {"model": self.model, "messages": [{"role": "user", "content": self.question}]}
        if self.streamed:
            about |= {"stream": True, "stream_options": {"include_usage": True}}
        optional = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return json.dumps(about | {name: value for name, value in optional.items() if value is not None}).encode()

    def headers(self, device: str) -> tuple[tuple[str, str], ...]:
        """What goes with it."""
        named = {DEVICE_ID_KEY: device, TASK_HEADER: self.task, KEY_HEADER: self.idempotency_key, USER_HEADER: self.asker}
        return tuple((name, value) for name, value in named.items() if value)


async def last_usages(channel: SimulatedChannel, log: DeviceLog, tasks: Sequence[str], people: Sequence[str]) -> None:
    """After all faults: what each person's calls of each task count against, how much is used, and what the limits are."""
    for asker, task in product(people or ("",), tasks):
        headers = ChatRequest(task, "", asker).headers(log.device)
        try:
            reply = await channel.unary_unary(USAGE, bytes, bytes)(b"", timeout=60.0, metadata=headers)
        except grpc.RpcError as error:
            log.note("final_usage", f"{asker}/{task}", _lost(error))
            continue
        head = msgspec.json.decode(reply, type=Head)
        if head.status != 200 or head.body is None:
            log.note("final_usage", f"{asker}/{task}", str(head.status))
            continue
        rows = head.body["budgets"]
        units = [tuple(tuple(row[unit][part] for unit in UNITS) for part in ("used", "limit")) for row in rows]
        shown = tuple((row["budget"], *parts) for row, parts in zip(rows, units, strict=True))
        log.note("final_usage", f"{asker}/{task}", "ok", shown)


@dataclass(frozen=True, slots=True)
class ChatReply:
    """How a request ended: `completed`, one of LOST, BROKEN, or the code of an error in capitals."""

    outcome: str
    parts: ChatParts
    wait_s: float | None = None

    @property
    def again(self) -> bool:
        """Whether OpenAI's clients send the request again by themselves; never once a stream has begun."""
        begun = self.parts.status == 200
        return not begun and (self.outcome in LOST or bool(self.parts.again))


@dataclass(eq=False)
class ChatClient:
    """Asks as OpenAI's clients do."""

    channel: SimulatedChannel
    log: DeviceLog
    rng: random.Random
    life: int
    _unnamed: int = 0

    async def ask(self, what: str, request: ChatRequest, patience_s: float) -> ChatReply:
        """The reply, after as many retries as the client makes by itself."""
        reply = await self._once(what, request, patience_s)
        for tried in range(MAX_RETRIES):
            if not reply.again:
                break
            wait_s = min(8.0, 0.5 * 2.0**tried) * self.rng.uniform(0.75, 1.0)
            if reply.wait_s is not None and 0.0 < reply.wait_s <= LONGEST_WAIT_S:
                wait_s = reply.wait_s
            await asyncio.sleep(wait_s)
            reply = await self._once(what, request, patience_s)
        return reply

    async def _once(self, what: str, request: ChatRequest, patience_s: float) -> ChatReply:
        parts = ChatParts(request.asker, request.idempotency_key, request.question, request.temperature is None, request.streamed)
        name = f"{request.asker}/{request.idempotency_key or self._next_name()}"
        self.log.note(what, name, "asked", parts)
        reply = await self._answered(request, parts, patience_s)
        self.log.note(what, name, reply.outcome, reply.parts)
        return reply

    def _next_name(self) -> str:
        self._unnamed += 1
        return f"unnamed {self.life}.{self._unnamed}"

    async def _answered(self, request: ChatRequest, parts: ChatParts, patience_s: float) -> ChatReply:
        head: Head | None = None
        events: list[dict[str, Any]] = []
        try:
            async with aclosing(self._sent(request, patience_s)) as pieces:
                async for piece in pieces:
                    if head is None:
                        head = msgspec.json.decode(piece, type=Head)
                    elif not piece.startswith(DONE):
                        events.append(json.loads(piece.removeprefix(b"data: ")))
        except grpc.RpcError as error:
            return ChatReply(_lost(error), parts._replace(status=head.status if head else 0))
        assert head is not None
        parts = parts._replace(status=head.status)
        if head.body is None:
            return _streamed(events, parts)
        if "error" in head.body:
            again, wait_s = head.headers.get("x-should-retry"), head.headers.get("retry-after")
            known = {"true": True, "false": False}.get(again or "")
            return replace(_refused(head.body, parts._replace(again=known)), wait_s=float(wait_s) if wait_s else None)
        message, usage = head.body["choices"][0]["message"], head.body["usage"]
        return ChatReply("completed", _answer(parts, message["content"], usage, head.body["edge"]))

    def _sent(self, request: ChatRequest, patience_s: float) -> AsyncGenerator[bytes, None]:
        # A proxy may send a request twice where a key says that this does no harm, and where the reply is not streamed.
        send = self._doubled if request.idempotency_key and not request.streamed else self._single
        return send(request.body, request.headers(self.log.device), patience_s)

    async def _doubled(self, body: bytes, headers: Any, patience_s: float) -> AsyncGenerator[bytes, None]:
        yield await self.channel.unary_unary(CHAT, bytes, bytes)(body, timeout=patience_s, metadata=headers)

    async def _single(self, body: bytes, headers: Any, patience_s: float) -> AsyncGenerator[bytes, None]:
        async for piece in self.channel.unary_stream(CHAT, bytes, bytes)(body, timeout=patience_s, metadata=headers):
            yield piece


def _lost(error: grpc.RpcError) -> str:
    return "TIMED_OUT" if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else "CONNECTION_LOST"


def _streamed(events: list[dict[str, Any]], parts: ChatParts) -> ChatReply:
    text, edge, usage = "", None, None
    for event in events:
        if "error" in event:
            return _refused(event, parts)
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
        edge, usage = event.get("edge", edge), event.get("usage", usage)
    if edge is None or usage is None:
        return ChatReply(BROKEN, parts)
    return ChatReply("completed", _answer(parts, text, usage, edge))


def _answer(parts: ChatParts, text: str, usage: dict[str, int], edge: dict[str, Any]) -> ChatParts:
    return parts._replace(
        text=text,
        input_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
        call_key=edge["call_key"],
        charged_uusd=edge["charged_uusd"],
        cached=edge["cached"],
    )


def _refused(body: dict[str, Any], parts: ChatParts) -> ChatReply:
    error = body["error"]
    parts = parts._replace(budget=error.get("budget", ""), charged_uusd=error.get("charged_uusd"))
    return ChatReply(error["code"].upper(), parts)


CHAT_WAYS = (
    "keyed", "keyed", "unnamed", "unnamed", "both_forms", "left", "other_content", "key_of_two", "question_of_two", "both_ways",
    "cancelled", "trespass", "wrong",
)  # fmt: skip


@dataclass(eq=False)
class Chats:
    """The ways of one life of a device. `people`: those whom it asks for; nobody: it names none. `known`: the keys of its calls, which it
    keeps over a crash."""

    client: ChatClient
    others_client: GrpcCoordinatorClient
    rng: random.Random
    people: tuple[str, ...]
    known: set[str]
    pause: Callable[[float, float], Awaitable[None]] = field(repr=False)
    patience_s: Callable[[], float] = field(repr=False)

    async def go(self, way: str, call: CloudCall) -> None:
        """Ask what this call asks in one of CHAT_WAYS."""
        request = ChatRequest(
            call.task,
            f"{way} {call.messages[-1].content}",
            asker=self.rng.choice(self.people) if self.people else "",
            idempotency_key=f"{way}-{call.call_key}",
            max_tokens=self.rng.choice([None, call.max_output_tokens]),
            streamed=self.rng.random() < 0.5,
        )
        await getattr(self, f"_{way}")(request)

    async def _keyed(self, request: ChatRequest) -> None:
        """The same again, in the other form where the first reply was lost; then over gRPC."""
        reply = await self._ask(request)
        if reply.outcome in LOST or self.rng.random() < 0.3:
            reply = await self._ask(replace(request, streamed=not request.streamed))
        if reply.parts.call_key and self.rng.random() < 0.5:
            key = reply.parts.call_key
            await self.client.log.ask("get_call", key, self.others_client.get_call(key))

    async def _unnamed(self, request: ChatRequest) -> None:
        await self._ask(replace(request, idempotency_key=""))

    async def _both_forms(self, request: ChatRequest) -> None:
        await asyncio.gather(self._ask(replace(request, streamed=True)), self._ask(replace(request, streamed=False)))
        await self._ask(request)

    async def _left(self, request: ChatRequest) -> None:
        asking = asyncio.create_task(self._ask(request), name=f"chat {request.idempotency_key}")
        await self.pause(0.0, 1.5)
        asking.cancel()
        await asyncio.wait([asking])
        if self.rng.random() < 0.7:
            await self._ask(request)

    async def _other_content(self, request: ChatRequest) -> None:
        await self._ask(request)
        await self._ask(replace(request, question="something else"))

    async def _key_of_two(self, request: ChatRequest) -> None:
        """Two people happen to choose the same key, for the same question or for another one."""
        other = replace(request, question=self.rng.choice([request.question, "what another person asks"]))
        askers = self._two(request)
        await asyncio.gather(
            *(self._ask(replace(each, asker=asker)) for each, asker in zip((request, other), askers, strict=True))
        )

    async def _question_of_two(self, request: ChatRequest) -> None:
        """What everybody asks, where any stored answer of the same person will do; one of them asks twice."""
        one, other = self._two(request)
        for asker, key in ((one, request.idempotency_key), (other, ""), (one, "")):
            await self._ask(replace(request, question="what everybody asks", asker=asker, idempotency_key=key, temperature=0.0))

    async def _both_ways(self, request: ChatRequest) -> None:
        """One call over both transports; a call over gRPC names nobody, so a person's is asked for by its key alone."""
        if request.asker:
            await self._keyed(request)
            return
        key = request.idempotency_key
        asked = CloudCall(key, request.task, -1, key, 1, (Message("user", request.question),), MAX_OUTPUT_TOKENS)
        over_grpc = self.client.log.ask("complete", key, self.others_client.complete(asked, self.patience_s()))
        await asyncio.gather(over_grpc, self._ask(request))
        await self._ask(request)

    async def _cancelled(self, request: ChatRequest) -> None:
        """Cancelled over gRPC while the chat waits; the key of a person's call is not known before its reply."""
        if request.asker:
            await self._left(request)
            return
        asking = asyncio.create_task(self._ask(request), name=f"chat {request.idempotency_key}")
        await self.pause(0.0, 1.5)
        key = request.idempotency_key
        await self.client.log.ask("cancel_call", key, self.others_client.cancel_call(key))
        await asking

    async def _trespass(self, request: ChatRequest) -> None:
        await self.client.ask("trespass", replace(request, task=FOREIGN_TASK), self.patience_s())

    async def _wrong(self, request: ChatRequest) -> None:
        wrong = self.rng.choice(
            [{"model": "unknown"}, {"max_tokens": 1000}, {"temperature": 9.0}, {"idempotency_key": "k" * 200}]
        )
        await self.client.ask("wrong_chat", replace(request, **wrong), self.patience_s())  # type: ignore[arg-type]

    def _two(self, request: ChatRequest) -> tuple[str, str]:
        return (self.people[0], self.people[-1]) if self.people else (request.asker, request.asker)

    async def _ask(self, request: ChatRequest) -> ChatReply:
        if not request.asker and request.idempotency_key:
            self.known.add(request.idempotency_key)
        reply = await self.client.ask("chat", request, self.patience_s())
        if reply.parts.call_key:
            self.known.add(reply.parts.call_key)
        return reply
