"""Judges multiple-choice answers by letter or option text: a model cannot be right by hedging (edge.core.choices)."""

from __future__ import annotations

from edge.core.choices import chosen_option, first_number, reference_option
from edge.core.types import TaskItem
from edge.dagrpo.answers import judged_answer


class ChoiceAnswer:
    """Right when the last boxed answer names the reference option by its letter or its text; by its number where the question numbers
    its options. A plain answer needs no box, and one that is an option's text means that option, whatever letter it is. The reference
    itself may be an index from 0, as files give it."""

    def is_correct(self, item: TaskItem, response: str) -> bool:
        """True when the response's choice is the reference choice."""
        plain, right = item.form == "plain", reference_option(item.question, item.answer, item.options)
        boxed = judged_answer(response, plain=plain)
        if boxed is None or right is None:
            return False
        if plain and response.strip() in item.options:
            return response.strip() == item.options[right]
        return chosen_option(boxed, item.options, first_number(item.question, item.options)) == right
