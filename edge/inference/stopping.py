"""Where a text that grows has to end because of a stop string.

In a chat a stop string ends the answer: it is not looked for in the reasoning before it, which the person who set it does not see, nor
in a request for help, which is no text for a person but a decision.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from edge.dagrpo.prompts import HELP_PHRASE

_BEFORE_THE_ANSWER = re.compile(r"\s*(?:<think>.*?</think>\s*)?(?:<answer>\s*)?", re.DOTALL)
_TAGS = ("<think>", "<answer>")
_PHRASE = HELP_PHRASE.casefold().rstrip(".")


class StopSearch:
    """Follows one text. `cut` is the offset at which it has to end, None as long as no stop string came.

    `said` is text of the same turn said before: stop strings that begin in it are not found.
    """

    __slots__ = ("_answer_only", "_longest", "_said", "_searched", "_stops", "cut")

    def __init__(self, stops: Sequence[str], *, answer_only: bool = False, said: str = "") -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._answer_only = answer_only
        self._said = said
        self._searched = 0
        self.cut: int | None = None

    def settled(self, text: str, last: bool = False) -> int:
        """How many characters of the text so far certainly stay; sets `cut` when a stop string is in it. `last`: nothing will follow."""
        if self._answer_only:
            self._find_the_answer(text, last)
        if self._answer_only:
            return self._searched
        if self.cut is not None:
            return self.cut
        found = [at for at in (text.find(stop, self._searched) for stop in self._stops) if at >= 0]
        if found:
            self.cut = min(found)
            return self.cut
        self._searched = max(self._searched, len(text) - self._longest + 1)
        return len(text) if last else len(text) - longest_partial(text[self._searched :], self._stops)

    def _find_the_answer(self, text: str, last: bool) -> None:
        """Search from where the answer begins on, as soon as that is certain; what is surely none of it is settled before."""
        whole = self._said + text
        start, open_ended = answer_start(whole)
        begins = whole[start:].casefold()
        asks = begins.startswith(_PHRASE)
        if asks or (open_ended and not _may_begin_tag(begins)):
            start = len(whole)
        self._searched = max(0, start - len(self._said))
        self._answer_only = asks or (not last and (open_ended or _PHRASE.startswith(begins)))


def answer_start(text: str) -> tuple[int, bool]:
    """The offset behind the reasoning and the tags at the beginning, and whether more of them may come."""
    found = _BEFORE_THE_ANSWER.match(text)
    start = found.end() if found else 0
    return start, text.startswith("<think>", start) or _may_begin_tag(text[start:])


def _may_begin_tag(text: str) -> bool:
    return any(tag.startswith(text) for tag in _TAGS)


def longest_partial(text: str, words: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of one of the words."""
    longest = 0
    for word in words:
        for size in range(min(len(word) - 1, len(text)), longest, -1):
            if text.endswith(word[:size]):
                longest = size
                break
    return longest
