"""The text of one response while it grows, and where it has to end because of a stop string.

Rollouts need none of this: their text is put together once, at the end. A character of several tokens that the end of a response cuts is
left out of its text; other bytes that are no UTF-8 are U+FFFD.

In a chat a stop string ends the answer: it is not searched for in the reasoning before it, which the person who set it does not see, nor
in a request for help, which is no text for a person but a decision.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from edge.core.types import Sampling, ScoredToken
from edge.dagrpo.prompts import HELP_PHRASE

_BEFORE_THE_ANSWER = re.compile(r"\s*(?:<think>.*?</think>\s*)?(?:<answer>\s*)?", re.DOTALL)
_TAGS = ("<think>", "<answer>")
_PHRASE = HELP_PHRASE.casefold().rstrip(".")
Listener = Callable[[str, tuple[ScoredToken, ...]], None]
"""Called with each piece of text and the tokens that end in it."""


_decoder = codecs.getincrementaldecoder("utf-8")
"""It holds back the bytes of a character until the last of them is there."""


def text_of(pieces: Iterable[bytes]) -> str:
    """The text of a response from the bytes of its tokens."""
    return _decoder("replace").decode(b"".join(pieces))


class Detokenizer:
    """Text and tokens of one response; the listener gets what is certain as soon as it is. `count`: tokens that were added.

    `before` is text of the same turn written before. `tokens` are stored only where they are passed in.
    """

    __slots__ = ("_decoder", "_listener", "_reported_chars", "_reported_tokens", "_search", "_text", "_tokens", "count")

    def __init__(self, sampling: Sampling, before: str, listener: Listener | None) -> None:
        self._decoder = _decoder("replace")
        self._search = StopSearch(sampling.stops, answer_only=sampling.stops_in_answer, before=before) if sampling.stops else None
        self._listener = listener
        self._text = ""
        self._tokens: list[ScoredToken] = []
        self._reported_chars = self._reported_tokens = self.count = 0

    @property
    def stopped(self) -> bool:
        """A stop string ended the text."""
        return self._search is not None and self._search.cut is not None

    @property
    def stop(self) -> str:
        """The stop string that ended it, "" where none did."""
        return "" if self._search is None else self._search.stop

    @property
    def text(self) -> str:
        """The text so far, without what a stop string cut off."""
        return self._text if self._search is None else self._text[: self._search.cut]

    @property
    def tokens(self) -> tuple[ScoredToken, ...]:
        """The tokens of `text`; one that the cut goes through is among them."""
        if self._search is None or self._search.cut is None:
            return tuple(self._tokens)
        return tuple(token for token in self._tokens if token.start < self._search.cut)

    def add(self, piece: bytes, token: ScoredToken | None, last: bool) -> bool:
        """Take the next token's bytes; true when a stop string ended the text."""
        start = len(self._text)
        self.count += 1
        self._text += self._decoder.decode(piece)
        if token is not None:
            self._tokens.append(replace(token, start=start, end=len(self._text)))
        settled = len(self._text) if self._search is None else self._search.settled(self._text, last)
        if self._listener is not None:
            last = self.stopped or last
            tokens, count = self.tokens if last else self._tokens, self._reported_tokens
            while count < len(tokens) and (last or tokens[count].end <= settled):
                count += 1
            text, news = self._text[self._reported_chars : settled], tuple(tokens[self._reported_tokens : count])
            if text or news:
                self._reported_chars, self._reported_tokens = max(settled, self._reported_chars), count
                self._listener(text, news)
        return self.stopped


class StopSearch:
    """Follows one text. `cut` is the offset at which it has to end, None as long as no stop string came; `stop` is the one that came.

    `before` is text of the same turn written before: stop strings that begin in it are not found.
    """

    __slots__ = ("_answer_only", "_before", "_longest", "_searched", "_stops", "cut", "stop")

    def __init__(self, stops: Sequence[str], *, answer_only: bool = False, before: str = "") -> None:
        self._stops, self._answer_only, self._before = tuple(stops), answer_only, before
        self._longest = max(map(len, self._stops), default=0)
        self._searched = 0
        self.cut: int | None = None
        self.stop = ""

    def settled(self, text: str, last: bool = False) -> int:
        """How many characters of the text so far certainly stay; sets `cut` when a stop string is in it. `last`: nothing will follow."""
        if self._answer_only:
            self._find_the_answer(text, last)
        if self._answer_only:
            return self._searched
        if self.cut is not None:
            return self.cut
        found = [(at, stop) for stop in self._stops if (at := text.find(stop, self._searched)) >= 0]
        if found:
            self.cut, self.stop = min(found)
            return self.cut
        self._searched = max(self._searched, len(text) - self._longest + 1)
        return len(text) if last else len(text) - longest_partial(text[self._searched :], self._stops)

    def _find_the_answer(self, text: str, last: bool) -> None:
        """Search from where the answer begins on, as soon as that is certain; what is surely none of it is settled before."""
        whole = self._before + text
        start, open_ended = answer_start(whole)
        begins = whole[start:].casefold()
        asks = begins.startswith(_PHRASE)
        if asks or (open_ended and not _may_begin_tag(begins)):
            start = len(whole)
        self._searched = max(0, start - len(self._before))
        self._answer_only = asks or (not last and (open_ended or _PHRASE.startswith(begins)))


def answer_start(text: str) -> tuple[int, bool]:
    """The offset after the reasoning and the tags at the beginning, and whether more of them may come."""
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
