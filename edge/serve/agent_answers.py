"""An agent behind the endpoint's port. Knows both vocabularies; knows nothing of HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any

from edge.agent import Agent
from edge.serve.ports import AnswerNote, AnswerPiece, Question, Standing
from edge.state.answer_record import AnswerRecord, AnswerRequest


class AgentAnswers:
    """`AnswerService` over a running agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def answer(self, question: Question) -> AsyncGenerator[AnswerPiece, None]:
        """Stream one answer; the last piece has the note."""
        deltas = self._agent.answerer.stream(request_of(question))
        async with aclosing(deltas):
            async for delta in deltas:
                yield AnswerPiece(delta.text, self._note(delta.record) if delta.record else None, delta.tokens)

    def _note(self, record: AnswerRecord) -> AnswerNote:
        return replace(note_of(record), task_known=self._agent.budgets.is_known(record.task))

    def standing(self, task: str | None) -> Standing:
        """What is known before the next answer of this task."""
        return Standing(**asdict(self._agent.answerer.standing(task)))


def request_of(question: Question) -> AnswerRequest:
    """The question in the agent's words."""
    return AnswerRequest(
        messages=question.messages,
        mode=question.mode,
        id=question.id,
        task=question.task,
        temperature=question.temperature,
        max_tokens=question.max_tokens,
        seed=abs(question.seed or 0),
        beyond=question.beyond,
        wishes=question.wishes,
        no_cloud=question.no_cloud,
    )


def note_of(record: AnswerRecord) -> AnswerNote:
    """The record without its texts. Tokens are those of who gave the answer: what the cloud billed, or what was computed here."""
    from_cloud, written = record.source == "cloud", record.cloud_output_tokens
    return AnswerNote(
        id=record.id,
        source=record.source,
        reason=record.reason,
        finish=record.finish,
        prompt_tokens=record.cloud_tokens - written if from_cloud else record.prompt_tokens,
        completion_tokens=written if from_cloud else record.completion_tokens,
        help_log_odds=record.help_log_odds,
        dual=record.dual,
        calls_left=record.calls_left,
        spend_left_uusd=record.spend_left_uusd,
        cloud_tokens=record.cloud_tokens,
        spend_uusd=record.charged_uusd,
        adapter_version=record.adapter_version,
        latency_s=record.latency_s,
        final=record.final,
        task=record.task,
        target_rate=record.target_rate,
        tokens_left=record.tokens_left,
        tool_calls=_tool_calls(record.openai_json),
        asked=record.asked or record.source != "local",
        quota=record.quota,
        cached=record.cached,
        model_asked=record.asked,
    )


def _tool_calls(openai_json: str) -> tuple[dict[str, Any], ...]:
    calls = json.loads(openai_json).get("tool_calls") if openai_json else None
    return tuple(calls or ())
