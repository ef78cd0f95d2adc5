"""The agent's own routes: health, usage, /openapi.json, and what the page and the commands read and control under /api.

Of the responses the fields that clients may rely on; the agent may add others."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from fastapi import Body, FastAPI, Request
from pydantic import AfterValidator, BeforeValidator, Field
from starlette.responses import Response

from edge.agent import AgentStatus
from edge.cloud.sent import Choice, SentKind
from edge.core.errors import UsageError
from edge.core.periods import Period
from edge.serve.ports import INSTANCE, AgentControl
from edge.serve.schemas import (
    AS_WRITTEN,
    DIGITS,
    Count,
    JSONAnswer,
    QueryInt,
    RequestBody,
    ResponseBody,
    Share,
    TaskLabel,
    Text,
    explain,
    field_error,
)
from edge.state.feedback import MOST_CORRECTION_CHARS, steers

_MAX_ANSWERS, _MAX_RATES = 100_000, 64
Amount = Annotated[int, Field(ge=0, le=2**53)]


def _plain(text: str) -> str:
    if steers(text):
        raise field_error("", "holds control characters; only line ends and tabs are allowed")
    return text


class FeedbackRequest(RequestBody):
    """A person's rating of an answer; none takes it back."""

    id: Annotated[Text, Field(min_length=1)]
    verdict: Literal["good", "bad", "none"]
    correction: Annotated[Text, AfterValidator(_plain), Field(max_length=MOST_CORRECTION_CHARS)] | None = None


class DialRequest(RequestBody):
    """The rate τ of a task (null or empty: of every task); the rate null takes it off."""

    target_rate: Annotated[Share | None, AS_WRITTEN]
    task: TaskLabel | None = None


class LimitRequest(RequestBody):
    """Hard limits to set, null for none; what is left out stays. `off`: only the configuration's hold again."""

    calls_limit: Amount | None = None
    tokens_limit: Amount | None = None
    spend_limit_uusd: Amount | None = None
    period: Period | None = None
    off: bool = False

    @property
    def changes(self) -> dict[str, Any] | None:
        """What is set (None: nothing but what the configuration has). Raises UsageError where nothing, or both, is given."""
        given = self.model_dump(exclude_unset=True, exclude={"off"})
        if self.off == bool(given) or given.get("period", "") is None:
            raise UsageError(
                "a limit is set or taken off",
                hint="give calls_limit, tokens_limit, spend_limit_uusd or period, or off: true alone",
            )
        return given or None


class WhatIfRequest(RequestBody):
    """Rates to compare on the last answers to a task."""

    target_rate: Annotated[
        Share | Annotated[list[Share], Field(min_length=1, max_length=_MAX_RATES)],
        AS_WRITTEN,
        explain(f"must be a number from 0 to 1, or a list of 1 to {_MAX_RATES} of them"),
    ]
    task: TaskLabel | None = None
    last: Annotated[int, Field(ge=1, le=_MAX_ANSWERS)] = 1000


class Liveness(ResponseBody):
    """The endpoint answers."""

    status: Literal["ok"]
    instance: str


class Readiness(ResponseBody):
    """Whether questions can be answered, and what of the agent works."""

    ready: bool
    model: str
    adapter_version: Count
    coordinator: Literal["reached", "away"]
    learning: str


class Units(ResponseBody):
    """Calls, tokens and spend in micro-USD."""

    calls: Count
    tokens: Count
    spend_uusd: Count


class UnitLimits(ResponseBody):
    """The same as limits; null is unlimited."""

    calls: Count | None
    tokens: Count | None
    spend_uusd: Count | None


class UsedUnits(ResponseBody):
    """This device's own records."""

    answers: Count
    serving: Units
    learning: Units


class LedgerUsage(ResponseBody):
    """What the coordinator counts."""

    used: Units
    limits: UnitLimits
    left: UnitLimits
    dual: float
    target_rate: float


class AgentUsage(ResponseBody):
    """What was used and what is left."""

    object: Literal["edge.usage"]
    day: date
    today: UsedUnits
    all: UsedUnits
    ledger: LedgerUsage | None
    online: bool
    offline_reason: str


