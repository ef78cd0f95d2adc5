"""The agent's own HTTP routes, for its page and commands. Knows requests and JSON values; knows nothing of what they mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edge.serve.control import AgentControl
from edge.serve.failures import RequestProblem
from edge.serve.fields import parse_json


def control_routes(control: AgentControl) -> list[Route]:
    """The routes under /api."""
    api = _Api(control)
    return [
        Route("/api/status", api.status),
        Route("/api/steps", api.steps),
        Route("/api/why/{answer_id}", api.why),
        Route("/api/adapters", api.adapters),
        Route("/api/adapters/rollback", api.rollback, methods=["POST"]),
        Route("/api/budget", api.budget, methods=["GET", "POST"]),
        Route("/api/budget/pause", api.pause, methods=["POST"]),
        Route("/api/whatif", api.whatif, methods=["POST"]),
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

    async def budget(self, request: Request) -> Response:
        """The budgets of all tasks. POST turns a dial before: {"task": label, or null for every task, "target_rate": share,
        or null for none}."""
        if request.method != "POST":
            return JSONResponse(await self._control.budget())
        body = parse_json(await request.body())
        if "target_rate" not in body:
            raise _invalid("target_rate", 'is missing, as in {"target_rate": 0.15}')
        rate = None if body["target_rate"] is None else _share(body, "target_rate")
        return JSONResponse(await self._control.set_dial(_text(body, "task") or None, rate))

    async def pause(self, request: Request) -> Response:
        """Pause or resume the cloud: {"paused": true}; the budgets afterwards."""
        paused = parse_json(await request.body()).get("paused")
        if not isinstance(paused, bool):
            raise _invalid("paused", "must be true or false")
        return JSONResponse(await self._control.pause(paused))

    async def whatif(self, request: Request) -> Response:
        """What other rates would have meant: {"target_rate": share, or a list of them; "task": label; "last": how many answers}."""
        body = parse_json(await request.body())
        given = body.get("target_rate")
        rates = [_share({"target_rate": rate}, "target_rate") for rate in (given if isinstance(given, list) else [given])]
        if not 1 <= len(rates) <= _MOST_RATES:
            raise _invalid("target_rate", f"must be one rate, or from 1 to {_MOST_RATES} of them")
        last = body.get("last", _LAST)
        if isinstance(last, bool) or not isinstance(last, int) or not 1 <= last <= _MOST_ANSWERS:
            raise _invalid("last", f"must be a whole number from 1 to {_MOST_ANSWERS}")
        return JSONResponse(await self._control.whatif(rates, _text(body, "task"), last))


_LAST, _MOST_ANSWERS, _MOST_RATES, _MOST_CHARS = 1000, 100_000, 64, 200


def _invalid(param: str, message: str) -> RequestProblem:
    return RequestProblem(400, f"{param}: {message}", code="invalid_value", param=param)


def _share(body: Mapping[str, Any], name: str) -> float:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise _invalid(name, "must be a number from 0 to 1")
    return float(value)


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is not None and (
        not isinstance(value, str) or len(value) > _MOST_CHARS or not (value.isascii() and value.isprintable())
    ):
        raise _invalid(name, f"must be at most {_MOST_CHARS} characters of ASCII")
    return value or ""


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
