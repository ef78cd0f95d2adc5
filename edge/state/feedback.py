"""What people thought of answers.

One rating an answer, the last one counts: the one written last, whatever the clock had. What `give` returns is on disk. The table lies
in the state folder's database, so this works while answers are being given and on a folder that nobody uses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from edge.core.choices import chosen_option
from edge.core.errors import UsageError
from edge.core.formatting import shown
from edge.dagrpo.prompts import TextQuestion
from edge.state.folder import StateFolder
from edge.state.reader import StateReader
from edge.state.text_questions import text_questions

Rating = Literal["good", "bad", "none"]
MOST_CORRECTION_CHARS = 10_000
_OF_ONE_QUESTION = 20
_LOOKED_AT = 3
"""This many times the wanted number of ratings are read to find them."""
_RATED = """
SELECT r.record, f.request_id, f.verdict, f.correction, f.at FROM (
    SELECT v.place, row_number() OVER (
        PARTITION BY json_extract(r.record, '$.task'), trim(json_extract(r.record, '$.prompt')) ORDER BY v.place DESC
    ) AS nth
    FROM (SELECT rowid AS place, request_id FROM feedback ORDER BY rowid DESC LIMIT ?) v JOIN requests r ON r.id = v.request_id
) n JOIN feedback f ON f.rowid = n.place JOIN requests r ON r.id = f.request_id
WHERE n.nth <= ? ORDER BY n.place DESC LIMIT ?
"""
_STEERING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Feedback:
    """A person's rating (`verdict`) of answer `id`. `correction`: what would have been right (None: not given). "none" takes it back."""

    id: str
    verdict: Rating
    correction: str | None = None


@dataclass(frozen=True, slots=True)
class RatedAnswer:
    """The record of an answer as it was kept, and its rating ("none": nothing) at `at`."""

    record: dict[str, Any]
    feedback: Feedback
    at: float


class FeedbackBook:
    """The feedback in one state folder."""

    def __init__(self, state: StateFolder) -> None:
        self._state = state
        self._db = state.database

    def give(self, feedback: Feedback, at: float) -> Feedback:
        """Keep a rating in place of an earlier one, under the answer's own id also where that was "last".

        Raises NotFound for an unknown answer, UsageError for another rating, and for a correction that is none of the possible answers.
        """
        record = self._state.request(feedback.id)
        feedback = replace(checked(feedback), id=record["id"])
        asked = self.text_questions().get(str(record.get("task")))
        if feedback.correction is not None and asked is not None and asked.options:
            chosen = chosen_option(feedback.correction, asked.options)
            if chosen is None:
                raise UsageError(
                    f"correction: the answer is one of {', '.join(asked.options)}, not {shown(feedback.correction)!r}"
                )
            feedback = replace(feedback, correction=asked.options[chosen])
        known = self.of(feedback.id)
        if feedback.verdict == known.verdict == "bad" and feedback.correction is None:
            return known  # "bad" once more takes no correction back; "none" does
        if feedback == known:
            return feedback
        with self._db:
            if feedback.verdict == "none":
                self._db.execute("DELETE FROM feedback WHERE request_id = ?", (feedback.id,))
            else:
                values = (feedback.id, at, feedback.verdict, feedback.correction)
                self._db.execute("REPLACE INTO feedback VALUES (?, ?, ?, ?)", values)
        return feedback

    def of(self, answer_id: str) -> Feedback:
        """The rating of an answer; "none" where there is none."""
        return said_of(self._state, answer_id)

    def text_questions(self) -> dict[str, TextQuestion]:
        """What is asked about the texts of a label, by label."""
        return text_questions(self._state)

    def rated(self, most: int) -> Iterator[RatedAnswer]:
        """The newest answers that have a rating, oldest rating first: of one question the last few only, so that one which is asked and
        judged again and again pushes no other out."""
        rows = self._db.execute(_RATED, (_LOOKED_AT * most, _OF_ONE_QUESTION, most)).fetchall()
        return (RatedAnswer(json.loads(record), Feedback(*rest), at) for record, *rest, at in reversed(rows))

    def helped(self, most: int) -> Iterator[RatedAnswer]:
        """The newest answers of the cloud that have no rating, oldest first."""
        rows = self._db.execute(
            "SELECT r.record, r.id, r.created_at FROM requests r LEFT JOIN feedback f ON r.id = f.request_id"
            " WHERE f.request_id IS NULL AND json_extract(r.record, '$.source') = 'cloud' ORDER BY r.created_at DESC, r.id LIMIT ?",
            (most,),
        ).fetchall()
        return (RatedAnswer(json.loads(record), Feedback(id, "none"), at) for record, id, at in reversed(rows))


def said_of(state: StateReader, answer_id: str) -> Feedback:
    """The rating of an answer, also of a folder in use; "none" where there is none."""
    rows = state.rows("SELECT verdict, correction FROM feedback WHERE request_id = ?", (answer_id,))
    return Feedback(answer_id, *rows[0]) if rows else Feedback(answer_id, "none")


def steers(text: str) -> bool:
    """Whether a text holds control characters other than line ends and tabs: such a one is no answer that a person wrote."""
    return _STEERING.search(text) is not None


def checked(feedback: Feedback) -> Feedback:
    """The same, its correction without surrounding blanks. Raises UsageError for a rating or correction that cannot be one."""
    if feedback.verdict not in get_args(Rating):
        raise UsageError(f"verdict: must be one of {', '.join(get_args(Rating))}, not {feedback.verdict!r}")
    correction = (feedback.correction or "").strip() or None
    if correction is not None and len(correction) > MOST_CORRECTION_CHARS:
        raise UsageError(f"correction: longer than {MOST_CORRECTION_CHARS} characters")
    if correction is not None and steers(correction):
        raise UsageError("correction: holds control characters; only line ends and tabs are allowed")
    if correction is not None and feedback.verdict != "bad":
        raise UsageError(f"correction: goes with bad, not with {feedback.verdict}")
    return Feedback(feedback.id, feedback.verdict, correction)