class Step(ResponseBody):
    """A finished learning step."""

    step: Annotated[int, Field(ge=1)]


class Steps(ResponseBody):
    """Learning steps, oldest first."""

    steps: list[Step]


class Explanation(ResponseBody):
    """How one answer came about."""

    id: str
    source: str
    reason: str


class AdapterVersion(ResponseBody):
    """An adapter on disk."""

    version: Count


class AdapterVersions(ResponseBody):
    """All of them, oldest first."""

    adapters: list[AdapterVersion]


class Lineage(ResponseBody):
    """The version that is learned on from, and the one that answers."""

    head: Count
    serving: Count


class Feedback(ResponseBody):
    """The rating that counts. `outlook`: when it is learned from, or why it is not; empty where it was taken back."""

    id: str
    verdict: Literal["good", "bad", "none"]
    correction: str | None = None
    outlook: str = ""


class LearningPaused(ResponseBody):
    """Whether learning is paused, and what it waits for."""

    paused: bool
    waiting: str


class Report(ResponseBody):
    """What was learned, gained, forgotten and spent."""

    since: float
    now: float
    tasks: list[Any]
    answers: list[Any]
    cloud: dict[str, Any]
    spend: dict[str, Any]


class Headline(ResponseBody):
    """Of this month's answers the share that came from this device; of the stored validation questions the share that is right in the end
    at the present rate, and what of it was gained since the beginning; spend in micro-USD. Null where nothing was counted.

    `own`: the validation questions are the person's own, and those of practice are counted in `practice`. `learned_from`: how many of them
    are learned from, too."""

    answered_locally: Share | None
    right_in_the_end: Share | None
    gained: float | None
    validation_questions: Count
    learned_from: Count
    own: bool
    practice: dict[str, Any] | None
    spent_today_uusd: Count
    spent_this_month_uusd: Count


class SentEntry(ResponseBody):
    """A request that left the device."""

    id: Count


class Sent(ResponseBody):
    """What left the device, newest first, and what waits."""

    sent: list[SentEntry]
    next_before: Count | None
    waiting: list[Any]


class TaskDial(ResponseBody):
    """How often a task has asked."""

    task: str
    questions: Count


class TaskBudget(ResponseBody):
    """The budget of one task."""

    task: str
    state: str
    line: str
    dial: TaskDial


class Budgets(ResponseBody):
    """The budgets of all tasks, and how often each may ask."""

    origin: str
    device: dict[str, Any] | None
    limits: dict[str, Any] | None
    target: str
    cloud_name: str
    paused: bool
    tasks: list[TaskBudget]


class Outlook(ResponseBody):
    """What one rate means."""

    rate: Share
    calls: Count
    notes: list[str]


