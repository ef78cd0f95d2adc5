"""The agent's own routes on the wire. Of the responses the fields that clients may rely on; the agent may add others."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from edge.serve.schemas import Count, RequestBody, ResponseBody, Share, TaskLabel, Text, explain, field_error
from edge.state.feedback import MOST_CORRECTION_CHARS, steers

_MAX_ANSWERS, _MAX_RATES = 100_000, 64


def _plain(text: str) -> str:
    if steers(text):
        raise field_error("", "holds control characters; only line ends and tabs may stand in it")
    return text


class FeedbackRequest(RequestBody):
    """What a person thinks of an answer; the verdict none takes it back."""

    id: Annotated[Text, Field(min_length=1)]
    verdict: Literal["good", "bad", "none"]
    correction: Annotated[Text, AfterValidator(_plain), Field(max_length=MOST_CORRECTION_CHARS)] | None = None


class DialRequest(RequestBody):
    """The rate τ of a task (null or empty: of every task); the rate null takes it off."""

    target_rate: Share | None
    task: TaskLabel | None = None


class WhatIfRequest(RequestBody):
    """Rates to compare on the last answers to a task."""

    target_rate: Annotated[
        Share | Annotated[list[Share], Field(min_length=1, max_length=_MAX_RATES)],
        explain(f"must be a number from 0 to 1, or a list of 1 to {_MAX_RATES} of them"),
    ]
    task: TaskLabel | None = None
    last: Annotated[int, Field(ge=1, le=_MAX_ANSWERS)] = 1000


class Liveness(ResponseBody):
    """The endpoint answers."""

    status: Literal["ok"]


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


class LoadedModel(ResponseBody):
    """The model that answers."""

    name: str


class Status(ResponseBody):
    """What the agent is doing now."""

    mode: str
    model: LoadedModel


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
    """The verdict that is kept."""

    id: str
    verdict: Literal["good", "bad", "none"]
    correction: str | None = None


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
