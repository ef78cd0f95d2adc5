"""`AgentControl` over a running agent's HTTP endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from edge.serve import agent_schemas as views
from edge.serve.schemas import ResponseBody

if TYPE_CHECKING:
    from edge.cli.remote import RemoteAgent
    from edge.cloud.sent import SentChoice

View = TypeVar("View", bound=ResponseBody)
_MOST_SENT = 500
"""Entries of the outbox that the endpoint gives at once."""


class RemoteControl:
    """`AgentControl` over a running agent. Every method may raise EdgeError with the agent's own words."""

    def __init__(self, agent: RemoteAgent) -> None:
        self._agent = agent

    async def why(self, answer_id: str) -> views.ExplanationView:
        """The record of an answer."""
        return await self._ask(views.ExplanationView, f"/api/why/{quote(answer_id, safe='')}")

    async def status(self) -> views.StatusView:
        """What the agent is doing now, with its address and process."""
        found = await self._ask(views.StatusView, "/api/status")
        return found.model_copy(update={"address": self._agent.url, "pid": self._agent.pid})

    async def steps(self, after: int) -> Sequence[views.StepView]:
        """Learning steps with a number above `after`."""
        return (await self._ask(views.StepsView, f"/api/steps?after={after}")).steps

    async def adapters(self) -> Sequence[views.AdapterVersionView]:
        """The adapter versions on disk."""
        return (await self._ask(views.AdapterVersionsView, "/api/adapters")).adapters

    async def usage(self) -> views.UsageView:
        """What was used today and ever."""
        return await self._ask(views.UsageView, "/v1/usage")

    async def ready(self) -> views.ReadinessView:
        """Whether questions can be answered now."""
        return await self._ask(views.ReadinessView, "/health/ready")

    async def rollback(self, version: int) -> views.LineageView:
        """Serve and learn on from a version."""
        return await self._ask(views.LineageView, "/api/adapters/rollback", {"version": version})

    async def budget(self) -> views.BudgetsView:
        """The budgets of all tasks with their dials."""
        return await self._ask(views.BudgetsView, "/api/budget")

    async def set_dial(self, task: str | None, target_rate: float | None) -> views.BudgetsView:
        """Turn the dial of a task, or of every one (None)."""
        return await self._ask(views.BudgetsView, "/api/budget", {"task": task, "target_rate": target_rate})

    async def set_limits(self, changes: Mapping[str, Any] | None) -> views.BudgetsView:
        """Set hard limits of the device's own ledger."""
        return await self._ask(views.BudgetsView, "/api/budget/limit", {"off": True} if changes is None else changes)

    async def forget_task(self, task: str) -> views.BudgetsView:
        """Strike out a label's dial."""
        return await self._ask(views.BudgetsView, "/api/budget/forget", {"task": task})

    async def pause(self, paused: bool) -> views.BudgetsView:
        """Ask no cloud until resumed, or again."""
        return await self._ask(views.BudgetsView, "/api/budget/pause", {"paused": paused})

    async def whatif(self, rates: Sequence[float], task: str, last: int) -> views.WhatIfView:
        """What other rates would have meant."""
        return await self._ask(views.WhatIfView, "/api/whatif", {"target_rate": list(rates), "task": task, "last": last})

    async def sent(self, choice: SentChoice) -> views.SentView:
        """What left the device."""
        asked = {
            "limit": min(choice.limit, _MOST_SENT),
            "before": choice.before,
            "since": int(choice.since or 0) or None,
            "kind": choice.kind,
            "answer": choice.answer_id,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        return await self._ask(views.SentView, f"/api/sent?{urlencode(given)}")

    async def sent_entry(self, entry_id: int) -> views.SentRequestView:
        """One request that left, with its content."""
        return await self._ask(views.SentRequestView, f"/api/sent/{entry_id}")

    async def feedback(self, answer_id: str, verdict: str, correction: str | None) -> views.FeedbackView:
        """Store a person's rating of an answer."""
        return await self._ask(
            views.FeedbackView, "/api/feedback", {"id": answer_id, "verdict": verdict, "correction": correction}
        )

    async def report(self, since: float) -> views.ReportView:
        """What was learned, gained, forgotten and spent since a time."""
        return await self._ask(views.ReportView, f"/api/report?since={since:.3f}")

    async def headline(self) -> views.HeadlineView:
        """Answered locally, right in the end, gained, and spent."""
        return await self._ask(views.HeadlineView, "/api/headline")

    async def pause_learning(self, paused: bool) -> views.LearningPausedView:
        """Begin no further step, or go on."""
        return await self._ask(views.LearningPausedView, "/api/learning", {"paused": paused})

    async def _ask(self, view: type[View], path: str, body: Mapping[str, Any] | None = None) -> View:
        """Read what is at a path; with a body have something done, and wait until it is."""
        return view.model_validate(await self._agent.ask(path, body))
