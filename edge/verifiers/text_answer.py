"""Judges short answers in words: the same words, whatever their case, blanks and full stop."""

from __future__ import annotations

import re

from edge.core.answer_key import is_short, plain_words
from edge.core.types import TaskItem
from edge.dagrpo.answers import final_answer

_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")


class TextAnswer:
    """Right when the final answer (boxed, else the answer part, else all of a plain turn) says what the reference does."""

    def is_correct(self, item: TaskItem, response: str) -> bool:
        """True when the response answers with the reference's words."""
        return says(response, item.answer)


def says(response: str, answer: str) -> bool:
    """Whether a response's final answer is this one; of a plain turn, whether a short one is among the words of its first sentence, as in
    "It is Paris."."""
    final, wanted = final_answer(response), plain_words(answer)
    if plain_words(final) == wanted or final != response.strip() or not is_short(answer):
        return plain_words(final) == wanted
    first = plain_words(_SENTENCE_END.split(final, maxsplit=1)[0])
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", first) is not None
