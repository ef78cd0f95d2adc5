"""Judges short answers in words: the same words, whatever their case, blanks and full stop."""

from __future__ import annotations

from edge.core.answer_key import plain_words
from edge.core.types import TaskItem
from edge.dagrpo.answers import final_answer


class TextAnswer:
    """Right when the final answer (boxed, else the answer part) has the words of the reference."""

    def is_correct(self, item: TaskItem, response: str) -> bool:
        """True when the response answers with the reference's words."""
        return plain_words(final_answer(response)) == plain_words(item.answer)
