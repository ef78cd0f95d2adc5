"""Which columns of a person's file are learned from."""

from __future__ import annotations

from dataclasses import dataclass

_QUESTION, _ANSWER = "question", "answer"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table, or the keys of JSON objects, that hold texts and their answers. All others are passed over."""

    question: str = _QUESTION
    answer: str = _ANSWER
    ask: str = ""
    """The question that is put to each text; "": the text is the question itself."""

    @classmethod
    def given(cls, question: str | None, answer: str | None, ask: str | None) -> Columns | None:
        """None where nothing is given: the file's columns have their usual names then."""
        if question is None and answer is None and ask is None:
            return None
        return cls((question or _QUESTION).strip(), (answer or _ANSWER).strip(), (ask or "").strip())
