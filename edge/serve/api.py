"""The agent's own HTTP routes, for its page and commands. Knows requests and JSON values; knows nothing of what they mean."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edge.serve import api_fields as fields
from edge.serve.control import AgentControl


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
        Route("/api/budget", api.budget, methods=["GET", "POST"]),
        Route("/api/budget/forget", api.forget_task, methods=["POST"]),
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
        return JSONResponse({"steps": list(await self._control.steps(fields.number_of(request, "after", 0)))})

    async def why(self, request: Request) -> Response:
        """How one answer came about."""
        answer_id = request.path_params["answer_id"].removeprefix("chatcmpl-")
        return JSONResponse(await self._control.why(answer_id))

    async def adapters(self, request: Request) -> Response:
        """The adapter versions on disk."""
        return JSONResponse({"adapters": list(await self._control.adapters())})

    async def rollback(self, request: Request) -> Response:
        """Go back to {"version": N}; what serves and what is trained on afterwards."""
        return JSONResponse(await self._control.rollback(fields.version_of(await request.body())))

    async def sent(self, request: Request) -> Response:
        """What left the device: ?limit=&before=&since=&kind=&answer=, newest first."""
        return JSONResponse(await self._control.sent(fields.choice_of(request)))

    async def sent_entry(self, request: Request) -> Response:
        """One request that left, with its content."""
        return JSONResponse(await self._control.sent_entry(fields.entry_of(request)))

    async def feedback(self, request: Request) -> Response:
        """Keep {"id": ID, "verdict": "good"|"bad"|"none", "correction": TEXT|null}; what was kept."""
        return JSONResponse(await self._control.feedback(*fields.feedback_of(await request.body())))

    async def learning(self, request: Request) -> Response:
        """Pause or resume learning: {"paused": true|false}."""
        return JSONResponse(await self._control.pause_learning(fields.paused_of(await request.body())))

    async def report(self, request: Request) -> Response:
        """What was learned, gained, forgotten and spent since ?since=SECONDS of the epoch (0: ever)."""
        return JSONResponse(await self._control.report(fields.since_of(request)))

    async def budget(self, request: Request) -> Response:
        """The budgets of all tasks. POST turns a dial before: {"task": label, or null for every task, "target_rate": share or null}."""
        if request.method != "POST":
            return JSONResponse(await self._control.budget())
        return JSONResponse(await self._control.set_dial(*fields.dial_of(await request.body())))

    async def forget_task(self, request: Request) -> Response:
        """Strike out a label's dial: {"task": label}; the budgets afterwards."""
        return JSONResponse(await self._control.forget_task(fields.task_of(await request.body())))

    async def pause(self, request: Request) -> Response:
        """Pause or resume the cloud: {"paused": true}; the budgets afterwards."""
        return JSONResponse(await self._control.pause(fields.paused_of(await request.body())))

    async def whatif(self, request: Request) -> Response:
        """What other rates would have meant: {"target_rate": share, or a list of them; "task": label; "last": how many answers}."""
        return JSONResponse(await self._control.whatif(*fields.rates_of(await request.body())))
