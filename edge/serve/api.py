"""The agent's own HTTP routes, for its page and commands. Knows requests and JSON values; knows nothing of what they mean."""

from __future__ import annotations

import json

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edge.serve.control import AgentControl
from edge.serve.failures import RequestProblem


def control_routes(control: AgentControl) -> list[Route]:
    """The routes under /api."""
    api = _Api(control)
    return [
        Route("/api/status", api.status),
        Route("/api/steps", api.steps),
        Route("/api/why/{answer_id}", api.why),
        Route("/api/adapters", api.adapters),
        Route("/api/adapters/rollback", api.rollback, methods=["POST"]),
    ]


class _Api:
    """The handlers, over one agent."""

    def __init__(self, control: AgentControl) -> None:
        self._control = control

    async def status(self, request: Request) -> Response:
        """What the agent is doing now, for the page."""
        return JSONResponse(await self._control.status())

    async def steps(self, request: Request) -> Response:
        """Learning steps with a number above ?after=N, for the curves."""
        return JSONResponse({"steps": list(await self._control.steps(_after_of(request)))})

    async def why(self, request: Request) -> Response:
        """How one answer came about."""
        answer_id = request.path_params["answer_id"].removeprefix("chatcmpl-")
        return JSONResponse(await self._control.why(answer_id))

    async def adapters(self, request: Request) -> Response:
        """The adapter versions on disk."""
        return JSONResponse({"adapters": list(await self._control.adapters())})

    async def rollback(self, request: Request) -> Response:
        """Go back to {"version": N}; what serves and what is trained on afterwards."""
        return JSONResponse(await self._control.rollback(_version_of(await request.body())))


def _version_of(body: bytes) -> int:
    try:
        version = json.loads(body)["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        version = None
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 10**12:
        raise RequestProblem(400, 'version: must be a whole number, as in {"version": 12}', code="invalid_value", param="version")
    return version


def _after_of(request: Request) -> int:
    text = request.query_params.get("after", "0")
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise RequestProblem(400, "after: must be a whole number", code="invalid_value", param="after")
    return int(text)
