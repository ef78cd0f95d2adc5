"""Puts the HTTP application together: OpenAI's routes and Anthropic's, the agent's own, the page, and how errors are answered."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from importlib.resources import files
from importlib.resources.abc import Traversable
from inspect import signature
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from edge import __version__
from edge.core.clock import Clock
from edge.core.errors import EdgeError
from edge.core.tool_calls import HERMES
from edge.inference.backend import RawText
from edge.serve.access import DEFAULT_LIMITS, LOOPBACK_NAMES, Access, EndpointLimits
from edge.serve.agent_routes import LIVENESS, add_agent_routes
from edge.serve.chat_routes import add_chat_routes
from edge.serve.chat_schemas import ANSWER_HEADERS
from edge.serve.completion_routes import Serving, add_completion_routes
from edge.serve.errors import MESSAGES_PATH, RequestProblem, invalid_request, problem_of
from edge.serve.message_routes import add_message_routes
from edge.serve.metrics import Meters, add_metrics_route
from edge.serve.ports import MODELS, AgentControl, AnswerService
from edge.serve.response_routes import add_response_routes
from edge.serve.schemas import ErrorBody, JSONAnswer
from edge.serve.unserved_routes import unserved_routes

_LOG = logging.getLogger(__name__)
_ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in (400, 403, 408, 413, 415, 429, 431, 500)}
"""What may be answered at any route: a GET may come with a body too."""
_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_PAGE = {
    "/" if file.name == "index.html" else f"/page/{file.name}": (file, _MEDIA_TYPES[ending])
    for file in files("edge.serve").joinpath("page").iterdir()
    if (ending := file.name.rpartition(".")[2]) in _MEDIA_TYPES
}
"""The page's files with their media types, by path."""
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
    limits: EndpointLimits = DEFAULT_LIMITS,
    loaded_model: str = "",
    context_tokens: int | None = None,
    texts: RawText | None = None,
    serving: Serving = nullcontext,
) -> Access:
    """The application, wrapped in its access check.

    `names` are the host names it answers to; a `token` is asked for when not empty; pages of `origins` may ask. `loaded_model` is one more
    model name for clients to ask for, with the meaning of `edge`; `context_tokens`: what a prompt and its answer share. `texts`: what
    continues plain texts, and how its model calls tools; without it there are no plain completions. `serving` is held while it does, so
    that learning waits.
    """
    kinds = (HTTPException, RequestValidationError, RequestProblem, EdgeError, ClientDisconnect, Exception)
    app = _Application(
        title="edge-agent",
        version=__version__,
        description="A small language model on this machine.",
        openapi_url=None,
        responses={**_ERRORS, **({401: {"model": ErrorBody}} if token else {})},
        exception_handlers=dict.fromkeys(kinds, _on_failure),
        generate_unique_id_function=lambda route: route.name,
        separate_input_output_schemas=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # what is asked here is reported to nobody
    )
    app.token, app.router.route_class = bool(token), _Route
    models = {**MODELS, loaded_model: MODELS.get(loaded_model)} if loaded_model else MODELS
    meters, calls = Meters(), (texts.tokenizer.calls if texts is not None else None) or HERMES
    add_chat_routes(app, answers, clock, models, context_tokens, _error_event, meters.answer, calls)
    add_response_routes(app, answers, clock, models, _logged, meters.answer, calls)
    add_message_routes(app, answers, models, _logged, meters.answer, calls)
    add_agent_routes(app, control)
    add_metrics_route(app, meters, control)
    if texts is not None:
        add_completion_routes(app, texts, serving, clock, loaded_model, _error_event)
    app.router.routes += [Route(path, _page_file(*page), include_in_schema=False) for path, page in _PAGE.items()]
    app.router.routes += unserved_routes()
    return Access(
        app,
        names=names,
        token=token,
        open_paths=(*_PAGE, LIVENESS),
        origins=origins,
        exposed=tuple(ANSWER_HEADERS),
        limits=limits,
        count=meters.request,
    )


class _Route(APIRoute):
    """A function without parameters is called without FastAPI's search for their values, which takes longer than most answers."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        if signature(self.endpoint).parameters:
            return super().get_route_handler()

        async def answer(request: Request) -> Response:
            found = await self.endpoint()
            return found if isinstance(found, Response) else JSONAnswer(found)

        return answer


class _Application(FastAPI):
    """FastAPI whose description names the errors and the token of this endpoint."""

    token = False

    def build_middleware_stack(self) -> ASGIApp:
        """Without FastAPI's telemetry, body limit and page for errors: `Access` has limits of its own, and every error has its handler."""
        return ExceptionMiddleware(AsyncExitStackMiddleware(self.router), handlers=self.exception_handlers)

    def openapi(self) -> dict[str, Any]:
        """The description at /openapi.json. Wrong fields are answered with 400, so FastAPI's own 422 is taken out."""
        if self.openapi_schema is None:
            described = super().openapi()
            for path, operations in described["paths"].items():
                name = "AnthropicError" if path.startswith(MESSAGES_PATH) else "ErrorBody"
                error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
                for responses in (operation["responses"] for operation in operations.values()):
                    responses.pop("422", None)
                    for status in (status for status in responses if status >= "400"):
                        responses[status]["content"] = error
            for unused in ("HTTPValidationError", "ValidationError"):
                described["components"]["schemas"].pop(unused, None)
            if self.token:
                key = {"type": "apiKey", "in": "header", "name": "x-api-key"}
                described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}, "key": key}
                described["security"] = [{"token": []}, {"key": []}]
        return self.openapi_schema or {}


def _page_file(file: Traversable, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        return Response(file.read_bytes(), media_type=media_type, headers=_PAGE_HEADERS)

    return page


async def _on_failure(request: Request, error: Exception) -> Response:
    problem = _logged(error)
    if problem.status == 405:  # Starlette names the methods of the first route of this path alone
        routes = [one for one in request.app.routes if isinstance(one, Route) and one.path_regex.match(request.scope["path"])]
        methods = {method for route in routes for method in route.methods or ()}
        problem.headers["allow"] = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
    return JSONResponse(problem.body_at(request.scope["path"]), status_code=problem.status, headers=problem.headers)


def _error_event(error: Exception) -> Mapping[str, Any]:
    return _logged(error).body()


def _logged(error: Exception) -> RequestProblem:
    """What the client sees. Our own failures leave a line in the log, with the place but without texts."""
    if isinstance(error, RequestValidationError):
        return invalid_request(error.errors())
    if isinstance(error, HTTPException):
        reason = error.__cause__
        if isinstance(reason, RequestProblem | ClientDisconnect):
            return _logged(reason)
        if reason is not None:  # a body that could not be read: FastAPI replaces the reason by a 400 of its own
            return RequestProblem(400, f"the body is not JSON ({type(reason).__name__})", code="invalid_json")
        return RequestProblem(error.status_code, error.detail, code=error.detail.lower().replace(" ", "_"), headers=error.headers)
    if isinstance(error, ClientDisconnect):
        return RequestProblem(499, "the client went away", code="client_gone")
    problem = problem_of(error)
    if problem.status >= 500:
        _LOG.warning("request failed: %s", type(error).__name__)
    return problem
