"""Which option of a multiple-choice question an answer names.

A lone letter names the option of this letter, as prompts ask for it, also where another option's text is this letter (the blood groups O, A
and B); a file's answer that may mean either is refused (`two_readings`). Where no option has the letter, it is a text like others (of the
notes E, G and C the answer E). "A) text" must agree with itself. What names two options, or one by a text that occurs there twice,
names none. A number names an option only where the question numbers its options: `\\boxed{1}` under options A, B and C names none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from edge.core.answer_key import without_invisible

_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm)\s*\{(.*)\}", re.DOTALL)
_LETTER = re.compile(r"\(?\s*([A-Za-z])\s*[).:]*")
_INDEX = re.compile(r"\(?\s*([0-9]{1,2})\s*[).:]*")
_LETTER_AND_TEXT = re.compile(r"\(?\s*([A-Za-z])\s*[).:]+\s*(\S.*)", re.DOTALL)
MOST_OPTIONS = 20
_LISTED_LETTER = re.compile(r"\(?([A-T])[.):]\s+(\S.*)")
_LISTED_NUMBER = re.compile(r"\(?([0-9]{1,2})[.):]\s+(\S.*)")


@dataclass(frozen=True, slots=True)
class ListedOptions:
    """The options that a question lists itself; `first_number` where it numbers them (None: by letters)."""

    options: tuple[str, ...]
    first_number: int | None = None


def listed_options(question: str) -> ListedOptions | None:
    """The options among a question's lines: lettered from A, or its last lines numbered from 0 or 1, without gaps. None: there are none."""
    lines = [line.strip() for line in question.strip().split("\n")]
    lettered = [found for line in lines if (found := _LISTED_LETTER.fullmatch(line))]
    if len(lettered) > 1 and [found[1] for found in lettered] == [chr(ord("A") + index) for index in range(len(lettered))]:
        return ListedOptions(tuple(found[2] for found in lettered))
    at_the_end = takewhile(lambda found: found is not None, map(_LISTED_NUMBER.fullmatch, reversed(lines)))
    numbered = [found for found in at_the_end if found][::-1]
    numbers = [int(found[1]) for found in numbered]
    if len(numbers) > 1 and numbers[0] in (0, 1) and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return ListedOptions(tuple(found[2] for found in numbered), numbers[0])
    return None


def first_number(question: str, options: Sequence[str]) -> int | None:
    """What the first of these options is numbered with, where the question lists them by number; None: they are asked for by letter."""
    listed = listed_options(question)
    return listed.first_number if listed is not None and listed.options == tuple(options) else None


def chosen_option(answer: str, options: Sequence[str], first_number: int | None = 0) -> int | None:
    """Index of the one option that `answer` names, or None. Accepts B, b, (B), B., "B) text", or the option's text.

    Also a number, counted from `first_number` (None: no number); one that is itself an option's text means that text. Without options (0
    of them) any letter or number names itself.
    """
    text, count = _unwrapped(answer), len(options) or 26
    if (found := _LETTER.fullmatch(text)) and (index := _within(_of_letter(found[1]), count)) is not None:
        return index
    named = _of_text(text, options)
    if len(named) == 1:
        return named[0]
    if found := _INDEX.fullmatch(text):
        first = first_number if options else 0
        return None if named or first is None else _within(int(found[1]) - first, count)
    if options and (found := _LETTER_AND_TEXT.fullmatch(text)):
        index = _within(_of_letter(found[1]), count)
        return index if index is not None and _plain(found[2]) == _plain(options[index]) else None
    return None


def reference_option(question: str, answer: str, options: Sequence[str]) -> int | None:
    """Index of the option that an item's own answer names, or None: as `chosen_option`, and an index from 0 where nothing is numbered."""
    first = first_number(question, options)
    return chosen_option(answer, options, 0 if first is None else first)


def two_readings(answer: str, options: Sequence[str]) -> tuple[int, int] | None:
    """Indices of the option that a lone letter names and of another one whose text it is; None where an answer has one reading."""
    text = _unwrapped(answer)
    index = _within(_of_letter(text), len(options)) if re.fullmatch("[A-Za-z]", text) else None
    named = _of_text(text, options)
    return (index, named[0]) if index is not None and named and index not in named else None


def naming_answer(question: str, options: Sequence[str], index: int) -> str:
    """An item's answer that names this option alone: its text, with its letter before it where the text could mean another one."""
    option = options[index]
    if two_readings(option, options) is None and reference_option(question, option, options) == index:
        return option
    return f"{chr(ord('A') + index)}) {option}"


def option_name(index: int, options: Sequence[str]) -> str:
    """The option's letter; "A) text" where the letter alone is the text of another option."""
    letter = chr(ord("A") + index)
    return letter if two_readings(letter, options) is None else f"{letter}) {options[index]}"


def _of_text(text: str, options: Sequence[str]) -> list[int]:
    exact = [index for index, option in enumerate(options) if option.strip() == text]
    return exact or [index for index, option in enumerate(options) if _plain(option) == _plain(text)]


def _unwrapped(answer: str) -> str:
    text = without_invisible(answer).strip().strip("$").strip()
    while found := _WRAPPED.fullmatch(text):
        text = found[1].strip()
    return text


def _plain(text: str) -> str:
    return " ".join(_unwrapped(text).casefold().split()).rstrip(".")


def _of_letter(letter: str) -> int:
    return ord(letter.upper()) - ord("A")


def _within(index: int, count: int) -> int | None:
    return index if 0 <= index < count else None
