"""POST /v1/chat/completions and GET /v1/models: one request, its answers, and what is sent back."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from starlette.responses import Response, StreamingResponse

from edge.core.clock import Clock
from edge.core.tool_calls import CallFormat
from edge.core.types import Mode, ScoredToken
from edge.inference.channels import ChannelText
from edge.serve.chat_schemas import (
    ANSWER_HEADERS,
    ChatCompletion,
    ChatRequest,
    Model,
    Models,
    answer_headers,
    completion_id,
    edge_metadata,
    logprobs_body,
    model_body,
)
from edge.serve.ports import AnswerNote, AnswerService
from edge.serve.reasoning import read_answer
from edge.serve.schemas import JSONAnswer, usage_body
from edge.serve.streaming import (
    SSE_DONE,
    Event,
    StreamedChoice,
    choice_seed,
    collect_all,
    first_of,
    side_by_side,
    sse,
    unless_gone,
)
from edge.state.answer_record import AnswerRequest

NO_STORE = {"cache-control": "no-store"}
EVENT_STREAM = {"text/event-stream": {"schema": {"description": "Each event a chunk as OpenAI's, then [DONE]."}}}
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "content": EVENT_STREAM,
        "headers": {name: {"description": text, "schema": {"type": "string"}} for name, (_, text) in ANSWER_HEADERS.items()},
    },
    404: {},
    503: {},
}
Numbered = AsyncGenerator[tuple[int, Event], None]


def add_chat_routes(
    app: FastAPI,
    answers: AnswerService,
    clock: Clock,
    models: Mapping[str, Mode | None],
    context_tokens: int | None,
    error_event: Callable[[Exception], Mapping[str, Any]],
    count: Callable[[AnswerNote], None],
    calls: CallFormat,
) -> None:
    """The routes. `models` are the names to ask for; `error_event` is what is sent of an error in the middle of a stream; `count` gets
    every answer; `calls`: how the local model writes calls of tools."""
    started = int(clock.now())

    @app.post("/v1/chat/completions", response_model=ChatCompletion, responses=_ANSWER)
    async def chat(request: Request, body: ChatRequest, x_edge_task: Annotated[str, Header()] = "") -> Response:
        """Answer a conversation, whole or streamed."""
        question = body.question(secrets.token_hex(8), models, x_edge_task, calls=calls)
        stops = () if body.has_form else body.stops
        readings = [read_answer(answers.answer(one), stops, count) for one in questions_of(question, body.choices)]
        created = int(clock.now())
        if not body.stream:
            choices = await unless_gone(request, collect_all(readings))
            return JSONAnswer(completion_body(body, question, choices, created), headers=answer_headers(choices[0].note))
        events = side_by_side(readings)
        first = await unless_gone(request, first_of(events))
        headers = {**NO_STORE, **answer_headers(answers.standing(question.task), question.id)}
        stream = _stream(ChunkWriter(body, question, created), first, events, error_event)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    @app.get("/v1/models", response_model=Models)
    async def list_models() -> Response:
        """The model names that can be asked for."""
        data = [model_body(name, started, models, context_tokens) for name in models]
        return JSONAnswer({"object": "list", "data": data})

    @app.get("/v1/models/{name}", response_model=Model, responses={404: {}})
    async def show_model(name: str) -> Response:
        """One of them."""
        return JSONAnswer(model_body(name, started, models, context_tokens))


def questions_of(question: AnswerRequest, choices: int) -> list[AnswerRequest]:
    """A question for each answer that is asked for, with an id and a seed of its own.

    Several are answered on this machine, with the reason in `no_cloud`: a request makes one cloud call at most.
    """
    if choices == 1:
        return [question]
    why = question.no_cloud
    if not why and question.mode != "local-only":
        why = f"n is {choices}: several answers are made on this device"
    return [
        replace(
            question,
            id=f"{question.id}-{index}",
            mode="local-only",
            no_cloud=why,
            seed=choice_seed(question.seed or 0, index),
        )
        for index in range(choices)
    ]


def completion_body(
    request: ChatRequest, question: AnswerRequest, choices: Sequence[StreamedChoice], created: int
) -> dict[str, Any]:
    """The `chat.completion` object. With several answers each choice carries its own `edge` object."""
    edges = [edge_metadata(request, choice.note) for choice in choices]
    bodies: list[dict[str, Any]] = []
    for index, (choice, edge) in enumerate(zip(choices, edges, strict=True)):
        note = choice.note
        message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": note.refusal}
        if note.tool_calls:
            message |= {"content": choice.content or None, "tool_calls": list(note.tool_calls)}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        logprobs = logprobs_body(choice.tokens) if request.logprobs and note.source != "cloud" else None
        body = {"index": index, "message": message, "logprobs": logprobs, "finish_reason": note.finish}
        bodies.append(body if len(choices) == 1 else {**body, "edge": edge})
    return {
        "id": completion_id(question.id),
        "object": "chat.completion",
        "created": created,
        "model": request.model,
        "choices": bodies,
        "usage": _usage([choice.note for choice in choices]),
        "edge": edges[0],
    }


def _usage(notes: Sequence[AnswerNote]) -> dict[str, Any]:
    """The prompt was read once, whatever the number of answers."""
    return usage_body(notes[0].prompt_tokens, sum(note.completion_tokens for note in notes), notes[0].prompt_cached)


class ChunkWriter:
    """The `chat.completion.chunk` objects of one streamed request."""

    def __init__(self, request: ChatRequest, question: AnswerRequest, created: int) -> None:
        self._request = request
        self._notes: list[AnswerNote] = []
        self._head = {
            "id": completion_id(question.id),
            "object": "chat.completion.chunk",
            "created": created,
            "model": request.model,
        }

    def opening(self) -> Iterator[dict[str, Any]]:
        """One chunk for each answer, with the role."""
        for index in range(self._request.choices):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def of(self, index: int, event: Event) -> Iterator[dict[str, Any]]:
        """The chunks of one event; after the last answer comes the usage, where it was asked for."""
        if isinstance(event, ChannelText):
            field = "reasoning_content" if event.channel == "reasoning" else "content"
            yield self._chunk(index, {field: event.text}, tokens=event.tokens)
            return
        self._notes.append(event)
        for number, call in enumerate(event.tool_calls):
            yield self._chunk(index, {"tool_calls": [{"index": number, **call}]})
        yield {**self._chunk(index, {}, event.finish), "edge": edge_metadata(self._request, event)}
        if self._request.include_usage and len(self._notes) == self._request.choices:
            yield {**self._head, "choices": [], "usage": _usage(self._notes)}

    def _chunk(
        self, index: int, delta: Mapping[str, Any], finish: str | None = None, tokens: tuple[ScoredToken, ...] = ()
    ) -> dict[str, Any]:
        logprobs = logprobs_body(tokens) if tokens else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        usage = {"usage": None} if self._request.include_usage else {}
        return {**self._head, "choices": [choice], **usage}


async def _stream(
    writer: ChunkWriter,
    first: tuple[int, Event],
    events: Numbered,
    error_event: Callable[[Exception], Mapping[str, Any]],
) -> AsyncIterator[bytes]:
    yield b"".join(map(sse, writer.opening()))
    async with aclosing(events):
        try:
            yield b"".join(map(sse, writer.of(*first)))
            async for index, event in events:
                yield b"".join(map(sse, writer.of(index, event)))
        except Exception as error:
            yield sse(error_event(error))
    yield SSE_DONE
