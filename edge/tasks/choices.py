"""Which option the answer of a multiple-choice item names. Knows letters, indexes and texts; knows nothing of files or models.

The verifier reads a reference the same way (edge.verifiers.choice_answer, an independent part; a test holds the two together): a lone
letter is always a letter, a number that is itself an option's text means that text, and what names two options names none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm)\s*\{(.*)\}", re.DOTALL)
_LETTER = re.compile(r"\(?\s*([A-Za-z])\s*[).:]*")
_INDEX = re.compile(r"\(?\s*([0-9]{1,2})\s*[).:]*")
_LETTER_AND_TEXT = re.compile(r"\(?\s*([A-Za-z])\s*[).:]+\s*(\S.*)", re.DOTALL)


def named_option(answer: str, options: Sequence[str]) -> int | None:
    """The index of the one option that is named, else None."""
    text = _unwrapped(answer)
    if found := _LETTER.fullmatch(text):
        return _of_letter(found[1], options)
    exact = [index for index, option in enumerate(options) if option.strip() == text]
    alike = [index for index, option in enumerate(options) if _plain(option) == _plain(text)]
    named = exact or alike
    if len(named) == 1:
        return named[0]
    if found := _INDEX.fullmatch(text):
        return int(found[1]) if not named and int(found[1]) < len(options) else None
    if found := _LETTER_AND_TEXT.fullmatch(text):
        index = _of_letter(found[1], options)
        return index if index is not None and _plain(found[2]) == _plain(options[index]) else None
    return None


def stands_twice(index: int, options: Sequence[str]) -> bool:
    """Whether another option is equal to this one, so that naming its text names no option."""
    return [option.strip() for option in options].count(options[index].strip()) > 1


def _of_letter(letter: str, options: Sequence[str]) -> int | None:
    index = ord(letter.upper()) - ord("A")
    return index if index < len(options) else None


def _unwrapped(text: str) -> str:
    text = text.strip().strip("$").strip()
    while found := _WRAPPED.fullmatch(text):
        text = found[1].strip()
    return text


def _plain(text: str) -> str:
    return " ".join(_unwrapped(text).casefold().split()).rstrip(".")
