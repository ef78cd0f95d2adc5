"""The agent's own routes: health, usage, /openapi.json, and what the page and the commands look at and steer under /api."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from pydantic import BeforeValidator, Field
from starlette.responses import JSONResponse, Response

from edge.cloud.sent import Choice, SentKind
from edge.serve import agent_schemas as schemas
from edge.serve.ports import AgentControl
from edge.serve.schemas import DIGITS, QueryInt, TaskLabel

LIVENESS = "/health"
"""What needs no token."""
_Paused = Annotated[bool, Body(embed=True, strict=True)]
_Version = Annotated[int, Body(embed=True, strict=True, ge=0, lt=10**12)]
_Task = Annotated[TaskLabel, Body(embed=True, strict=True, min_length=1)]
_Limit = Annotated[int, Field(ge=1, le=500), DIGITS]
_Since = Annotated[float, Field(ge=0, le=10**12), DIGITS]
_Kind = Annotated[SentKind | None, BeforeValidator(lambda kind: kind or None)]
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {}}


def add_agent_routes(app: FastAPI, control: AgentControl) -> None:
    """The routes over one agent."""

    @app.get(LIVENESS, response_model=schemas.Liveness, openapi_extra={"security": []})
    async def alive() -> Response:
        """Whether the endpoint answers at all; needs no token and holds nothing else."""
        return JSONResponse({"status": "ok"})

    @app.get(
        "/health/ready",
        response_model=schemas.Readiness,
        responses={503: {"model": schemas.Readiness, "description": "Not ready"}},
    )
    async def ready() -> Response:
        """Whether questions can be answered."""
        readiness = await control.ready()
        return JSONResponse(dict(readiness), status_code=200 if readiness["ready"] else 503)

    @app.get("/v1/usage", response_model=schemas.AgentUsage)
    async def usage() -> Response:
        """What was used and what is left."""
        return JSONResponse({"object": "edge.usage", **await control.usage()})

    @app.get("/openapi.json")
    async def openapi(request: Request) -> dict[str, Any]:
        """This description."""
        described: dict[str, Any] = request.app.openapi()
        return described

    @app.get("/api/status", response_model=schemas.Status)
    async def status() -> Response:
        """What the agent is doing now."""
        return JSONResponse(await control.status())

    @app.get("/api/steps", response_model=schemas.Steps)
    async def steps(after: QueryInt = 0) -> Response:
        """Learning steps with a number above `after`, oldest first."""
        return JSONResponse({"steps": list(await control.steps(after))})

    @app.get("/api/why/{answer_id}", response_model=schemas.Explanation, responses=_NOT_FOUND)
    async def why(answer_id: str) -> Response:
        """How one answer came about."""
        return JSONResponse(await control.why(answer_id.removeprefix("chatcmpl-")))

    @app.get("/api/adapters", response_model=schemas.AdapterVersions)
    async def adapters() -> Response:
        """The adapter versions on disk."""
        return JSONResponse({"adapters": list(await control.adapters())})

    @app.post("/api/adapters/rollback", response_model=schemas.Lineage, responses=_NOT_FOUND)
    async def rollback(version: _Version) -> Response:
        """Go back to a version: it answers, and learning goes on from it."""
        return JSONResponse(await control.rollback(version))

    @app.get("/api/sent", response_model=schemas.Sent)
    async def sent(
        limit: _Limit = 50, before: QueryInt = 0, since: QueryInt = 0, kind: _Kind = None, answer: str = ""
    ) -> Response:
        """What left the device, newest first."""
        choice = Choice(limit, before or None, float(since) or None, kind, answer.removeprefix("chatcmpl-") or None)
        return JSONResponse(await control.sent(choice))

    @app.get("/api/sent/{entry_id}", response_model=schemas.SentEntry, responses=_NOT_FOUND)
    async def sent_entry(entry_id: QueryInt) -> Response:
        """One request that left, with its content."""
        return JSONResponse(await control.sent_entry(entry_id))

    @app.post("/api/feedback", response_model=schemas.Feedback, responses=_NOT_FOUND)
    async def feedback(body: schemas.FeedbackRequest) -> Response:
        """Keep what a person thinks of an answer; the last verdict counts."""
        answer_id = body.id.removeprefix("chatcmpl-")
        return JSONResponse(await control.feedback(answer_id, body.verdict, body.correction))

    @app.post("/api/learning", response_model=schemas.LearningPaused)
    async def learning(paused: _Paused) -> Response:
        """Pause or resume learning."""
        return JSONResponse(await control.pause_learning(paused))

    @app.get("/api/report", response_model=schemas.Report)
    async def report(since: _Since = 0) -> Response:
        """What was learned, gained, forgotten and spent since a time, in seconds of the epoch."""
        return JSONResponse(await control.report(since))

    @app.get("/api/budget", response_model=schemas.Budgets)
    async def budget() -> Response:
        """The budgets of all tasks, and how often each may ask."""
        return JSONResponse(await control.budget())

    @app.post("/api/budget", response_model=schemas.Budgets)
    async def set_dial(body: schemas.DialRequest) -> Response:
        """Turn the dial of a task, or of every one; the budgets afterwards."""
        return JSONResponse(await control.set_dial(body.task or None, body.target_rate))

    @app.post("/api/budget/forget", response_model=schemas.Budgets, responses=_NOT_FOUND)
    async def forget_task(task: _Task) -> Response:
        """Remove a label's dial; the budgets afterwards."""
        return JSONResponse(await control.forget_task(task))

    @app.post("/api/budget/pause", response_model=schemas.Budgets)
    async def pause(paused: _Paused) -> Response:
        """Pause or resume the cloud; the budgets afterwards."""
        return JSONResponse(await control.pause(paused))

    @app.post("/api/whatif", response_model=schemas.WhatIf, responses={409: {}})
    async def whatif(body: schemas.WhatIfRequest) -> Response:
        """What other rates would have meant for recorded answers."""
        rates = body.target_rate if isinstance(body.target_rate, list) else [body.target_rate]
        return JSONResponse(await control.whatif(rates, body.task or "", body.last))