class WhatIf(ResponseBody):
    """What other rates would have meant."""

    answers: Count
    present: Outlook
    outlooks: list[Outlook]


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

    @app.get(LIVENESS, response_model=Liveness, openapi_extra={"security": []})
    async def alive() -> Response:
        """Whether the endpoint answers at all; needs no token and holds nothing else."""
        return JSONAnswer({"status": "ok", "instance": INSTANCE})

    @app.get(
        "/health/ready",
        response_model=Readiness,
        responses={503: {"model": Readiness, "description": "Not ready"}},
    )
    async def ready() -> Response:
        """Whether questions can be answered."""
        readiness = await control.ready()
        return JSONAnswer(dict(readiness), status_code=200 if readiness["ready"] else 503)

    @app.get("/v1/usage", response_model=AgentUsage)
    async def usage() -> Response:
        """What was used and what is left."""
        return JSONAnswer({"object": "edge.usage", **await control.usage()})

    @app.get("/openapi.json")
    async def openapi(request: Request) -> dict[str, Any]:
        """This description."""
        described: dict[str, Any] = request.app.openapi()
        return described

    @app.get("/api/status", response_model=AgentStatus)
    async def status() -> Response:
        """What the agent is doing now."""
        return JSONAnswer(await control.status())

    @app.get("/api/steps", response_model=Steps)
    async def steps(after: QueryInt = 0) -> Response:
        """Learning steps with a number above `after`, oldest first."""
        return JSONAnswer({"steps": list(await control.steps(after))})

    @app.get("/api/why/{answer_id}", response_model=Explanation, responses=_NOT_FOUND)
    async def why(answer_id: str) -> Response:
        """How one answer came about; `last` means the newest answer's id."""
        return JSONAnswer(await control.why(bare_id(answer_id)))

    @app.get("/api/adapters", response_model=AdapterVersions)
    async def adapters() -> Response:
        """The adapter versions on disk."""
        return JSONAnswer({"adapters": list(await control.adapters())})

    @app.post("/api/adapters/rollback", response_model=Lineage, responses=_NOT_FOUND)
    async def rollback(version: _Version) -> Response:
        """Roll back to a version: it is active, and learning goes on from it."""
        return JSONAnswer(await control.rollback(version))

    @app.get("/api/sent", response_model=Sent)
    async def sent(
        limit: _Limit = 50, before: QueryInt = 0, since: QueryInt = 0, kind: _Kind = None, answer: str = ""
    ) -> Response:
        """What left the device, newest first."""
        choice = Choice(limit, before or None, float(since) or None, kind, bare_id(answer) or None)
        return JSONAnswer(await control.sent(choice))

    @app.get("/api/sent/{entry_id}", response_model=SentEntry, responses=_NOT_FOUND)
    async def sent_entry(entry_id: QueryInt) -> Response:
        """One request that left, with its content."""
        return JSONAnswer(await control.sent_entry(entry_id))

    @app.post("/api/feedback", response_model=Feedback, responses=_NOT_FOUND)
    async def feedback(body: FeedbackRequest) -> Response:
        """Keep a person's rating of an answer; the last one counts."""
        answer_id = bare_id(body.id)
        return JSONAnswer(await control.feedback(answer_id, body.verdict, body.correction))

    @app.post("/api/learning", response_model=LearningPaused)
    async def learning(paused: _Paused) -> Response:
        """Pause or resume learning."""
        return JSONAnswer(await control.pause_learning(paused))

    @app.get("/api/report", response_model=Report)
    async def report(since: _Since = 0) -> Response:
        """What was learned, gained, forgotten and spent since a time, in seconds of the epoch."""
        return JSONAnswer(await control.report(since))

    @app.get("/api/headline", response_model=Headline)
    async def headline() -> Response:
        """Answered locally, right in the end, gained, and spent."""
        return JSONAnswer(await control.headline())

    @app.get("/api/budget", response_model=Budgets)
    async def budget() -> Response:
        """The budgets of all tasks, and how often each may ask."""
        return JSONAnswer(await control.budget())

    @app.post("/api/budget", response_model=Budgets)
    async def set_dial(body: DialRequest) -> Response:
        """Turn the dial of a task, or of every one; the budgets afterwards."""
        return JSONAnswer(await control.set_dial(body.task or None, body.target_rate))

    @app.post("/api/budget/limit", response_model=Budgets)
    async def set_limits(body: LimitRequest) -> Response:
        """Set hard limits of this device's own ledger, from now on; the budgets afterwards."""
        return JSONAnswer(await control.set_limits(body.changes))

    @app.post("/api/budget/forget", response_model=Budgets, responses=_NOT_FOUND)
    async def forget_task(task: _Task) -> Response:
        """Remove a label's dial; the budgets afterwards."""
        return JSONAnswer(await control.forget_task(task))

    @app.post("/api/budget/pause", response_model=Budgets)
    async def pause(paused: _Paused) -> Response:
        """Pause or resume the cloud; the budgets afterwards."""
        return JSONAnswer(await control.pause(paused))

    @app.post("/api/whatif", response_model=WhatIf, responses={409: {}})
    async def whatif(body: WhatIfRequest) -> Response:
        """What other rates would have meant for recorded answers."""
        rates = body.target_rate if isinstance(body.target_rate, list) else [body.target_rate]
        return JSONAnswer(await control.whatif(rates, body.task or "", body.last))
