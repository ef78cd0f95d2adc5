"""The HTTP routes of the OpenAI API. Knows requests and responses; knows nothing of engines, sockets or who is behind `AnswerService`."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from edge.core.clock import Clock
from edge.core.errors import EdgeError
from edge.inference.raw_text import RawText
from edge.serve import openai_wire as wire
from edge.serve.api import control_routes
from edge.serve.choices import ChunkWriter, Event, collect_all, questions_of, side_by_side, whole_body
from edge.serve.completions import completion_routes
from edge.serve.control import AgentControl
from edge.serve.failures import RequestProblem, problem_of
from edge.serve.guard import DEFAULT_LIMITS, LOOPBACK_NAMES, App, Guard, Limits
from edge.serve.health import LIVENESS, health_routes
from edge.serve.openapi import document
from edge.serve.openapi_routes import COMPLETIONS, OPERATIONS
from edge.serve.openapi_shapes import SHAPES
from edge.serve.ports import AnswerService
from edge.serve.presence import unless_gone
from edge.serve.reasoning import Reading, read_answer
from edge.serve.told import edge_headers

Numbered = AsyncGenerator[tuple[int, Event], None]

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
        "dial",
        "elements",
        "learning",
        "numbers",
        "outbox",
    ),
    *("prose", "quota", "steps", "token", "view", "words"),
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
    origins: Sequence[str] = (),
    limits: Limits = DEFAULT_LIMITS,
    loaded_model: str = "",
    context_tokens: int | None = None,
    texts: RawText | None = None,
) -> App:
    """The guarded application. `names` are the host names it answers to; a `token` is asked for when not empty; pages of `origins` may ask.

    `loaded_model` is one more model name for clients to ask for, with the meaning of `edge`; `context_tokens` its context's length.
    `texts`: what continues plain texts; without it there are no plain completions.
    """
    more = [] if texts is None else completion_routes(texts, clock, loaded_model, lambda error: _logged(error).body())
    operations = OPERATIONS if texts is None else (*OPERATIONS, *COMPLETIONS)
    described = document(operations, SHAPES, token=bool(token))
    app = open_app(answers, control, clock, loaded_model, context_tokens, more=more, described=described)
    return Guard(app, names=names, token=token, open_paths=(*_PAGE, LIVENESS), origins=origins, limits=limits)


def open_app(
    answers: AnswerService,
    control: AgentControl,
    clock: Clock,
    loaded_model: str = "",
    context_tokens: int | None = None,
    *,
    more: Sequence[Route] = (),
    described: Mapping[str, Any] | None = None,
) -> Starlette:
    """The routes without their guard; `described` is what /openapi.json gives."""
    return _Endpoint(answers, control, clock, loaded_model, context_tokens).app(described or {}, more)


class _Endpoint:
    """The handlers of the OpenAI API, over one answer service."""

    def __init__(
        self, answers: AnswerService, control: AgentControl, clock: Clock, loaded_model: str, context: int | None
    ) -> None:
        self._models = wire.models_with(loaded_model)
        self._context_tokens = context
        self._answers = answers
        self._control = control
        self._clock = clock
        self._started = int(clock.now())

    def app(self, described: Mapping[str, Any], more: Sequence[Route]) -> Starlette:
        """Routes and error handlers."""
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name}", self.model),
            *health_routes(self._control),
            Route("/openapi.json", _description(described)),
            *control_routes(self._control),
            *more,
            *(Route(path, _page_file(*page)) for path, page in _PAGE.items()),
        ]
        kinds = (HTTPException, RequestProblem, EdgeError, ClientDisconnect, Exception)
        return Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, _on_failure))

    async def chat(self, request: Request) -> Response:
        """One chat completion, whole or streamed. What fails before the first text has its HTTP status."""
        task = request.headers.get("x-edge-task", "")
        chat = wire.parse_chat_request(await request.body(), secrets.token_hex(8), self._models, task)
        readings = [read_answer(self._answers.answer(question), chat.stops) for question in questions_of(chat)]
        if not chat.stream:
            return await unless_gone(request, self._whole(chat, readings))
        events = side_by_side(readings)
        first = await unless_gone(request, _first(events))
        headers = {"cache-control": "no-store", **edge_headers(self._answers.standing(chat.question.task), chat.question.id)}
        return StreamingResponse(self._stream(chat, first, events), media_type="text/event-stream", headers=headers)

    async def _whole(self, chat: wire.ChatRequest, readings: Sequence[Reading]) -> Response:
        choices = await collect_all(readings)
        return JSONResponse(whole_body(chat, choices, int(self._clock.now())), headers=edge_headers(choices[0].note))

    async def _stream(self, chat: wire.ChatRequest, first: tuple[int, Event], events: Numbered) -> AsyncIterator[bytes]:
        writer = ChunkWriter(chat, int(self._clock.now()))
        yield b"".join(map(wire.sse, writer.opening()))
        async with aclosing(events):
            try:
                async for index, event in _after(first, events):
                    yield b"".join(map(wire.sse, writer.of(index, event)))
            except Exception as error:
                yield wire.sse(_logged(error).body())
        yield wire.SSE_DONE

    async def models(self, request: Request) -> Response:
        """The model names a client may ask for."""
        return JSONResponse(wire.models_body(self._started, self._models, self._context_tokens))

    async def model(self, request: Request) -> Response:
        """One of them."""
        name = request.path_params["name"]
        return JSONResponse(wire.model_body(name, self._started, self._models, self._context_tokens))


async def _first(events: Numbered) -> tuple[int, Event]:
    return await anext(events)


async def _after(first: tuple[int, Event], events: Numbered) -> Numbered:
    yield first
    async for event in events:
        yield event


def _description(described: Mapping[str, Any]) -> Callable[[Request], Awaitable[Response]]:
    async def openapi(request: Request) -> Response:
        return JSONResponse(described)

    return openapi


def _page_file(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        body = files("edge.serve").joinpath("page", name).read_bytes()
        return Response(body, media_type=media_type, headers=_PAGE_HEADERS)

    return page


async def _on_failure(request: Request, error: Exception) -> Response:
    problem = _logged(error)
    return JSONResponse(problem.body(), status_code=problem.status, headers=problem.headers)


def _logged(error: Exception) -> RequestProblem:
    """What the client is told. Our own failures leave a line in the log, with the place but without texts."""
    if isinstance(error, HTTPException):
        code = error.detail.lower().replace(" ", "_")
        return RequestProblem(error.status_code, error.detail, code=code, headers=error.headers)
    if isinstance(error, ClientDisconnect):
        return RequestProblem(499, "the client went away", code="client_gone")
    problem = problem_of(error)
    if problem.status >= 500:
        _LOG.warning("request failed: %s", type(error).__name__)
    return problem
