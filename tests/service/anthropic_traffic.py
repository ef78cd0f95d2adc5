"""A server that replays HTTP traffic of the Messages API byte for byte, in order, with pauses and cuts where a recording has them.

The recordings were written from the public description of the API: its events, their order and fields, its errors and their headers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from coordinator.config import UpstreamConfig
from coordinator.providers.anthropic import AnthropicProvider
from coordinator.providers.http import HttpLimits

CUT = "cut"
HANG = "hang"
Part = bytes | float | str
Recording = Sequence[Part]
"""Bytes to send, seconds to pause, CUT (reset the connection) or HANG (keep it open and silent)."""


@dataclass
class Traffic:
    """A running playback: its address and the requests it received."""

    base_url: str = ""
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)


@asynccontextmanager
async def playing(*recordings: Recording, choose: Callable[[dict[str, Any]], Recording] | None = None) -> AsyncIterator[Traffic]:
    """Play one recording per request, the last one for all further requests, or the one that `choose` returns for the request's body."""
    traffic, left = Traffic(), list(recordings)
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            while True:
                body = await _read_request(reader, traffic)
                await _play(choose(body) if choose else left.pop(0) if len(left) > 1 else left[0], writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    traffic.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield traffic
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


def anthropic_provider(base_url: str, key: str = "", *, limits: HttpLimits | None = None, **settings: Any) -> AnthropicProvider:
    """A provider that asks the server there; `key` is in the variable TEST_KEY ("": it needs none)."""
    api_key = {"api_key_env": "TEST_KEY"} if key else {}
    config = UpstreamConfig(provider="anthropic", base_url=base_url, **api_key, **settings)
    return AnthropicProvider(config, "test", limits=limits, environ={"TEST_KEY": key})


async def _read_request(reader: asyncio.StreamReader, traffic: Traffic) -> dict[str, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body: dict[str, Any] = json.loads(await reader.readexactly(int(headers["content-length"])))
    traffic.paths.append(first)
    traffic.headers.append(headers)
    traffic.bodies.append(body)
    return body


async def _play(recording: Recording, writer: asyncio.StreamWriter) -> None:
    """Send a recording. Raises ConnectionError where it is cut."""
    for part in recording:
        match part:
            case bytes():
                writer.write(part)
                await writer.drain()
            case float():
                await asyncio.sleep(part)
            case "hang":
                await asyncio.sleep(3600)
            case _:
                raise ConnectionResetError


def response(status: str, body: bytes | dict[str, Any], *headers: str) -> Recording:
    """A whole answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"HTTP/1.1 {status}",
        "content-type: application/json",
        f"content-length: {len(data)}",
        "request-id: req_1",
        *headers,
    ]
    return ["\r\n".join([*lines, "", ""]).encode() + data]


def message(**changes: Any) -> dict[str, Any]:
    """A whole message."""
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": [{"type": "text", "text": "forty-two"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 12, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 3},
        **changes,
    }


def failure(word: str, text: str = "something went wrong") -> dict[str, Any]:
    """The body of a refusal."""
    return {"type": "error", "error": {"type": word, "message": text}, "request_id": "req_1"}


def event(kind: str, **fields: Any) -> bytes:
    """One event of a stream."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


START = event("message_start", message=message(content=[], stop_reason=None, usage={"input_tokens": 12, "output_tokens": 1}))
BLOCK = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
PING = event("ping")
BLOCK_STOP = event("content_block_stop", index=0)
STOP = event("message_stop")


def text(piece: str) -> bytes:
    """An event that brings text."""
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})


def ending(reason: str = "end_turn", output_tokens: int = 3, **usage: int) -> bytes:
    """The event with the stop reason of the message and its total usage."""
    return event(
        "message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": output_tokens, **usage}
    )


WHOLE_STREAM = (START, BLOCK, PING, text("forty"), text("-two"), BLOCK_STOP, ending(), STOP)


TOOL_MESSAGE = message(content=[{"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 2}}], stop_reason="tool_use")
TOOL_STREAM = (
    START,
    event("content_block_start", index=0, content_block={"type": "tool_use", "id": "call_1", "name": "add", "input": {}}),
    event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": ""}),
    event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": '{"a":'}),
    event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": " 2}"}),
    BLOCK_STOP,
    ending("tool_use"),
    STOP,
)


def streamed(*parts: Part, ended: bool = True) -> Recording:
    """An event stream in the given chunks; with `ended` False the body stays open."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = [f"{len(part):x}\r\n".encode() + part + b"\r\n" if isinstance(part, bytes) else part for part in parts]
    return [head, *chunks, *([b"0\r\n\r\n"] if ended else [])]
