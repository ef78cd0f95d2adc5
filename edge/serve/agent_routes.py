"""The agent's own routes: health, usage, /openapi.json, and what the page and the commands read and control under /api."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from pydantic import BeforeValidator, Field
from starlette.responses import Response

from edge.cloud.sent import SentChoice, SentKind
from edge.serve import agent_schemas as views
from edge.serve.agent_schemas import DialRequest, FeedbackRequest, LimitRequest, WhatIfRequest
from edge.serve.ports import INSTANCE, AgentControl
from edge.serve.schemas import DIGITS, JSONAnswer, QueryInt, TaskLabel

LIVENESS = "/health"
"""What needs no token."""
_Paused = Annotated[bool, Body(embed=True, strict=True)]
_Version = Annotated[int, Body(embed=True, strict=True, ge=0, lt=10**12)]
_Task = Annotated[TaskLabel, Body(embed=True, strict=True, min_length=1)]
_Limit = Annotated[int, Field(ge=1, le=500), DIGITS]
_Since = Annotated[float, Field(ge=0, le=10**12), DIGITS]
_Kind = Annotated[SentKind | None, BeforeValidator(lambda kind: kind or None)]
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {}}


def bare_id(given: str) -> str:
    """An answer's own id, of one as OpenAI's routes show it."""
    return given.removeprefix("chatcmpl-").removeprefix("resp_")


def add_agent_routes(app: FastAPI, control: AgentControl) -> None:
    """The routes over one agent."""

    @app.get(LIVENESS, openapi_extra={"security": []})
    async def alive() -> views.LivenessView:
        """Whether the endpoint answers at all; needs no token and holds nothing else."""
        return views.LivenessView(status="ok", instance=INSTANCE)

    @app.get(
        "/health/ready",
        response_model=views.ReadinessView,
        responses={503: {"model": views.ReadinessView, "description": "Not ready"}},
    )
    async def ready() -> Response:
        """Whether questions can be answered."""
        readiness = await control.ready()
        return JSONAnswer(readiness, status_code=200 if readiness.ready else 503)

    @app.get("/v1/usage")
    async def usage() -> views.UsageView:
        """What was used and what is left."""
        return await control.usage()

    @app.get("/openapi.json")
    async def openapi(request: Request) -> dict[str, Any]:
        """This description."""
        described: dict[str, Any] = request.app.openapi()
        return described

    @app.get("/api/status")
    async def status() -> views.StatusView:
        """What the agent is doing now."""
        return await control.status()

    @app.get("/api/steps")
    async def steps(after: QueryInt = 0) -> views.StepsView:
        """Learning steps with a number above `after`, oldest first."""
        return views.StepsView(steps=list(await control.steps(after)))

    @app.get("/api/why/{answer_id}", responses=_NOT_FOUND)
    async def why(answer_id: str) -> views.ExplanationView:
        """How one answer came about; `last` means the newest answer's id."""
        return await control.why(bare_id(answer_id))

    @app.get("/api/adapters")
    async def adapters() -> views.AdapterVersionsView:
        """The adapter versions on disk."""
        return views.AdapterVersionsView(adapters=list(await control.adapters()))

    @app.post("/api/adapters/rollback", responses=_NOT_FOUND)
    async def rollback(version: _Version) -> views.LineageView:
        """Roll back to a version: it is active, and learning goes on from it."""
        return await control.rollback(version)

    @app.get("/api/sent")
    async def sent(
        limit: _Limit = 50, before: QueryInt = 0, since: QueryInt = 0, kind: _Kind = None, answer: str = ""
    ) -> views.SentView:
        """What left the device, newest first."""
        return await control.sent(SentChoice(limit, before or None, float(since) or None, kind, bare_id(answer) or None))

    @app.get("/api/sent/{entry_id}", responses=_NOT_FOUND)
    async def sent_entry(entry_id: QueryInt) -> views.SentRequestView:
        """One request that left, with its content."""
        return await control.sent_entry(entry_id)

    @app.post("/api/feedback", responses=_NOT_FOUND)
    async def feedback(body: FeedbackRequest) -> views.FeedbackView:
        """Keep a person's rating of an answer; the last one counts."""
        return await control.feedback(bare_id(body.id), body.verdict, body.correction)

    @app.post("/api/learning")
    async def learning(paused: _Paused) -> views.LearningPausedView:
        """Pause or resume learning."""
        return await control.pause_learning(paused)

    @app.get("/api/report")
    async def report(since: _Since = 0) -> views.ReportView:
        """What was learned, gained, forgotten and spent since a time, in seconds of the epoch."""
        return await control.report(since)

    @app.get("/api/headline")
    async def headline() -> views.HeadlineView:
        """Answered locally, right in the end, gained, and spent."""
        return await control.headline()

    @app.get("/api/budget")
    async def budget() -> views.BudgetsView:
        """The budgets of all tasks, and how often each may ask."""
        return await control.budget()

    @app.post("/api/budget")
    async def set_dial(body: DialRequest) -> views.BudgetsView:
        """Turn the dial of a task, or of every one; the budgets afterwards."""
        return await control.set_dial(body.task or None, body.target_rate)

    @app.post("/api/budget/limit")
    async def set_limits(body: LimitRequest) -> views.BudgetsView:
        """Set hard limits of this device's own ledger, from now on; the budgets afterwards."""
        return await control.set_limits(body.changes)

    @app.post("/api/budget/forget", responses=_NOT_FOUND)
    async def forget_task(task: _Task) -> views.BudgetsView:
        """Remove a label's dial; the budgets afterwards."""
        return await control.forget_task(task)

    @app.post("/api/budget/pause")
    async def pause(paused: _Paused) -> views.BudgetsView:
        """Pause or resume the cloud; the budgets afterwards."""
        return await control.pause(paused)

    @app.post("/api/whatif", responses={409: {}})
    async def whatif(body: WhatIfRequest) -> views.WhatIfView:
        """What other rates would have meant for recorded answers."""
        rates = body.target_rate if isinstance(body.target_rate, list) else [body.target_rate]
        return await control.whatif(rates, body.task or "", body.last)
