"""The agent's own HTTP routes, for its page and commands. Knows requests and JSON values; knows nothing of what they mean."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edge.agent.sent import SENT_KINDS, Choice
from edge.serve.control import AgentControl
from edge.serve.failures import RequestProblem

_MOST_SENT = 500


def control_routes(control: AgentControl) -> list[Route]:
    """The routes under /api."""
    api = _Api(control)
    return [
        Route("/api/status", api.status),
        Route("/api/steps", api.steps),
        Route("/api/why/{answer_id}", api.why),
        Route("/api/adapters", api.adapters),
        Route("/api/adapters/rollback", api.rollback, methods=["POST"]),
        Route("/api/sent", api.sent),
        Route("/api/sent/{entry_id}", api.sent_entry),
        Route("/api/feedback", api.feedback, methods=["POST"]),
        Route("/api/learning", api.learning, methods=["POST"]),
        Route("/api/report", api.report),
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

    async def sent(self, request: Request) -> Response:
        """What left the device: ?limit=&before=&since=&kind=&answer=, newest first."""
        return JSONResponse(await self._control.sent(_choice_of(request)))

    async def sent_entry(self, request: Request) -> Response:
        """One request that left, with its content."""
        return JSONResponse(await self._control.sent_entry(_entry_of(request)))

    async def feedback(self, request: Request) -> Response:
        """Keep {"id": ID, "verdict": "good"|"bad"|"none", "correction": TEXT|null}; what was kept."""
        return JSONResponse(await self._control.feedback(*_feedback_of(await request.body())))

    async def learning(self, request: Request) -> Response:
        """Pause or resume learning: {"paused": true|false}."""
        paused = _object_of(await request.body()).get("paused")
        if not isinstance(paused, bool):
            raise RequestProblem(
                400, 'paused: must be true or false, as in {"paused": true}', code="invalid_value", param="paused"
            )
        return JSONResponse(await self._control.pause_learning(paused))

    async def report(self, request: Request) -> Response:
        """What was learned, gained, forgotten and spent since ?since=SECONDS of the epoch (0: ever)."""
        return JSONResponse(await self._control.report(_since_of(request)))


def _feedback_of(body: bytes) -> tuple[str, str, str | None]:
    given = _object_of(body)
    answer_id, verdict, correction = given.get("id"), given.get("verdict"), given.get("correction")
    if not isinstance(answer_id, str) or not answer_id:
        raise RequestProblem(400, "id: must be the id of an answer", code="invalid_value", param="id")
    if verdict not in ("good", "bad", "none"):
        raise RequestProblem(400, 'verdict: must be "good", "bad" or "none"', code="invalid_value", param="verdict")
    if not isinstance(correction, str | None):
        raise RequestProblem(400, "correction: must be a text or null", code="invalid_value", param="correction")
    return answer_id.removeprefix("chatcmpl-"), verdict, correction


def _object_of(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestProblem(400, "the body must be a JSON object", code="invalid_value")
    return value


def _since_of(request: Request) -> float:
    text = request.query_params.get("since", "0")
    if len(text) > 20 or not text.isascii() or not text.replace(".", "", 1).isdigit():
        raise RequestProblem(400, "since: must be seconds since the epoch", code="invalid_value", param="since")
    return float(text)


def _version_of(body: bytes) -> int:
    try:
        version = json.loads(body)["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        version = None
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 10**12:
        raise RequestProblem(400, 'version: must be a whole number, as in {"version": 12}', code="invalid_value", param="version")
    return version


def _after_of(request: Request) -> int:
    return _number(request, "after", 0)


def _choice_of(request: Request) -> Choice:
    asked = request.query_params
    kind = asked.get("kind") or None
    if kind is not None and kind not in SENT_KINDS:
        raise RequestProblem(400, f"kind: must be one of {', '.join(SENT_KINDS)}", code="invalid_value", param="kind")
    limit = _number(request, "limit", 50)
    if not 1 <= limit <= _MOST_SENT:
        raise RequestProblem(400, f"limit: must lie between 1 and {_MOST_SENT}", code="invalid_value", param="limit")
    before = _number(request, "before", 0) or None
    since = float(_number(request, "since", 0)) or None
    return Choice(limit, before, since, kind, asked.get("answer", "").removeprefix("chatcmpl-") or None)


def _entry_of(request: Request) -> int:
    text = request.path_params["entry_id"]
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise RequestProblem(400, "the number of an entry: must be a whole number", code="invalid_value", param="entry_id")
    return int(text)


def _number(request: Request, name: str, otherwise: int) -> int:
    text = request.query_params.get(name, str(otherwise))
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise RequestProblem(400, f"{name}: must be a whole number", code="invalid_value", param=name)
    return int(text)
