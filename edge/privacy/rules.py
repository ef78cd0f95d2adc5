"""What a person listed: private terms, which are replaced, and never-send rules, which keep a text on the device.

Terms: whole words count, in any case, with any accents and separators or none, in the plural and before an apostrophe, and as parts of a
name in camel case; of scripts without spaces between words every occurrence. The work is in proportion to the text, however many terms
there are.

A rule is a plain text, compared without regard to case, accents, look-alikes and white space; or `like:` and a pattern, in which `#` is
any digit, `?` any character and `*` up to 64 characters. There are no regular expressions, so that no rule can take longer than in
proportion to the text.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from edge.core.limits import LIKE, checked_rule, checked_term
from edge.privacy.findings import PrivateSpan, folded, lower, views_of

_WORD = re.compile(r"[^\W\d_]+|\d+")
_GAP = re.compile(r"[^\w]{0,3}|_|\s{1,8}")
_UNSPACED = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_SHORTEST_PLURAL = 3
_SHORTEST_PART = 4
"""A shorter term is a part of too many names."""
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[^\W\d_]+|\d+")
_CAMEL = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]")


class PrivateTerms:
    """A list of terms, ready to be searched for."""

    def __init__(self, terms: Sequence[str]) -> None:
        """Raises ValueError for a term that is too short to be distinguished, or too long."""
        self._by_first: dict[str, list[tuple[tuple[str, ...], str]]] = defaultdict(list)
        self._unspaced: list[str] = []
        for term in terms:
            form = folded(checked_term(term))
            words = tuple(_WORD.findall(form))
            if _UNSPACED.search(form):
                self._unspaced.append(form)
                continue
            self._by_first[words[0]].append((words, form))
            joined = "".join(words)
            if len(words) > 1 and len(_WORD.findall(joined)) == 1:
                self._by_first[joined].append(((joined,), form))
        for known in self._by_first.values():
            known.sort(key=lambda entry: -len(entry[0]))

    def found(self, text: str) -> Iterator[PrivateSpan]:
        """The terms in a text whose characters are folded already but for their case."""
        low = lower(text)
        if self._by_first:
            yield from self._words(low, [match.span() for match in _WORD.finditer(low)])
            if _CAMEL.search(text):
                parts = self._words(low, [match.span() for match in _PART.finditer(text)])
                yield from (one for one in parts if one.end - one.start >= _SHORTEST_PART)
        for term in self._unspaced:
            yield from (PrivateSpan(match.start(), match.end(), "term", term) for match in re.finditer(re.escape(term), low))

    def _words(self, low: str, spans: Sequence[tuple[int, int]]) -> Iterator[PrivateSpan]:
        places = [(low[start:end], start, end) for start, end in spans]
        for index, (word, start, _) in enumerate(places):
            for first in dict.fromkeys((word, *_singulars(word))):
                for words, form in self._by_first.get(first, ()):
                    end = _end_of(low, places, index, words)
                    if end:
                        yield PrivateSpan(start, end, "term", form)
                        break


def _end_of(low: str, places: Sequence[tuple[str, int, int]], index: int, words: Sequence[str]) -> int:
    """Where the term that begins at word `index` ends, or 0 where it is not there."""
    if index + len(words) > len(places):
        return 0
    for offset, wanted in enumerate(words):
        word, start, _ = places[index + offset]
        last = offset == len(words) - 1
        if word != wanted and not (last and wanted in _singulars(word)):
            return 0
        if offset and not _GAP.fullmatch(low, places[index + offset - 1][2], start):
            return 0
    return places[index + len(words) - 1][2]


def _singulars(word: str) -> tuple[str, ...]:
    """What a word may be the plural of."""
    ends = [ending for ending in ("s", "es") if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_PLURAL]
    return tuple(word[: -len(ending)] for ending in ends)


_STANDS_FOR = {"#": r"\d", "?": ".", "*": ".{0,64}?"}


class NeverSend:
    """A person's rules, ready to be asked."""

    def __init__(self, rules: Sequence[str]) -> None:
        """Raises ValueError for a rule that cannot be used."""
        self._patterns = [re.compile(_expression(rule)) for rule in rules]

    def broken(self, texts: Sequence[str]) -> int:
        """The number, from 1, of the first rule that a text breaks; 0 where none does."""
        if not self._patterns:
            return 0
        shown = [folded(view.text) for text in texts for view in views_of(text)]
        for number, pattern in enumerate(self._patterns, 1):
            if any(pattern.search(text) for text in shown):
                return number
        return 0


def _expression(rule: str) -> str:
    checked_rule(rule)
    if not rule.startswith(LIKE):
        return re.escape(folded(rule))
    return "".join(_STANDS_FOR.get(char, re.escape(char)) for char in folded(rule.removeprefix(LIKE)))
