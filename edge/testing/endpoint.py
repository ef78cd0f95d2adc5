"""Scripted sides of the HTTP endpoint: prepared answers and prepared values, for tests and for working on the page without a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from edge.agent import AgentStatus
from edge.budget.limits import BudgetLimits
from edge.cloud.sent import SentChoice
from edge.core.errors import NotFound, TooFewAnswers, UsageError
from edge.dagrpo.ranking import Ranking
from edge.inference.backend import ModelInfo
from edge.serve import agent_schemas as views
from edge.serve.ports import AnswerNote, AnswerPiece
from edge.state.answer_record import AnswerRequest, TaskStanding
from edge.state.reader import LAST_ANSWER

_LIMITS: Mapping[str, Any] = {
    "calls": 7,
    "calls_limit": 20,
    "calls_left": 13,
    "tokens": 90,
    "tokens_limit": None,
    "tokens_left": None,
    "spend_uusd": 1500,
    "spend_limit_uusd": 2_000_000,
    "spend_left_uusd": 1_998_500,
}
_RATES: Mapping[str, Any] = {"target_rate": 0.3, "realised_rate": 0.31}
_DIAL: Mapping[str, Any] = {
    **_RATES,
    "task": "math",
    "own": False,
    "bias": -1.2,
    "realised_since_set": 0.29,
    "questions": 240,
    "asked": 70,
    "without_decision": 0.0,
    "known_log_odds": 100,
    "ranking": Ranking().to_json(),
    "set_at": None,
}
_TASK: Mapping[str, Any] = {
    "task": "math",
    "state": "ok",
    "line": "7 of 20 calls",
    **_LIMITS,
    **_RATES,
    "dual": 0.5,
    "as_of": 0.0,
}
SCRIPTED_STATUS = AgentStatus(
    run_id="scripted", model=ModelInfo("scripted", "scripted", 0, 1024, 0, ""), adapter_version=0, mode="auto", learning="idle",
    online=True, offline_reason="", coordinator="scripted", task="math", target_rate=0.3, dual=0.5, phase=0, phases=1, steps_done=0,
    steps_planned=None, waiting_reports=0, answers=0, total_cloud_calls=0, total_cloud_tokens=0, total_spend_uusd=0, uptime_s=0.0,
)  # fmt: skip
SCRIPTED_BUDGETS: Mapping[str, Any] = {
    "device": {**_LIMITS, "as_of": 0.0},
    "origin": "agent",
    "serving_task": "math",
    "target_rate": 0.3,
    "paused": False,
    "switched_off": "",
    "waiting_reports": 0,
    "unsettled_calls": 0,
    "tasks": [{**_TASK, "dial": _DIAL, "used": {"calls": 7, "tokens": 90, "spend_uusd": 1500}}],
    "limits": {
        "calls_limit": 20,
        "tokens_limit": None,
        "spend_limit_uusd": 2_000_000,
        "period": "month",
        "renews_at": 1_764_547_200.0,
        "words": "2.00 USD and 20 calls a month",
    },
    "cloud_name": "practice cloud, nothing is charged",
    "target": "30 % of questions may ask",
}
"""The budgets of a scripted agent, in the shape of `Overview.to_json`."""

_NO_CALLS = {"calls": 0, "tokens": 0, "spend_uusd": 0}
NOTHING_TO_REPORT: Mapping[str, Any] = {
    "now": 0.0,
    "serving_version": 0,
    "serving_version_then": 0,
    "tasks": [],
    "total": {"items": 0, "right_then": 0, "right_now": 0, "gained": 0, "lost": 0, "new": 0, "in_the_end": None},
    "forgotten": {"by_source": [], "examples": []},
    "learning": {"steps": 0, "promotions": 0, "refusals": 0, "refused_because": [], "by_source": []},
    "bands": [],
    "went_back": [],
    "answers": [],
    "cloud": {"serving": _NO_CALLS, "learning": _NO_CALLS},
    "spend": {"stretch_s": 60, "stretches": []},
    "rates": [],
    "waits": [],
    "paused": False,
    "target": "the model decides; it learns to ask for help at 30 %",
    "cloud_name": "",
}
"""The report of an agent that has done nothing yet."""
NO_HEADLINE: Mapping[str, Any] = {
    "answers": 0,
    "answered_locally": None,
    "right_in_the_end": None,
    "gained": None,
    "validation_questions": 0,
    "learned_from": 0,
    "own": False,
    "practice": None,
    "spent_today_uusd": 0,
    "spent_this_month_uusd": 0,
    "cloud_name": "",
}
"""Its headline."""


class ScriptedAnswers:
    """Answers with prepared words, piece by piece.

    `failure` is raised after `fail_after` pieces; piece i waits for the event `wait_before[i]`.
    """

    def __init__(self, pieces: Sequence[str], *, note: AnswerNote | None = None, delay_s: float = 0.0) -> None:
        self.pieces = list(pieces)
        self.note = note or AnswerNote(id="", source="local", completion_tokens=len(self.pieces))
        self.delay_s = delay_s
        self.asked: list[AnswerRequest] = []
        self.closed = 0
        self.failure: Exception | None = None
        self.fail_after = 0
        self.wait_before: Mapping[int, asyncio.Event] = {}

    def standing(self, task: str | None) -> TaskStanding:
        """From the prepared note."""
        note = self.note
        return TaskStanding(task or note.task, note.adapter_version, note.dual, calls_left=note.calls_left)

    async def prompt_tokens(self, question: AnswerRequest) -> int:
        """One for each word."""
        return sum(len(message.content.split()) for message in question.messages)

    async def answer(self, question: AnswerRequest) -> AsyncGenerator[AnswerPiece, None]:
        """The prepared pieces in order, or the prepared failure after `fail_after` of them."""
        self.asked.append(question)
        try:
            for count, text in enumerate(self.pieces):
                if self.failure is not None and count >= self.fail_after:
                    raise self.failure
                if count in self.wait_before:
                    await self.wait_before[count].wait()
                await asyncio.sleep(self.delay_s)
                yield AnswerPiece(text)
            yield AnswerPiece("", note=replace(self.note, id=question.id))
        finally:
            self.closed += 1


class ScriptedControl:
    """Shows prepared values."""

    def __init__(self, answers: ScriptedAnswers) -> None:
        """`answers` knows what was asked."""
        self._answers = answers
        self.log: list[Mapping[str, Any]] = []
        self.versions: list[Mapping[str, Any]] = []
        self.departed: list[Mapping[str, Any]] = []
        self.waiting_reports: list[Mapping[str, Any]] = []
        self.verdicts: dict[str, Mapping[str, Any]] = {}
        self.prepared_report: Mapping[str, Any] = NOTHING_TO_REPORT
        self.prepared_headline: Mapping[str, Any] = NO_HEADLINE
        self.state: dict[str, Any] = asdict(SCRIPTED_STATUS)
        self.budgets: dict[str, Any] = dict(SCRIPTED_BUDGETS)
        self.outlook: dict[str, Any] = {}

    async def why(self, answer_id: str) -> views.ExplanationView:
        """The note under any id that was asked; `last` is the last one."""
        if answer_id == LAST_ANSWER and self._answers.asked:
            answer_id = self._answers.asked[-1].id
        if answer_id not in {question.id for question in self._answers.asked}:
            raise NotFound(f"no answer {answer_id!r}")
        return views.ExplanationView.model_validate({**self._answers.note.to_json(), "id": answer_id})

    async def status(self) -> views.StatusView:
        """The prepared state."""
        return views.StatusView.model_validate(self.state)

    async def steps(self, after: int) -> Sequence[views.StepView]:
        """The prepared steps above `after`."""
        return [views.StepView.model_validate(step) for step in self.log if step["step"] > after]

    async def adapters(self) -> Sequence[views.AdapterVersionView]:
        """The prepared versions."""
        return [views.AdapterVersionView.model_validate(version) for version in self.versions]

    async def usage(self) -> views.UsageView:
        """The answers that were asked for, and no calls."""
        nothing = dict.fromkeys(("calls", "tokens", "spend_uusd"), 0)
        used = {"answers": len(self._answers.asked), "serving": nothing, "learning": nothing}
        no_limit = dict.fromkeys(nothing)
        ledger = {"used": nothing, "limits": no_limit, "left": no_limit, "dual": 0.5, "target_rate": 0.3}
        whole = {"day": "1970-01-01", "today": used, "all": used, "ledger": ledger, "online": True, "offline_reason": ""}
        return views.UsageView.model_validate(whole)

    async def ready(self) -> views.ReadinessView:
        """Always."""
        return views.ReadinessView(ready=True, model="scripted", adapter_version=0, coordinator="reached", learning="idle")

    async def rollback(self, version: int) -> views.LineageView:
        """Marks one of the prepared versions as serving. Raises NotFound for another one."""
        if version and version not in [known["version"] for known in self.versions]:
            raise NotFound(f"there is no adapter version {version} here")
        self.versions = [{**known, "serving": known["version"] == version} for known in self.versions]
        return views.LineageView(head=version, serving=version)

    async def budget(self) -> views.BudgetsView:
        """The prepared budgets."""
        return views.BudgetsView.model_validate(self.budgets)

    async def set_dial(self, task: str | None, target_rate: float | None) -> views.BudgetsView:
        """Writes the rate into the prepared budgets. Raises UsageError outside [0, 1]."""
        if target_rate is not None and not 0.0 <= target_rate <= 1.0:
            raise UsageError(f"the dial must lie in [0, 1], not {target_rate}")
        changed = [_with_rate(known, target_rate, task) for known in self.budgets["tasks"]]
        default = self.budgets["target_rate"] if task else target_rate
        self.budgets = {**self.budgets, "target_rate": default, "tasks": changed}
        return await self.budget()

    async def set_limits(self, changes: Mapping[str, Any] | None) -> views.BudgetsView:
        """Writes the limits into the prepared budgets (None: there are none)."""
        limits = BudgetLimits() if changes is None else BudgetLimits(**{**self._limits(), **changes})
        self.budgets = {**self.budgets, "limits": {**limits.to_json(), "renews_at": None, "words": limits.words}}
        return await self.budget()

    def _limits(self) -> dict[str, Any]:
        return {name: value for name, value in self.budgets["limits"].items() if name not in ("renews_at", "words")}

    async def forget_task(self, task: str) -> views.BudgetsView:
        """Takes it out of the prepared budgets. Raises NotFound."""
        kept = [known for known in self.budgets["tasks"] if known["task"] != task]
        if len(kept) == len(self.budgets["tasks"]):
            raise NotFound(f"no task of the label {task} has a dial")
        self.budgets = {**self.budgets, "tasks": kept}
        return await self.budget()

    async def pause(self, paused: bool) -> views.BudgetsView:
        """Writes it into the prepared budgets."""
        self.budgets = {**self.budgets, "paused": paused, "switched_off": "the cloud is paused" if paused else ""}
        return await self.budget()

    async def whatif(self, rates: Sequence[float], task: str, last: int) -> views.WhatIfView:
        """The prepared outlook; without one, there are too few answers."""
        if not self.outlook:
            raise TooFewAnswers("0 recorded answers are too few to estimate what another rate would mean")
        wanted = [known for known in self.outlook["outlooks"] if known["target_rate"] in rates]
        return views.WhatIfView.model_validate({**self.outlook, "task": task, "outlooks": wanted})

    async def sent(self, choice: SentChoice) -> views.SentView:
        """The prepared requests that left below `before`, of the kind, at most `limit`; newest first as they were prepared."""
        older = [entry for entry in self.departed if _chosen(entry, choice)]
        shown = [
            {name: value for name, value in entry.items() if not name.startswith("payload")} for entry in older[: choice.limit]
        ]
        listing = {
            "sent": shown,
            "next_before": shown[-1]["id"] if len(older) > len(shown) else None,
            "dropped": {"entries": 0, "until": 0.0},
            "waiting_reports": self.waiting_reports,
        }
        return views.SentView.model_validate(listing)

    async def sent_entry(self, entry_id: int) -> views.SentRequestView:
        """One of them. Raises NotFound for another one."""
        for entry in self.departed:
            if entry["id"] == entry_id:
                return views.SentRequestView.model_validate(entry)
        raise NotFound(f"nothing with the number {entry_id} is kept of what left")

    async def feedback(self, answer_id: str, verdict: str, correction: str | None) -> views.FeedbackView:
        """Keeps the last rating of what was asked in `verdicts`."""
        await self.why(answer_id)
        if verdict not in ("good", "bad", "none"):
            raise UsageError(f"verdict: must be one of good, bad, none, not {verdict!r}")
        self.verdicts[answer_id] = {"id": answer_id, "verdict": verdict, "correction": correction}
        return views.FeedbackView.model_validate(self.verdicts[answer_id])

    async def report(self, since: float) -> views.ReportView:
        """The prepared report."""
        return views.ReportView.model_validate({**self.prepared_report, "since": since})

    async def headline(self) -> views.HeadlineView:
        """The prepared headline."""
        return views.HeadlineView.model_validate(self.prepared_headline)

    async def pause_learning(self, paused: bool) -> views.LearningPausedView:
        """Marks the prepared state."""
        self.state |= {"paused": paused, "waiting": "paused by you" if paused else ""}
        return views.LearningPausedView(paused=paused, waiting=self.state["waiting"])


def _chosen(entry: Mapping[str, Any], choice: SentChoice) -> bool:
    return (choice.before is None or entry["id"] < choice.before) and choice.kind in (None, entry["kind"])


def _with_rate(known: Mapping[str, Any], rate: float | None, task: str | None) -> Mapping[str, Any]:
    if task not in (None, known["task"]):
        return known
    return {**known, "target_rate": rate, "dial": {**known["dial"], "target_rate": rate, "own": task is not None}}
