"""Judges multiple-choice answers by letter, index or option text: a model cannot be right by hedging (edge.core.choices)."""

from __future__ import annotations

from edge.core.choices import chosen_option
from edge.core.types import TaskItem
from edge.dagrpo.answers import last_boxed


class ChoiceAnswer:
    """Right when the last boxed answer names the reference option by its letter, its number from 0, or its text."""

    def is_correct(self, item: TaskItem, response: str) -> bool:
        """True when the response's choice is the reference choice."""
        boxed = last_boxed(response)
        if boxed is None:
            return False
        chosen = chosen_option(boxed, item.options)
        return chosen is not None and chosen == chosen_option(item.answer, item.options)
