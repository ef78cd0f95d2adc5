"""What was found once and stands in a text again.

All known things are looked for together, by a tree of their pieces, so that the work is in proportion to the text however many they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from edge.privacy.findings import Found, Kind, lower

_SHORTEST, _LONGEST_WORD = 6, 256
"""What is longer, such as a private key, has a form of its own that tells it anywhere; it could repeat itself, and each place would be
compared with all of it."""
_NUMBERED: frozenset[Kind] = frozenset({"card", "phone", "iban"})
_PIECE = re.compile(r"\w+|\W")
_SIGN = re.compile(r"[^\W_]")
_GAP = re.compile(r"[ ().,/-]{0,2}")
_Tree = dict[str, Any]
_END = ""
"""The key of a tree under which stands what ends there; no piece of a text is empty."""


class KnownWords:
    """Texts that are looked for as they are written, not inside a longer word."""

    def __init__(self, words: Iterable[tuple[str, Any]]) -> None:
        """`words`: each with what to tell of it; very short and very long ones do not count."""
        self._tree: _Tree = {}
        for word, told in (entry for entry in words if _SHORTEST <= len(entry[0]) <= _LONGEST_WORD):
            _put(self._tree, _PIECE.findall(word), told)

    def places(self, text: str) -> Iterator[tuple[int, int, Any]]:
        """Start, end and what to tell of the longest that begins at each place."""
        if not self._tree:
            return
        pieces = _PIECE.findall(text)
        start = 0
        for index, piece in enumerate(pieces):
            inside = index and _is_word(pieces[index - 1]) and not _is_word(piece)
            longest = None if inside else self._longest(pieces, index)
            if longest is not None:
                yield start, start + sum(map(len, pieces[index : longest[0]])), longest[1]
            start += len(piece)

    def _longest(self, pieces: Sequence[str], index: int) -> tuple[int, Any] | None:
        """The index after the longest known text that begins at a piece, and what to tell of it."""
        tree, longest = self._tree, None
        while index < len(pieces) and pieces[index] in tree:
            tree = tree[pieces[index]]
            index += 1
            inside = index < len(pieces) and _is_word(pieces[index]) and not _is_word(pieces[index - 1])
            if _END in tree and not inside:
                longest = index, tree[_END]
        return longest


class KnownNumbers:
    """Numbers that are looked for in any grouping."""

    def __init__(self, numbers: Iterable[tuple[str, Any]]) -> None:
        """`numbers`: each with what to tell of it; what is no letter or digit does not count."""
        self._tree: _Tree = {}
        for number, told in numbers:
            _put(self._tree, _SIGN.findall(number), told)

    def places(self, text: str) -> Iterator[tuple[int, int, Any]]:
        """Start, end and what to tell of the longest that begins at each place."""
        for match in _SIGN.finditer(text) if self._tree else ():
            start = match.start()
            if start and _SIGN.match(text[start - 1]):
                continue
            if (longest := self._longest(text, start)) is not None:
                yield start - text.startswith("+", start - 1 if start else 0), *longest

    def _longest(self, text: str, place: int) -> tuple[int, Any] | None:
        tree, longest = self._tree, None
        while place < len(text) and text[place] in tree:
            tree = tree[text[place]]
            place += 1
            if _END in tree and not _SIGN.match(text, place):
                longest = place, tree[_END]
            gap = _GAP.match(text, place)
            place = place if gap is None else gap.end()
        return longest


class Known:
    """Everything that was found in a conversation, ready to be looked for again: numbers in any grouping, all else as it was written."""

    def __init__(self, known: Iterable[tuple[Found, str]]) -> None:
        """Given with its text. Terms are not among it: they are found wherever they stand."""
        wanted = [(one, lower(original)) for one, original in known if one.kind != "term"]
        numbers = [(original, one) for one, original in wanted if one.kind in _NUMBERED]
        words = [(original, one) for one, original in wanted if one.kind not in _NUMBERED]
        self._numbers = KnownNumbers(entry for entry in numbers if len(_SIGN.findall(entry[0])) >= _SHORTEST)
        self._words = KnownWords(words)

    def again(self, text: str) -> Iterator[Found]:
        """Its places in a text."""
        low = lower(text)
        for lookout in (self._numbers, self._words):
            yield from (Found(start, end, one.kind, one.value) for start, end, one in lookout.places(low))


def _put(tree: _Tree, pieces: Iterable[str], told: Any) -> None:
    for piece in pieces:
        tree = tree.setdefault(piece, {})
    tree.setdefault(_END, told)


def _is_word(piece: str) -> bool:
    return piece[0] == "_" or piece[0].isalnum()
