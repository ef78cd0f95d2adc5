"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the same answers as chat completions."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from starlette.responses import Response, StreamingResponse

from edge.core.tool_calls import CallFormat
from edge.core.types import Mode
from edge.inference.channels import ChannelText
from edge.serve.chat_routes import NO_STORE
from edge.serve.chat_schemas import ANSWER_HEADERS, ChatRequest, answer_headers
from edge.serve.errors import MESSAGES_PATH, RequestProblem
from edge.serve.message_schemas import (
    AnthropicError,
    AnthropicMessage,
    CountedTokens,
    MessagesRequest,
    message_end,
    message_head,
    name_of,
    tool_use_block,
)
from edge.serve.ports import AnswerNote, AnswerService
from edge.serve.reasoning import Reading, read_answer
from edge.serve.schemas import JSONAnswer
from edge.serve.streaming import Event, first_of, sse_named, unless_gone

_SSE: dict[str, Any] = {"text/event-stream": {"schema": {"description": "Anthropic's events of a message."}}}
_HEADERS = {name: {"description": text, "schema": {"type": "string"}} for name, (_, text) in ANSWER_HEADERS.items()}
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": _SSE, "headers": _HEADERS},
    404: {"model": AnthropicError},
    503: {"model": AnthropicError},
}


def add_message_routes(
    app: FastAPI,
    answers: AnswerService,
    models: Mapping[str, Mode | None],
    problem_of: Callable[[Exception], RequestProblem],
    count: Callable[[AnswerNote], None],
    calls: CallFormat,
) -> None:
    """The routes. `problem_of` an error in the middle of a stream is what the client sees of it; `count` gets every answer; `calls`: how
    the local model writes calls of tools."""

    @app.post(MESSAGES_PATH, response_model=AnthropicMessage, responses=_ANSWER)
    async def message(request: Request, body: MessagesRequest, x_edge_task: Annotated[str, Header()] = "") -> Response:
        """Answer a conversation in Anthropic's form, whole or streamed."""
        chat = body.as_chat()
        question = chat.question(secrets.token_hex(8), models, x_edge_task, name_of, calls)
        writer = MessageWriter(body, chat, question.id)
        reading = read_answer(answers.answer(question), () if chat.has_form else chat.stops, count)
        if not body.stream:
            note = await unless_gone(request, _read(reading, writer))
            return JSONAnswer(writer.body, headers=answer_headers(note))
        first = await unless_gone(request, first_of(reading))
        headers = {**NO_STORE, **answer_headers(answers.standing(question.task), question.id)}
        stream = _stream(writer, first, reading, problem_of)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    @app.post(f"{MESSAGES_PATH}/count_tokens", response_model=CountedTokens, responses={404: {"model": AnthropicError}})
    async def count_tokens(body: MessagesRequest) -> Response:
        """How many tokens of a conversation the model on this device would read."""
        question = body.as_chat().question(secrets.token_hex(8), models, name_of=name_of, calls=calls)
        return JSONAnswer({"input_tokens": await answers.prompt_tokens(question)})


async def _read(reading: Reading, writer: MessageWriter) -> AnswerNote:
    async with aclosing(reading):
        async for event in reading:
            for _ in writer.of(event):
                pass
            if isinstance(event, AnswerNote):
                return event
    raise RequestProblem(500, "the answer ended without its record", code="internal")


async def _stream(
    writer: MessageWriter, first: Event, reading: Reading, problem_of: Callable[[Exception], RequestProblem]
) -> AsyncIterator[bytes]:
    yield b"".join(map(sse_named, writer.opening()))
    async with aclosing(reading):
        try:
            yield b"".join(map(sse_named, writer.of(first)))
            async for event in reading:
                yield b"".join(map(sse_named, writer.of(event)))
        except Exception as error:
            yield sse_named(problem_of(error).anthropic_body())


class MessageWriter:
    """The events of one message in Anthropic's order, and the message that they make."""

    def __init__(self, request: MessagesRequest, chat: ChatRequest, answer_id: str) -> None:
        self._request, self._chat = request, chat
        self.body = message_head(request, answer_id)
        self._blocks: list[dict[str, Any]] = self.body["content"]
        self._writing = ""
        """The type of the block that is being written, thinking or text, "" where none is."""

    def opening(self) -> Iterator[dict[str, Any]]:
        """Before anything is there."""
        yield {"type": "message_start", "message": self.body}

    def of(self, event: Event) -> Iterator[dict[str, Any]]:
        """What an event of the answer adds."""
        if isinstance(event, ChannelText):
            kind = "thinking" if event.channel == "reasoning" else "text"
            if kind == "text" or self._request.shows_thinking:
                yield from self._text(kind, event.text)
            return
        if event.refusal:
            yield from self._text("text", event.refusal)
        yield from self._close()
        for call in event.tool_calls:
            block = tool_use_block(call)
            arguments = json.dumps(block["input"], ensure_ascii=False)
            yield self._begin(block, {**block, "input": {}})
            yield self._delta(type="input_json_delta", partial_json=arguments)
            yield self._end()
        end = message_end(self._request, self._chat, event)
        self.body = {**self.body, **end}
        delta = {name: end[name] for name in ("stop_reason", "stop_sequence")}
        yield {"type": "message_delta", "delta": delta, "usage": end["usage"], "edge": end["edge"]}
        yield {"type": "message_stop"}

    def _text(self, kind: str, text: str) -> Iterator[dict[str, Any]]:
        """A block of thinking or of text has its text under the name of its type."""
        if self._writing != kind:
            yield from self._close()
            block = {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
            yield self._begin(block, dict(block))
            self._writing = kind
        self._blocks[-1][kind] += text
        yield self._delta(type=f"{kind}_delta", **{kind: text})

    def _close(self) -> Iterator[dict[str, Any]]:
        if self._writing:
            self._writing = ""
            yield self._end()

    def _begin(self, block: dict[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
        self._blocks.append(block)
        return {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": shown}

    def _delta(self, **delta: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _end(self) -> dict[str, Any]:
        return {"type": "content_block_stop", "index": len(self._blocks) - 1}
