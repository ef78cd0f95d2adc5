"""A running agent as the two ports of the endpoint: what answers questions, and what pages and commands read and control."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from dataclasses import replace
from typing import Any, cast

from edge.agent import Agent
from edge.answering.explain import explained
from edge.budget.overview import overview
from edge.core.errors import CoordinatorError
from edge.core.units import BUDGET_UNITS
from edge.learning.activity import MadeSteps, activity_report, headline
from edge.rpc.client import BudgetSnapshot
from edge.serve import agent_schemas as views
from edge.serve.ports import AnswerNote, AnswerPiece
from edge.serve.recorded_control import RecordedControl
from edge.state.answer_record import AnswerRecord, AnswerRequest, TaskStanding
from edge.state.feedback import Feedback, FeedbackBook, Rating
from edge.state.rankings import ranking_of
from edge.state.reader import StateReader

_SHARED = frozenset(AnswerNote.__slots__) & frozenset(AnswerRecord.__slots__)
"""What a note and a record have under the same name."""


class AgentAnswers:
    """`AnswerService` over a running agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def answer(self, question: AnswerRequest) -> AsyncGenerator[AnswerPiece, None]:
        """Stream one answer; the last piece has the note."""
        deltas = self._agent.answerer.stream(question)
        async with aclosing(deltas):
            async for delta in deltas:
                note = None
                if delta.record is not None:
                    note = replace(note_of(delta.record), task_known=self._agent.access.is_known(delta.record.task))
                yield AnswerPiece(delta.text, note, delta.tokens, delta.verbatim, delta.source)

    def standing(self, task: str | None) -> TaskStanding:
        """What is known before the next answer of this task."""
        return self._agent.answerer.standing(task)

    async def prompt_tokens(self, question: AnswerRequest) -> int:
        """How many tokens the model on this device reads before it answers."""
        return await asyncio.to_thread(self._agent.answerer.prompt_tokens, question)  # a long conversation takes its time


def note_of(record: AnswerRecord) -> AnswerNote:
    """The record without its texts. Tokens are those of who gave the answer: what the cloud billed, or what was computed here."""
    shared = {name: getattr(record, name) for name in _SHARED}
    if record.source == "cloud":
        written = record.cloud_output_tokens
        shared |= {"prompt_tokens": record.cloud_tokens - written, "prompt_cached": 0, "completion_tokens": written}
    shared |= {
        "asked": record.asked or record.source != "local",
        "model_asked": record.asked and record.mode == "auto",
        "spend_uusd": record.charged_uusd,
    }
    beyond_text = json.loads(record.openai_json or "{}")
    return AnswerNote(**shared, tool_calls=tuple(beyond_text.get("tool_calls") or ()), refusal=beyond_text.get("refusal"))


