"""What the HTTP endpoint needs of an agent: `AnswerService` answers questions, `AgentControl` is read and controlled.

running_agent.py has both over a running agent, edge/testing/endpoint.py over prepared values. edge/cli/folder_agent.py has the second over
a folder at rest, edge/cli/remote_control.py over HTTP.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from edge.core.types import Mode, ScoredToken

if TYPE_CHECKING:
    from edge.cloud.sent import SentChoice
    from edge.serve import agent_schemas as views
    from edge.state.answer_record import AnswerRequest, TaskStanding

INSTANCE = secrets.token_hex(8)
"""Names this process, so that a command does not take another agent's endpoint for that of its own state folder."""

MODELS: dict[str, Mode | None] = {
    "edge": None,
    "edge-auto": "auto",
    "edge-prefer-local": "prefer-local",
    "edge-local": "local-only",
    "edge-cloud": "cloud-only",
}
"""Model names and the mode each one means; None is the agent's own."""


@dataclass(frozen=True, slots=True)
class AnswerNote:
    """The metadata of a finished answer.

    `source` is local, cloud or local-fallback, `reason` why in one line, `finish` stop, length, tool_calls or content_filter.
    `help_log_odds` (nats) and `dual` are None where no decision was taken; `calls_left` is None where there is no limit.
    `prompt_tokens` and `completion_tokens` are of who gave the answer: billed by the cloud, or computed here; `cloud_tokens` are all that
    were billed elsewhere. `final` is the answer alone, without reasoning, tags and box.
    `assist_rate` is the realised rate of the task's latest answers, `target_rate` its dial's τ (None: unknown). `tool_calls` are in
    OpenAI's form, `refusal` is the cloud LLM's. `asked`: help was asked for, by the model, by the mode or by what the request wants;
    `model_asked`: by the model itself. `quota` is what may still be asked, see
    edge/budget/quota.py.
    `stop`: the stop string of the request that ended the content, "" where none did.
    `cached`: the coordinator gave a stored answer again, which costs nothing. `task_known`: somebody set, learns or serves this label; a
    label of which that is not true may be a typing error. `cloud_model`: the cloud LLM that answered, "" where none did.
    """

    id: str
    source: str
    reason: str = ""
    finish: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    help_log_odds: float | None = None
    dual: float | None = None
    calls_left: int | None = None
    spend_left_uusd: int | None = None
    cloud_tokens: int = 0
    spend_uusd: int = 0
    adapter_version: int = 0
    latency_s: float = 0.0
    final: str = ""
    task: str = ""
    assist_rate: float | None = None
    target_rate: float | None = None
    tokens_left: int | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    asked: bool = False
    quota: Mapping[str, Any] | None = None
    cached: bool = False
    task_known: bool = True
    model_asked: bool = False
    cloud_model: str = ""
    prompt_cached: int = 0
    """How many of prompt_tokens this device had read for an earlier conversation."""
    refusal: str | None = None
    stop: str = ""

    def to_json(self) -> dict[str, Any]:
        """The note as a JSON object, without what the response has elsewhere."""
        return {name: getattr(self, name) for name in _METADATA_FIELDS}


_METADATA_FIELDS = tuple(
    field.name
    for field in fields(AnswerNote)
    if field.name not in ("finish", "prompt_tokens", "completion_tokens", "tool_calls", "refusal", "stop")
)


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A piece of a streamed answer; the last one carries the note. `tokens` are the local ones that end in it, where they were asked for,
    with offsets in the whole text. `verbatim`: it is content in the form that was asked for, in which tags are text. `source` is where
    the piece comes from."""

    text: str
    note: AnswerNote | None = None
    tokens: tuple[ScoredToken, ...] = ()
    verbatim: bool = False
    source: str = "local"


class AnswerService(Protocol):
    """An agent as the endpoint sees it. Every method may raise EdgeError and nothing else for a well-formed question."""

    def answer(self, question: AnswerRequest) -> AsyncGenerator[AnswerPiece, None]:
        """Stream one answer; the last piece has the note. Closing the iterator stops generation."""
        ...

    def standing(self, task: str | None) -> TaskStanding:
        """What is known before the next answer of this task (None: the agent's own)."""
        ...

    async def prompt_tokens(self, question: AnswerRequest) -> int:
        """How many tokens the model on this device reads before it answers; also of a question that does not fit its context."""
        ...


class AgentControl(Protocol):
    """An agent to read and to control, in the values of its routes. Every method may raise EdgeError and nothing else."""

    async def why(self, answer_id: str) -> views.ExplanationView:
        """How one answer came about (`last`: the newest one). Raises NotFound for an unknown id."""
        ...

    async def headline(self) -> views.HeadlineView:
        """Answered locally, right in the end, gained, and spent."""
        ...

    async def status(self) -> views.StatusView:
        """What the agent is doing now: model, mode, learning, budget."""
        ...

    async def steps(self, after: int) -> Sequence[views.StepView]:
        """Learning steps with a number above `after`, oldest first."""
        ...

    async def adapters(self) -> Sequence[views.AdapterVersionView]:
        """The adapter versions on disk, oldest first."""
        ...

    async def usage(self) -> views.UsageView:
        """Calls, tokens and spend, of today and of all days, with what limits them and what is left."""
        ...

    async def ready(self) -> views.ReadinessView:
        """Whether questions can be answered now, and what of the agent works; no secrets, no paths. `ready` is the whole in one word."""
        ...

    async def rollback(self, version: int) -> views.LineageView:
        """Serve and learn on from a version (0: the bare model). Raises NotFound, StateError or AdapterError."""
        ...

    async def budget(self) -> views.BudgetsView:
        """The budgets of all tasks with their dials."""
        ...

    async def set_dial(self, task: str | None, target_rate: float | None) -> views.BudgetsView:
        """Turn the dial of a task, or of every one (None); the rate None takes it off. Gives the budgets. Raises UsageError."""
        ...

    async def set_limits(self, changes: Mapping[str, Any] | None) -> views.BudgetsView:
        """Set hard limits of this device's own ledger, as fields of `BudgetLimits`; what is not named stays (None: the configuration's
        hold again). Gives the budgets. Raises UsageError where another coordinator rules."""
        ...

    async def forget_task(self, task: str) -> views.BudgetsView:
        """Strike out a label's dial. Gives the budgets. Raises NotFound."""
        ...

    async def pause(self, paused: bool) -> views.BudgetsView:
        """Ask no cloud until resumed, or again. Gives the budgets."""
        ...

    async def whatif(self, rates: Sequence[float], task: str, last: int) -> views.WhatIfView:
        """What these rates would have meant for the last answers to a task ("": to any). Raises TooFewAnswers."""
        ...

    async def sent(self, choice: SentChoice) -> views.SentView:
        """What left the device, newest first, and the step reports that wait."""
        ...

    async def sent_entry(self, entry_id: int) -> views.SentRequestView:
        """One of these with its content. Raises NotFound."""
        ...

    async def feedback(self, answer_id: str, verdict: str, correction: str | None) -> views.FeedbackView:
        """Keep what a person thinks of an answer, durably: good, bad, or none to take it back; the last one counts.

        Raises NotFound for an unknown id, UsageError for another rating.
        """
        ...

    async def report(self, since: float) -> views.ReportView:
        """What was learned, gained, forgotten and spent since a time (seconds since the epoch)."""
        ...

    async def pause_learning(self, paused: bool) -> views.LearningPausedView:
        """Begin no further step, or go on; kept over restarts."""
        ...
