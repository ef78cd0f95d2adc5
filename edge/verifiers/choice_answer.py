"""Judges multiple-choice answers by letter, index or option text. Knows nothing of formats or rewards."""

from __future__ import annotations

from edge.core.types import TaskItem
from edge.dagrpo.answers import last_boxed


class ChoiceAnswer:
    """Right when the last boxed answer names the reference option by its letter, its number from 0, or its text."""

    def is_correct(self, item: TaskItem, response: str) -> bool:
        """True when the response's choice is the reference choice."""
        boxed = last_boxed(response)
        return boxed is not None and _choice(boxed, item) == _choice(item.answer, item) is not None


def _choice(answer: str, item: TaskItem) -> int | None:
    """Index of the option that `answer` names, or None."""
    text = answer.strip().strip("().").strip()
    if len(text) == 1 and text.upper().isalpha():
        index = ord(text.upper()) - ord("A")
    elif text.isdigit() and text not in item.options:
        index = int(text)
    else:
        index = item.options.index(text) if text in item.options else -1
    return index if 0 <= index < max(len(item.options), 1) else None
