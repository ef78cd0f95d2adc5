"""The HTTP routes of the OpenAI API. Knows requests and responses; knows nothing of engines, sockets or who is behind `AnswerService`."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from importlib.resources import files
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from edge.core.clock import Clock
from edge.core.errors import EdgeError
from edge.serve import openai_wire as wire
from edge.serve.api import control_routes
from edge.serve.control import AgentControl
from edge.serve.failures import RequestProblem, problem_of
from edge.serve.guard import LOOPBACK_NAMES, App, Guard
from edge.serve.ports import AnswerNote, AnswerService
from edge.serve.reasoning import ChannelText, Reading, read_answer

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_MODULES = (
    *(
        "adapters",
        "answer",
        "api",
        "app",
        "budget",
        "charts",
        "chat",
        "conversation",
        "elements",
        "learning",
        "numbers",
        "outbox",
    ),
    *("prose", "steps", "token", "view"),
)
_PAGE = {
    "/": ("index.html", "text/html"),
    "/page/style.css": ("style.css", "text/css"),
    **{f"/page/{name}.js": (f"{name}.js", "text/javascript") for name in _MODULES},
}
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def build_app(
    answers: AnswerService,
    control: AgentControl,
    clock: Clock,
    *,
    names: Sequence[str] = LOOPBACK_NAMES,
    token: str = "",
    max_posts: int = 32,
    loaded_model: str = "",
) -> App:
    """The guarded application. `names` are the host names it answers to; a `token` is asked for when not empty.

    `loaded_model` is one more model name for clients to ask for, with the meaning of `edge`.
    """
    app = _Endpoint(answers, control, clock, loaded_model).app()
    return Guard(app, names=names, token=token, open_paths=_PAGE, max_posts=max_posts)


class _Endpoint:
    """The handlers of the OpenAI API, over one answer service."""

    def __init__(self, answers: AnswerService, control: AgentControl, clock: Clock, loaded_model: str) -> None:
        self._models = wire.models_with(loaded_model)
        self._answers = answers
        self._control = control
        self._clock = clock
        self._started = int(clock.now())

    def app(self) -> Starlette:
        """Routes and error handlers."""
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name}", self.model),
            Route("/health", self.health),
            *control_routes(self._control),
            *(Route(path, _page_file(*page)) for path, page in _PAGE.items()),
        ]
        kinds = (HTTPException, RequestProblem, EdgeError, ClientDisconnect, Exception)
        return Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, _on_failure))

    async def chat(self, request: Request) -> Response:
        """One chat completion, whole or streamed. What fails before the first text has its HTTP status."""
        chat = wire.parse_chat_request(await request.body(), secrets.token_hex(8), self._models)
        reading = read_answer(self._answers.answer(chat.question), chat.stops)
        if not chat.stream:
            return await _unless_gone(request, self._whole(chat, reading))
        first = await _unless_gone(request, _first(reading))
        headers = {"cache-control": "no-store", "x-edge-answer-id": chat.question.id}
        return StreamingResponse(self._stream(chat, first, reading), media_type="text/event-stream", headers=headers)

    async def _whole(self, chat: wire.ChatRequest, reading: Reading) -> Response:
        text = {"reasoning": "", "content": ""}
        async with aclosing(reading):
            async for event in reading:
                if isinstance(event, AnswerNote):
                    body = wire.completion_body(chat, event, text["content"], text["reasoning"], int(self._clock.now()))
                    return JSONResponse(body, headers=wire.edge_headers(event))
                text[event.channel] += event.text
        raise RequestProblem(500, "the answer ended without its record", code="internal")

    async def _stream(self, chat: wire.ChatRequest, first: ChannelText | AnswerNote, reading: Reading) -> AsyncIterator[bytes]:
        created = int(self._clock.now())
        stream_id = wire.completion_id(chat.question.id)
        yield wire.sse(wire.chunk_body(chat, stream_id, created, {"role": "assistant", "content": ""}))
        async with aclosing(reading):
            try:
                async for event in _after(first, reading):
                    for chunk in _chunks(chat, stream_id, created, event):
                        yield wire.sse(chunk)
            except Exception as error:
                yield wire.sse(_logged(error).body())
        yield wire.SSE_DONE

    async def models(self, request: Request) -> Response:
        """The model names a client may ask for."""
        return JSONResponse(wire.models_body(self._started, self._models))

    async def model(self, request: Request) -> Response:
        """One of them."""
        return JSONResponse(wire.model_body(request.path_params["name"], self._started, self._models))

    async def health(self, request: Request) -> Response:
        """Whether the endpoint answers at all."""
        return JSONResponse({"status": "ok"})


async def _first(reading: Reading) -> ChannelText | AnswerNote:
    return await anext(reading)


async def _after(first: ChannelText | AnswerNote, reading: Reading) -> AsyncIterator[ChannelText | AnswerNote]:
    yield first
    async for event in reading:
        yield event


def _chunks(chat: wire.ChatRequest, stream_id: str, created: int, event: ChannelText | AnswerNote) -> list[dict[str, Any]]:
    if isinstance(event, ChannelText):
        field = "reasoning_content" if event.channel == "reasoning" else "content"
        return [wire.chunk_body(chat, stream_id, created, {field: event.text})]
    last = wire.chunk_body(chat, stream_id, created, {}, event.finish, edge=wire.edge_body(chat, event))
    return [last, wire.usage_chunk(chat, stream_id, created, event)] if chat.include_usage else [last]


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is cancelled as soon as the client goes away. Raises ClientDisconnect then."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for unfinished in (task, gone):
            unfinished.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _page_file(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        body = files("edge.serve").joinpath("page", name).read_bytes()
        return Response(body, media_type=media_type, headers=_PAGE_HEADERS)

    return page


async def _on_failure(request: Request, error: Exception) -> Response:
    problem = _logged(error)
    return JSONResponse(problem.body(), status_code=problem.status)


def _logged(error: Exception) -> RequestProblem:
    """What the client is told. Our own failures leave a line in the log, with the place but without texts."""
    if isinstance(error, HTTPException):
        return RequestProblem(error.status_code, error.detail, code=error.detail.lower().replace(" ", "_"))
    if isinstance(error, ClientDisconnect):
        return RequestProblem(499, "the client went away", code="client_gone")
    problem = problem_of(error)
    if problem.status >= 500:
        _LOG.warning("request failed: %s", type(error).__name__)
    return problem
