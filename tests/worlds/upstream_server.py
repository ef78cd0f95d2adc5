"""An HTTP server on loopback with scripted misbehaviour. Counts its requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from coordinator.config import UpstreamConfig
from coordinator.providers.http import HttpLimits
from coordinator.providers.openai_compatible import OpenAICompatibleProvider
from coordinator.providers.provider import ProviderRequest
from edge.core.types import Message
from tests.worlds.loopback import answering

Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]
SECRET_PROMPT = "the secret prompt"


def provider_request(deadline_s: float = 5.0, key: str = "d1|k1|1", content: str = SECRET_PROMPT) -> ProviderRequest:
    """A request as the broker makes it."""
    return ProviderRequest((Message("user", content),), "some-model", 64, 0.0, deadline_s, key)


def openai_provider(
    base_url: str, key: str = "", *, limits: HttpLimits | None = None, **settings: Any
) -> OpenAICompatibleProvider:
    """A provider that asks the server there; `key` is in the variable TEST_KEY ("": it needs none)."""
    api_key = {"api_key_env": "TEST_KEY"} if key else {}
    config = UpstreamConfig(provider="openai_compatible", base_url=base_url, **api_key, **settings)
    return OpenAICompatibleProvider(config, "test", limits=limits, environ={"TEST_KEY": key})


def completion(**changes: Any) -> dict[str, Any]:
    """A proper answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "forty-two"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": usage, **changes}


def answers(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Behaviour:
    """Always this body (JSON, or bytes as they are)."""

    async def behave(_: web.Request) -> web.StreamResponse:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(body=data, status=status, headers=headers, content_type="application/json")

    return behave


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """One behaviour after the other, then the last."""
    left = list(behaviours)

    async def behave(request: web.Request) -> web.StreamResponse:
        return await (left.pop(0) if len(left) > 1 else left[0])(request)

    return behave


def sends(*pieces: bytes, pause_s: float = 0.0, forever: bytes = b"", cut: bool = False) -> Behaviour:
    """200, then these pieces with pauses; then `forever` again and again, or a cut connection."""

    async def behave(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(pause_s)
        while forever:
            await response.write(forever)
            await asyncio.sleep(pause_s)
        if cut and request.transport is not None:
            request.transport.abort()
        return response

    return behave


async def hangs(_: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.sleep(3600)
    return web.Response()


async def disconnects(request: web.Request) -> web.StreamResponse:
    """Take the request and close the connection."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def event(**fields: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(text: str | None, finish: str | None = None) -> bytes:
    """An event that brings text."""
    return event(id="chatcmpl-2", choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}])


def tool_answer(calls: list[dict[str, Any]]) -> dict[str, Any]:
    """A proper answer that calls tools."""
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return completion(choices=[{"index": 0, "message": message, "finish_reason": "tool_calls"}])


def tool_stream(calls: list[dict[str, Any]]) -> list[bytes]:
    """The same as events: each call begun by its id and name, then its arguments in pieces of three characters."""
    pieces: list[dict[str, Any]] = []
    for index, call in enumerate(calls):
        function = call["function"]
        pieces.append({**call, "index": index, "function": {**function, "arguments": ""}})
        cut = (function["arguments"][start : start + 3] for start in range(0, len(function["arguments"]), 3))
        pieces += [{"index": index, "function": {"arguments": part}} for part in cut]
    deltas = [{"role": "assistant", "content": None}, *({"tool_calls": [piece]} for piece in pieces)]
    events = [event(id="chatcmpl-3", choices=[{"index": 0, "delta": each, "finish_reason": None}]) for each in deltas]
    end = event(id="chatcmpl-3", choices=[{"index": 0, "delta": {}, "finish_reason": "tool_calls"}])
    usage = event(id="chatcmpl-3", choices=[], usage={"prompt_tokens": 12, "completion_tokens": 3})
    return [*events, end, usage, b"data: [DONE]\n\n"]


async def good_reply(request: web.Request) -> web.StreamResponse:
    """The last message in capitals; 10 tokens in, 5 out."""
    text = (await request.json())["messages"][-1]["content"].upper()
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return web.json_response(completion(choices=[choice], usage={"prompt_tokens": 10, "completion_tokens": 5}))


class Upstream:
    """A running server: its address, how it replies, and its requests."""

    def __init__(self, reply: Behaviour) -> None:
        self.reply = reply
        self.base_url = ""
        self.asked = asyncio.Event()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []

    @property
    def keys(self) -> list[str]:
        """The billing keys of its requests."""
        return [headers.get("Idempotency-Key", "") for headers in self.headers]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Note the request and reply."""
        self.bodies.append(await request.json())
        self.headers.append(request.headers.copy())
        self.asked.set()
        return await self.reply(request)


@asynccontextmanager
async def running_upstream(reply: Behaviour = good_reply, path: str = "/v1/chat/completions") -> AsyncIterator[Upstream]:
    """Serve on loopback until the block ends."""
    upstream = Upstream(reply)
    async with answering(path, upstream.handle) as url:
        upstream.base_url = f"{url}/v1"
        yield upstream


Refusal = tuple[int, Any]
"""Status and body."""


def openai_refusal(message: str, param: str | None = None, code: str | None = None, status: int = 400) -> Refusal:
    """A refusal as OpenAI's API writes it."""
    return status, {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def picky(refusals: Mapping[str, Refusal], reply: Behaviour | None = None) -> Behaviour:
    """Refuses a request for the first of these fields that is in it (and not false); else "forty-two", whole or streamed as asked, with
    its usage where that is asked for."""

    async def behave(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        for field, (status, error) in refusals.items():
            if body.get(field, False) is not False:
                return web.json_response(error, status=status)
        if reply is not None:
            return await reply(request)
        if not body.get("stream"):
            return web.json_response(completion())
        events = [delta("forty"), delta("-two", "stop")]
        usage = event(choices=[], usage={"prompt_tokens": 12, "completion_tokens": 3})
        return await sends(*events, *([usage] if "stream_options" in body else []), b"data: [DONE]\n\n")(request)

    return behave
