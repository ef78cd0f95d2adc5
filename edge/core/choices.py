"""Which option of a multiple-choice question an answer names.

A lone letter is always read as one. "A) text" must agree with itself. What names two options, or one by a text that stands there twice,
names none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm)\s*\{(.*)\}", re.DOTALL)
_LETTER = re.compile(r"\(?\s*([A-Za-z])\s*[).:]*")
_INDEX = re.compile(r"\(?\s*([0-9]{1,2})\s*[).:]*")
_LETTER_AND_TEXT = re.compile(r"\(?\s*([A-Za-z])\s*[).:]+\s*(\S.*)", re.DOTALL)


def chosen_option(answer: str, options: Sequence[str]) -> int | None:
    """Index of the one option that `answer` names, or None. Accepts B, b, (B), B., "B) text", a number from 0, or the option's text.

    A number that is itself an option's text means that text. Without options (0 of them) any letter or number names itself.
    """
    text, count = _unwrapped(answer), len(options) or 26
    if found := _LETTER.fullmatch(text):
        return _within(_of_letter(found[1]), count)
    exact = [index for index, option in enumerate(options) if option.strip() == text]
    named = exact or [index for index, option in enumerate(options) if _plain(option) == _plain(text)]
    if len(named) == 1:
        return named[0]
    if found := _INDEX.fullmatch(text):
        return None if named else _within(int(found[1]), count)
    if options and (found := _LETTER_AND_TEXT.fullmatch(text)):
        index = _within(_of_letter(found[1]), count)
        return index if index is not None and _plain(found[2]) == _plain(options[index]) else None
    return None


def _unwrapped(answer: str) -> str:
    text = answer.strip().strip("$").strip()
    while found := _WRAPPED.fullmatch(text):
        text = found[1].strip()
    return text


def _plain(text: str) -> str:
    return " ".join(_unwrapped(text).casefold().split()).rstrip(".")


def _of_letter(letter: str) -> int:
    return ord(letter.upper()) - ord("A")


def _within(index: int, count: int) -> int | None:
    return index if index < count else None
