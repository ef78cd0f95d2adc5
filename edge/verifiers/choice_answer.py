"""Judges multiple-choice answers by letter, index or option text.

The prompt invites a letter, so a lone letter is always read as one. "A) text" must agree with itself. What names two options, or one by
a text that stands there twice, names none: a model cannot be right by hedging.
"""

from __future__ import annotations

import re

from edge.core.types import TaskItem
from edge.dagrpo.answers import last_boxed

_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm)\s*\{(.*)\}", re.DOTALL)
_LETTER = re.compile(r"\(?\s*([A-Za-z])\s*[).:]*")
_INDEX = re.compile(r"\(?\s*([0-9]{1,2})\s*[).:]*")
_LETTER_AND_TEXT = re.compile(r"\(?\s*([A-Za-z])\s*[).:]+\s*(\S.*)", re.DOTALL)


class ChoiceAnswer:
    """Right when the last boxed answer names the reference option by its letter, its number from 0, or its text."""

    def is_correct(self, item: TaskItem, response: str) -> bool:
        """True when the response's choice is the reference choice."""
        boxed = last_boxed(response)
        if boxed is None:
            return False
        chosen = chosen_option(boxed, item.options)
        return chosen is not None and chosen == chosen_option(item.answer, item.options)


def chosen_option(answer: str, options: tuple[str, ...]) -> int | None:
    """Index of the one option that `answer` names, or None. Accepts B, b, (B), B., "B) text", a number from 0, or the option's text.

    A number that is itself an option's text means that text. Without options (0 of them) any letter or number names itself.
    """
    text = _unwrapped(answer)
    count = len(options) or 26
    if found := _LETTER.fullmatch(text):
        return _within(ord(found[1].upper()) - ord("A"), count)
    if (by_text := _by_text(text, options)) is not None:
        return by_text
    if found := _INDEX.fullmatch(text):
        return None if _names_several(text, options) else _within(int(found[1]), count)
    if found := _LETTER_AND_TEXT.fullmatch(text):
        index = _within(ord(found[1].upper()) - ord("A"), count)
        return index if index is not None and options and _same(found[2], options[index]) else None
    return None


def _unwrapped(answer: str) -> str:
    text = answer.strip().strip("$").strip()
    while found := _WRAPPED.fullmatch(text):
        text = found[1].strip()
    return text


def _within(index: int, count: int) -> int | None:
    return index if 0 <= index < count else None


def _by_text(text: str, options: tuple[str, ...]) -> int | None:
    for equal in (str.__eq__, _same):
        named = [index for index, option in enumerate(options) if equal(option.strip(), text)]
        if named:
            return named[0] if len(named) == 1 else None
    return None


def _names_several(text: str, options: tuple[str, ...]) -> bool:
    return sum(_same(option, text) for option in options) > 1


def _same(one: str, other: str) -> bool:
    return _plain(one) == _plain(other)


def _plain(text: str) -> str:
    return " ".join(_unwrapped(text).casefold().split()).rstrip(".")
