"""Answers in a state folder with feedback."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edge.state.answer_record import AnswerRecord
from edge.state.feedback import Feedback, FeedbackBook, Rating
from edge.state.folder import StateFolder

RECORD = AnswerRecord("", "local", "", "", None, None, None, None, None, 0, "", 0.0, "", "", task="math", created_at=1.0)
"""A local answer under the label math."""


def answered(state: StateFolder, id: str, prompt: str, final: str, **fields: Any) -> None:
    record = replace(RECORD, id=id, prompt=prompt, final=final, **fields)
    state.put_request(id, record.created_at, record.to_json())


def rated(state: StateFolder, id: str, verdict: Rating, correction: str | None = None, at: float = 2.0) -> None:
    FeedbackBook(state).give(Feedback(id, verdict, correction), at)
