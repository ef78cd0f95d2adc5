"""What was found once and occurs in a text again.

All known things are searched for together, by a tree of their pieces, so that the work is in proportion to the text however many they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from edge.privacy.findings import Kind, PrivateSpan, lower

_SHORTEST, _LONGEST_WORD = 6, 256
"""What is longer, such as a private key, has a form of its own that is found anywhere; it could repeat itself, and each place would be
compared with all of it."""
_NUMBERED: frozenset[Kind] = frozenset({"card", "phone", "iban"})
_PIECE = re.compile(r"\w+|\W")
_SIGN = re.compile(r"[^\W_]")
_GAP = re.compile(r"[ ().,/-]{0,2}")
_Tree = dict[str, Any]
_END = ""
"""The key of a tree that holds what ends there; no piece of a text is empty."""


class KnownWords:
    """Texts that are searched for as they are written, not inside a longer word."""

    def __init__(self, words: Iterable[tuple[str, Any]]) -> None:
        """`words`: each with what to report of it; very short and very long ones do not count."""
        self._tree: _Tree = {}
        for word, value in words:
            if _SHORTEST <= len(word) <= _LONGEST_WORD:
                _put(self._tree, _PIECE.findall(word), value)

    def places(self, text: str) -> Iterator[tuple[int, int, Any]]:
        """Start, end and value of the longest that begins at each place."""
        if not self._tree:
            return
        pieces = _PIECE.findall(text)
        start = 0
        for first, piece in enumerate(pieces):
            tree, index, longest = self._tree, first, None
            if not (first and _is_word(pieces[first - 1]) and not _is_word(piece)):
                while index < len(pieces) and pieces[index] in tree:
                    tree = tree[pieces[index]]
                    index += 1
                    inside = index < len(pieces) and _is_word(pieces[index]) and not _is_word(pieces[index - 1])
                    if _END in tree and not inside:
                        longest = index, tree[_END]
            if longest is not None:
                yield start, start + sum(map(len, pieces[first : longest[0]])), longest[1]
            start += len(piece)


class Known:
    """Everything that was found in a conversation, ready to be searched for again: numbers in any grouping, all else as it was written."""

    def __init__(self, known: Iterable[tuple[PrivateSpan, str]]) -> None:
        """Given with its text. Terms are not among it: they are found wherever they occur."""
        words = []
        self._numbers: _Tree = {}
        for one, original in known:
            if one.kind not in _NUMBERED and one.kind != "term":
                words.append((lower(original), one))
            elif one.kind in _NUMBERED and len(signs := _SIGN.findall(lower(original))) >= _SHORTEST:
                _put(self._numbers, signs, one)
        self._words = KnownWords(words)

    def again(self, text: str) -> Iterator[PrivateSpan]:
        """Its places in a text."""
        low = lower(text)
        for start, end, one in (*self._numbers_in(low), *self._words.places(low)):
            yield PrivateSpan(start, end, one.kind, one.value)

    def _numbers_in(self, text: str) -> Iterator[tuple[int, int, Any]]:
        """Start, end and value of the longest number, in any grouping, that begins at each place."""
        for match in _SIGN.finditer(text) if self._numbers else ():
            start = place = match.start()
            if start and _SIGN.match(text[start - 1]):
                continue
            tree, longest = self._numbers, None
            while place < len(text) and text[place] in tree:
                tree = tree[text[place]]
                place += 1
                if _END in tree and not _SIGN.match(text, place):
                    longest = place, tree[_END]
                gap = _GAP.match(text, place)
                place = place if gap is None else gap.end()
            if longest is not None:
                yield start - text.startswith("+", start - 1 if start else 0), *longest


def _put(tree: _Tree, pieces: Iterable[str], value: Any) -> None:
    for piece in pieces:
        tree = tree.setdefault(piece, {})
    tree.setdefault(_END, value)


def _is_word(piece: str) -> bool:
    return piece[0] == "_" or piece[0].isalnum()
