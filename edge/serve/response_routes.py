"""POST /v1/responses, and the responses that are stored: read, gone on from, deleted.

They are stored in memory, the newest ones, until the agent ends: a conversation in a client is short-lived, and its content stays out of
one more place on the disk.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from starlette.responses import Response, StreamingResponse

from edge.core.clock import Clock
from edge.core.tool_calls import CallFormat
from edge.core.types import Mode
from edge.inference.channels import ChannelText
from edge.serve.chat_routes import NO_STORE
from edge.serve.chat_schemas import ANSWER_HEADERS, ChatRequest, answer_headers
from edge.serve.errors import RequestProblem
from edge.serve.ports import AnswerNote, AnswerService
from edge.serve.reasoning import Reading, read_answer
from edge.serve.response_schemas import (
    Deleted,
    InputItems,
    ResponsesRequest,
    finished,
    name_of,
    problem_body,
    response_head,
)
from edge.serve.response_schemas import Response as ResponseObject
from edge.serve.schemas import JSONAnswer
from edge.serve.streaming import Event, first_of, sse_named, unless_gone

MOST_STORED, MOST_STORED_BYTES = 1000, 64 << 20
_SSE: dict[str, Any] = {"text/event-stream": {"schema": {"description": "OpenAI's events of a response."}}}
_HEADERS = {name: {"description": text, "schema": {"type": "string"}} for name, (_, text) in ANSWER_HEADERS.items()}
_ANSWER: dict[int | str, dict[str, Any]] = {200: {"content": _SSE, "headers": _HEADERS}, 404: {}, 503: {}}
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {}}


@dataclass(frozen=True, slots=True)
class Stored:
    """A response, the items that it answered, and the conversation up to and with it."""

    body: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]]
    messages: Sequence[dict[str, Any]]
    size: int


class StoredResponses:
    """The newest responses by their id."""

    def __init__(self, most: int = MOST_STORED, most_bytes: int = MOST_STORED_BYTES) -> None:
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._most, self._most_bytes = most, most_bytes
        self._bytes = 0

    def keep(self, body: Mapping[str, Any], items: Sequence[Mapping[str, Any]], messages: Sequence[dict[str, Any]]) -> None:
        """Store a response; the oldest ones make room."""
        size = len(str(messages)) + len(str(body))
        self._stored[str(body["id"])] = Stored(body, items, messages, size)
        self._bytes += size
        while len(self._stored) > self._most or (self._bytes > self._most_bytes and len(self._stored) > 1):
            self._bytes -= self._stored.popitem(last=False)[1].size

    def get(self, name: str, param: str) -> Stored:
        """One of them. Raises RequestProblem."""
        if name not in self._stored:
            message = (
                f"no response {name[:80]!r} is stored; the last {self._most} are, until the agent ends. "
                "Send the whole conversation as input instead"
            )
            raise RequestProblem(404, message, code="response_not_found", param=param)
        return self._stored[name]

    def delete(self, name: str) -> None:
        """Forget one. Raises RequestProblem."""
        self._bytes -= self.get(name, "response_id").size
        del self._stored[name]


def add_response_routes(
    app: FastAPI,
    answers: AnswerService,
    clock: Clock,
    models: Mapping[str, Mode | None],
    problem_of: Callable[[Exception], RequestProblem],
    count: Callable[[AnswerNote], None],
    calls: CallFormat,
) -> None:
    """The routes. `problem_of` an error in the middle of a stream is what the client sees of it; `count` gets every answer; `calls`: how
    the local model writes calls of tools."""
    stored = StoredResponses()

    @app.post("/v1/responses", response_model=ResponseObject, responses=_ANSWER)
    async def respond(request: Request, body: ResponsesRequest, x_edge_task: Annotated[str, Header()] = "") -> Response:
        """Answer an input, whole or streamed."""
        history: Sequence[dict[str, Any]] = ()
        if body.previous_response_id is not None:
            history = stored.get(body.previous_response_id, "previous_response_id").messages
        chat = body.as_chat(history)
        question = chat.question(secrets.token_hex(8), models, x_edge_task, name_of, calls)
        writer = ResponseWriter(body, chat, question.id, int(clock.now()))

        def keep() -> None:
            if body.store is not False:
                stored.keep(writer.body, writer.items, [*history, *body.messages(), *writer.messages])

        reading = read_answer(answers.answer(question), count=count)
        if not body.stream:
            await unless_gone(request, _read(reading, writer))
            assert writer.note is not None
            keep()
            return JSONAnswer(writer.body, headers=answer_headers(writer.note))
        first = await unless_gone(request, first_of(reading))
        headers = {**NO_STORE, **answer_headers(answers.standing(question.task), question.id)}
        stream = _stream(writer, first, reading, problem_of, keep)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    @app.get("/v1/responses/{response_id}", response_model=ResponseObject, responses=_NOT_FOUND)
    async def show(response_id: str) -> Response:
        """A stored response."""
        return JSONAnswer(stored.get(response_id, "response_id").body)

    @app.delete("/v1/responses/{response_id}", response_model=Deleted, responses=_NOT_FOUND)
    async def delete(response_id: str) -> Response:
        """Forget a stored response."""
        stored.delete(response_id)
        return JSONAnswer({"id": response_id, "object": "response", "deleted": True})

    @app.get("/v1/responses/{response_id}/input_items", response_model=InputItems, responses=_NOT_FOUND)
    async def input_items(response_id: str) -> Response:
        """What a stored response answered."""
        items = list(stored.get(response_id, "response_id").items)
        ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]}
        return JSONAnswer({"object": "list", "data": items, "has_more": False, **ends})


async def _read(reading: Reading, writer: ResponseWriter) -> None:
    async with aclosing(reading):
        async for event in reading:
            for _ in writer.of(event):
                pass


async def _stream(
    writer: ResponseWriter,
    first: Event,
    reading: Reading,
    problem_of: Callable[[Exception], RequestProblem],
    keep: Callable[[], None],
) -> AsyncIterator[bytes]:
    yield b"".join(map(sse_named, writer.opening()))
    async with aclosing(reading):
        try:
            yield b"".join(map(sse_named, writer.of(first)))
            async for event in reading:
                yield b"".join(map(sse_named, writer.of(event)))
            keep()
        except Exception as error:
            yield sse_named(writer.failed(problem_of(error)))


class ResponseWriter:
    """The events of one response in OpenAI's order, and the response that they make."""

    def __init__(self, request: ResponsesRequest, chat: ChatRequest, answer_id: str, created: int) -> None:
        self._request, self._chat, self._id = request, chat, answer_id
        self.body = response_head(request, answer_id, created)
        self.note: AnswerNote | None = None
        self._output: list[dict[str, Any]] = []
        self._number = -1

    @property
    def items(self) -> list[dict[str, Any]]:
        """The input as items."""
        given = self._request.input
        listed = [{"role": "user", "content": given}] if isinstance(given, str) else given
        found = []
        for number, item in enumerate(listed):
            parts = {"content": [{"type": "input_text", "text": item["content"]}]} if isinstance(item.get("content"), str) else {}
            found.append({"type": "message", "id": f"in_{self._id}_{number}", **item, **parts})
        return found

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The answer as a message of a chat, for the turns after it."""
        text = "".join(part["text"] for item in self._output if item["type"] == "message" for part in item["content"])
        calls = [
            {"id": item["call_id"], "type": "function", "function": {"name": item["name"], "arguments": item["arguments"]}}
            for item in self._output
            if item["type"] == "function_call"
        ]
        return [
            {"role": "assistant", "content": text or None, "tool_calls": calls}
            if calls
            else {"role": "assistant", "content": text}
        ]

    def opening(self) -> Iterator[dict[str, Any]]:
        """Before anything is there."""
        yield self._event("response.created", response=self.body)
        yield self._event("response.in_progress", response=self.body)

    def of(self, event: Event) -> Iterator[dict[str, Any]]:
        """What an event of the answer adds."""
        if isinstance(event, ChannelText):
            yield from self._text(event)
            return
        self.note = event
        yield from self._close()
        if event.refusal or not ((self._output and self._output[-1]["type"] == "message") or event.tool_calls):
            yield from self._refusal(event.refusal) if event.refusal else self._message("")
        for number, call in enumerate(event.tool_calls):
            yield from self._call(number, call)
        self.body = finished(self.body, self._output, event, self._chat, self._request.ignored)
        yield self._event(f"response.{self.body['status']}", response=self.body)

    def failed(self, problem: RequestProblem) -> dict[str, Any]:
        """The end of a response that failed on its way."""
        self.body = {**self.body, "status": "failed", "error": problem_body(problem), "output": self._output}
        return self._event("response.failed", response=self.body)

    def _text(self, event: ChannelText) -> Iterator[dict[str, Any]]:
        kind = "reasoning" if event.channel == "reasoning" else "message"
        if not self._output or self._output[-1]["type"] != kind or self._output[-1]["status"] != "in_progress":
            yield from self._close()
            yield from self._open(kind)
        item = self._output[-1]
        item["content"][0]["text"] += event.text
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        yield self._at(f"response.{_DELTAS[kind]}.delta", delta=event.text, **logprobs)

    def _message(self, text: str) -> Iterator[dict[str, Any]]:
        yield from self._text(ChannelText("content", text))
        yield from self._close()

    def _open(self, kind: str) -> Iterator[dict[str, Any]]:
        part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        item: dict[str, Any] = {"id": f"{_PREFIXES[kind]}_{self._id}_{len(self._output)}", "type": kind, "status": "in_progress"}
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["role"] = "assistant"
        else:
            item["summary"] = []
        self._output.append({**item, "content": [part]})
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item={**item, "content": []})
        yield self._at("response.content_part.added", part=part)

    def _close(self) -> Iterator[dict[str, Any]]:
        """The item that is being written is whole."""
        if not self._output or self._output[-1]["status"] != "in_progress":
            return
        item = self._output[-1]
        part, kind = item["content"][0], item["type"]
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        yield self._at(f"response.{_DELTAS[kind]}.done", text=part["text"], **logprobs)
        yield self._at("response.content_part.done", part=part)
        item["status"] = "incomplete" if self.note and self.note.finish == "length" else "completed"
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _refusal(self, refusal: str) -> Iterator[dict[str, Any]]:
        item = {"id": f"msg_{self._id}_{len(self._output)}", "type": "message", "role": "assistant", "status": "completed"}
        part = {"type": "refusal", "refusal": refusal, "text": refusal}
        self._output.append({**item, "content": [part]})
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item={**item, "content": []})
        yield self._at("response.content_part.added", part={**part, "refusal": ""})
        yield self._at("response.refusal.delta", delta=refusal)
        yield self._at("response.refusal.done", refusal=refusal)
        yield self._at("response.content_part.done", part=part)
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=self._output[-1])

    def _call(self, number: int, call: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        function = call.get("function") or {}
        item = {
            "id": f"fc_{self._id}_{number}",
            "type": "function_call",
            "call_id": call.get("id", ""),
            "name": function.get("name", ""),
            "arguments": function.get("arguments", ""),
            "status": "completed",
        }
        self._output.append(item)
        place = {"output_index": len(self._output) - 1, "item_id": item["id"]}
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=place["output_index"], item=begun)
        yield self._event("response.function_call_arguments.delta", delta=item["arguments"], **place)
        yield self._event("response.function_call_arguments.done", arguments=item["arguments"], name=item["name"], **place)
        yield self._event("response.output_item.done", output_index=place["output_index"], item=item)

    def _at(self, kind: str, **fields: Any) -> dict[str, Any]:
        """An event of the only part of the latest item."""
        return self._event(kind, item_id=self._output[-1]["id"], output_index=len(self._output) - 1, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}


_DELTAS = {"message": "output_text", "reasoning": "reasoning_text"}
_PREFIXES = {"message": "msg", "reasoning": "rs"}
