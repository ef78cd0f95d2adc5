"""A cheap cloud LLM: OpenAI's chat completions over minimal HTTP/1.1.

    python -m tools.bench.mock_cloud DELAY_S [ITEMS]

Prints its port in one line of JSON. Answers every request with the same completion after a constant delay; with a task file ITEMS it
answers the questions in it, always right, as a peer's reward assumes of its cloud. `GET /log` returns the idempotency keys in the order of
the requests; a request without one is logged as "". `GET /asked` returns how their last messages begin, up to the first full stop, so that
the requests of a service that sends no keys can be told apart. No chunked bodies, no pipelining, no TLS.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.bench.processes import announce

HEAD_END = b"\r\n\r\n"
INPUT_TOKENS, OUTPUT_TOKENS = 180, 96
_BEGINNING = re.compile(rb'"content": ?"([^".]{1,80})')
TEXT = "The greater of the two is found by comparing each digit from the left; here the third one decides. " * 4


@dataclass(frozen=True, slots=True)
class MockRequest:
    """A request: method, path, headers by lower-case name, body."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class MockAnswer:
    """A JSON body with its status, and the seconds to wait before it is sent."""

    body: bytes
    status: int = 200
    after_s: float = 0.0


@dataclass(slots=True)
class HttpServer:
    """Serves on loopback the responses of `handle` to requests."""

    handle: Callable[[MockRequest, MockConnection], MockAnswer]
    connections: set[MockConnection] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def listen(self, port: int = 0) -> int:
        """Serve on this port (0: a free one); returns it."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: MockConnection(self), "127.0.0.1", port, backlog=4096, reuse_address=True)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def close(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.cut()


class MockConnection(asyncio.Protocol):
    """One connection of a server."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)

    def cut(self) -> None:
        """Without a goodbye."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Answer complete requests."""
        self._buffer += data
        while (request := self._next_request()) is not None:
            answer = self._server.handle(request, self)
            if answer.after_s > 0.0:
                asyncio.get_running_loop().call_later(answer.after_s, self._send, answer)
            else:
                self._send(answer)

    def _next_request(self) -> MockRequest | None:
        head, found, rest = self._buffer.partition(HEAD_END)
        if not found:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return None
        self._buffer = rest[length:]
        method, path, *_ = [*first.split(" "), ""]
        return MockRequest(method, path, headers, rest[:length])

    def _send(self, answer: MockAnswer) -> None:
        if self._transport is not None and not self._transport.is_closing():
            head = f"HTTP/1.1 {answer.status} X\r\nContent-Type: application/json\r\nContent-Length: {len(answer.body)}\r\n\r\n"
            self._transport.write(head.encode("ascii") + answer.body)


def completion(text: str = TEXT, input_tokens: int = INPUT_TOKENS, output_tokens: int = OUTPUT_TOKENS) -> bytes:
    """The body of an answer."""
    reply = {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "mock",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": input_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": input_tokens + output_tokens,
        },
    }
    return json.dumps(reply).encode()


class MockCloud:
    """Answers and records. `answers`: the right answers by question."""

    def __init__(self, delay_s: float, answers: Mapping[str, str] | None = None) -> None:
        self._answer = MockAnswer(completion(), after_s=delay_s)
        self._answers = answers
        self._logs: dict[str, list[str]] = {"/log": [], "/asked": []}

    def handle(self, request: MockRequest, _connection: MockConnection) -> MockAnswer:
        """The completion, or a log."""
        if request.method == "GET":
            return MockAnswer(json.dumps(self._logs[request.path]).encode())
        self._logs["/log"].append(request.headers.get("idempotency-key", ""))
        beginnings = _BEGINNING.findall(request.body)
        self._logs["/asked"].append(beginnings[-1].decode() if beginnings else "")
        if self._answers is None:
            return self._answer
        return MockAnswer(
            _right(self._answers, json.loads(request.body)["messages"][-1]["content"]), after_s=self._answer.after_s
        )


def _right(answers: Mapping[str, str], asked: str) -> bytes:
    """The answer to the question that the message contains; an empty box where it is none of them."""
    found = next((answer for question, answer in answers.items() if question in asked), "")
    text = f"<think>\nStep 1: known.\n</think>\n<answer>\\boxed{{{found}}}</answer>"
    return completion(text, len(asked.split()), len(text.split()))


async def serve(cloud: MockCloud) -> None:
    """Serve until killed."""
    announce({"port": await HttpServer(cloud.handle).listen()})
    await asyncio.Event().wait()


def main(arguments: Sequence[str]) -> None:
    """The process."""
    answers: dict[str, str] | None = None
    if arguments[1:]:
        lines = Path(arguments[1]).read_text(encoding="utf-8").splitlines()
        entries: list[dict[str, Any]] = [json.loads(line) for line in lines if line]
        answers = {entry["question"]: entry["answer"] for entry in entries}
    asyncio.run(serve(MockCloud(float(arguments[0]), answers)))


if __name__ == "__main__":
    main(sys.argv[1:])