class RunningAgent(RecordedControl):
    """`AgentControl` over a running agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._state = agent.components.state
        self._clock = agent.components.clock
        self._feedback = FeedbackBook(self._state)
        self._made_steps = MadeSteps()

    def _records(self) -> AbstractContextManager[StateReader]:
        return nullcontext(self._state)

    async def why(self, answer_id: str) -> views.ExplanationView:
        """The stored record of an answer with its decision in words and the ledger's entry of its call. Raises NotFound."""
        record = self._record(answer_id)
        explanation = await explained(record.to_json(), self._agent.link.call, said=self._feedback.of(record.id))
        ranking = ranking_of(self._state, record.task).to_json()
        return views.ExplanationView.model_validate({**explanation, "ranking": ranking})

    async def status(self) -> views.StatusView:
        """The agent's snapshot, with its budget where the coordinator can be reached."""
        budget = await self._budget()
        await self._bring_quota()
        return views.StatusView.model_validate(replace(self._agent.status(), budget=budget))

    async def adapters(self) -> Sequence[views.AdapterVersionView]:
        """The adapter versions on disk, oldest first."""
        versions = await asyncio.to_thread(self._agent.adapter.versions.all)
        return [views.AdapterVersionView.model_validate(version) for version in versions]

    async def rollback(self, version: int) -> views.LineageView:
        """Serve and learn on from a version."""
        return views.LineageView.model_validate((await self._agent.adapter.rollback(version)).to_dict())

    async def feedback(self, answer_id: str, verdict: str, correction: str | None) -> views.FeedbackView:
        """Keep what a person thinks of an answer. Raises NotFound, UsageError."""
        kept = self._feedback.give(Feedback(answer_id, cast(Rating, verdict), correction), self._clock.now())
        outlook = self._agent.learning.outlook(self._record(kept.id).to_json(), kept)
        return views.FeedbackView(id=kept.id, verdict=kept.verdict, correction=kept.correction, outlook=outlook)

    async def report(self, since: float) -> views.ReportView:
        """What was learned, gained, forgotten and spent since a time."""
        held = self._agent.held
        report = activity_report(self._state.database, since, self._clock.now(), self._made_steps)
        return views.ReportView.model_validate({**report, "target": held.target, "cloud_name": held.cloud_name})

    async def headline(self) -> views.HeadlineView:
        """Answered locally, right in the end, gained, and spent."""
        figures = headline(self._state.database, self._clock.now(), self._made_steps)
        return views.HeadlineView.model_validate({**figures, "cloud_name": self._agent.held.cloud_name})

    async def pause_learning(self, paused: bool) -> views.LearningPausedView:
        """Begin no further step, or go on."""
        learning = self._agent.learning
        learning.pause(paused)
        return views.LearningPausedView(paused=learning.paused, waiting=learning.waiting)

    async def usage(self) -> views.UsageView:
        """This device's own records, and the coordinator's ledger where it can be reached."""
        status, ledger = self._agent.status(), _ledger(await self._ledgers_budget())
        return self._used(ledger, online=status.online, offline_reason=status.offline_reason)

    async def ready(self) -> views.ReadinessView:
        """The model is loaded as soon as there is an agent; a coordinator that is away leaves it ready to answer locally."""
        status = self._agent.status()
        return views.ReadinessView(
            ready=True,
            model=status.model.name,
            adapter_version=status.adapter_version,
            coordinator="reached" if status.online else "away",
            learning=status.learning,
        )

    async def budget(self) -> views.BudgetsView:
        """The budgets of all tasks with their dials."""
        agent = self._agent
        found = await overview(agent.access, agent.link, agent.components.state, agent.held)
        return views.BudgetsView.model_validate(found.to_json())

    async def set_dial(self, task: str | None, target_rate: float | None) -> views.BudgetsView:
        """Turn the dial of a task, or of every one (None)."""
        self._agent.access.dials.set(target_rate, task)
        return await self.budget()

    async def set_limits(self, changes: Mapping[str, Any] | None) -> views.BudgetsView:
        """Set hard limits of this device's own ledger (None: the configuration's hold again)."""
        await self._agent.set_limits(changes)
        return await self.budget()

    async def forget_task(self, task: str) -> views.BudgetsView:
        """Strike out a label's dial. Raises NotFound."""
        self._agent.access.dials.forget(task)
        return await self.budget()

    async def pause(self, paused: bool) -> views.BudgetsView:
        """Ask no cloud until resumed, or again."""
        self._agent.access.pause_cloud(paused)
        return await self.budget()

    def _record(self, answer_id: str) -> AnswerRecord:
        """The stored record of an answer, or of the last one. Raises NotFound."""
        return AnswerRecord(**self._state.request(answer_id))

    async def _bring_quota(self) -> None:
        """The budget that people's questions use is asked for where the coordinator does not report it by itself."""
        link, task = self._agent.link, self._agent.access.serving_task
        if link.client.online and not link.follows(task):
            with suppress(CoordinatorError):  # it stays as it was known
                await link.budget(task)

    async def _ledgers_budget(self) -> BudgetSnapshot | None:
        """The budget that people's questions use, as the ledger has it; None while it cannot be asked."""
        await self._bring_quota()
        agent = self._agent
        known = agent.access.quotas.budgets.of(agent.access.serving_task) if agent.link.client.online else None
        return None if known is None else known.budget

    async def _budget(self) -> BudgetSnapshot | None:
        """The budget of the task at hand, with its λ; None while the coordinator cannot be asked."""
        link, task = self._agent.link, self._agent.components.curriculum.present_task
        try:
            if not link.follows(task):
                await link.budget(task)
        except CoordinatorError:
            return None
        known = self._agent.access.quotas.budgets.of(task)
        return None if known is None else known.budget


def _ledger(budget: BudgetSnapshot | None) -> dict[str, Any] | None:
    """What the coordinator counts and holds this device to; None while it cannot be asked."""
    if budget is None:
        return None
    used = {unit.name: getattr(budget, unit.name) for unit in BUDGET_UNITS}
    limits = {unit.name: getattr(budget, unit.limit) for unit in BUDGET_UNITS}
    left = {unit: None if limit is None else max(0, limit - used[unit]) for unit, limit in limits.items()}
    return {"used": used, "limits": limits, "left": left, "dual": budget.dual, "target_rate": budget.target_rate}
