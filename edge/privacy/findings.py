"""Private things that were found in a text, and the views of the text in which they are searched for.

A view is the text as a reader sees it, with the way back to its characters: invisible characters are taken out, compatibility forms
(full-width letters, ligatures) and accents are folded, letters of other alphabets that look Latin become Latin, percent, HTML and backslash
escapes of single characters are read. So one pattern finds a thing in all forms.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import unescape
from typing import Literal, get_args

Kind = Literal["term", "secret", "email", "card", "iban", "phone", "ip", "path"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Every kind; where two findings of the same length begin at the same place, the earlier kind counts."""


@dataclass(frozen=True, slots=True)
class PrivateSpan:
    """One private thing: text[start:end]. Two with the same `value` are the same thing, however they are written."""

    start: int
    end: int
    kind: Kind
    value: str


def resolved(found: Iterable[PrivateSpan]) -> list[PrivateSpan]:
    """Findings that do not overlap, in the order of the text: of those that do the longest counts, then the first, then the kind.

    What a longer finding covers in part is not left over in pieces: the longer one grows to cover both.
    """
    kept: list[PrivateSpan] = []
    for one in sorted(found, key=lambda one: (one.start, -one.end, KINDS.index(one.kind))):
        if not kept or one.start >= kept[-1].end:
            kept.append(one)
        elif one.end > kept[-1].end:
            first = kept[-1]
            longer = max((first, one), key=lambda each: (each.end - each.start, -KINDS.index(each.kind)))
            kept[-1] = PrivateSpan(first.start, one.end, longer.kind, f"{first.value}\x1f{one.value}")
    return kept


_LOOK_ALIKES = str.maketrans(
    "аеорсухіјѕԁһԛԝАВЕКМНОРСТХУІЈЅαιονρτυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧ‐‑‒–—―−﹣－․。．﹫＠",
    "aeopcyxijsdhqwABEKMHOPCTXYIJSaiovptuxABEZHIKMNOPTYX---------...@@",
)
_ESCAPE = re.compile(
    r"(?:%[0-9A-Fa-f]{2})+|&#(?:[0-9]{1,6}|[xX][0-9A-Fa-f]{1,5});|&(?:amp|commat|period|sol|colon|quot|lt|gt);|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|\\/"
)
_MAY_ESCAPE = ("%", "&", "\\")
_UNSEEN = frozenset({"Cf", "Mn", "Me"})


@dataclass(frozen=True, slots=True)
class View:
    """`text` as it is read. `starts[i]` and `ends[i]` bound the characters of the source that its character i represents; None: it is the
    source itself."""

    text: str
    starts: tuple[int, ...] | None = None
    ends: tuple[int, ...] | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where text[start:end] of this view, which is not empty, is in the source."""
        if self.starts is None or self.ends is None:
            return start, end
        return self.starts[start], self.ends[end - 1]


def views_of(text: str) -> Iterator[View]:
    """The text as it is, its letters folded, and where it has escapes, with these read as well."""
    if text.isascii():
        yield View(text)
    else:
        yield _view((char, place, place + 1) for place, char in enumerate(text))
    if any(sign in text for sign in _MAY_ESCAPE) and _ESCAPE.search(text):
        yield _view(_unescaped(text))


def folded(text: str) -> str:
    """The text in one form for comparing: without case, accents, invisible characters, look-alikes and runs of white space."""
    seen = text if text.isascii() else _view((char, 0, 1) for char in text).text
    return " ".join(seen.casefold().split())


def lower(text: str) -> str:
    """The text in small letters, and of the same length: a letter whose small form is two stays."""
    low = text.lower()
    return low if len(low) == len(text) else "".join(char.lower() if len(char.lower()) == 1 else char for char in text)


def _view(pieces: Iterator[tuple[str, int, int]]) -> View:
    letters: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for char, start, end in pieces:
        shown = _shown(char)
        if not shown and ends:
            ends[-1] = end
        letters += shown
        starts += [start] * len(shown)
        ends += [end] * len(shown)
    return View("".join(letters), tuple(starts), tuple(ends))


def _shown(char: str) -> str:
    """What is seen of one character: "" for invisible ones and combining marks."""
    if char.isascii():
        return char
    parts = "ss" if char == "ß" else unicodedata.normalize("NFKD", char)
    kept = "".join(
        " " if part.isspace() and part not in "\r\n" else part for part in parts if unicodedata.category(part) not in _UNSEEN
    )
    folded = kept.translate(_LOOK_ALIKES)
    return "".join(str(unicodedata.decimal(each)) if not each.isascii() and each.isdecimal() else each for each in folded)


def _unescaped(text: str) -> Iterator[tuple[str, int, int]]:
    place = 0
    for escape in _ESCAPE.finditer(text):
        yield from ((text[index], index, index + 1) for index in range(place, escape.start()))
        yield from ((char, escape.start(), escape.end()) for char in _read(escape.group()))
        place = escape.end()
    yield from ((text[index], index, index + 1) for index in range(place, len(text)))


def _read(escape: str) -> str:
    if escape.startswith("%"):
        return bytes.fromhex(escape.replace("%", "")).decode("utf-8", "replace")
    if escape.startswith("&"):
        return unescape(escape)
    return escape[1:] if escape == "\\/" else chr(int(escape[2:], 16))
