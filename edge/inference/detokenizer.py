"""The text of one response while it grows.

Rollouts need none of this: their text is put together once, at the end.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import replace

from edge.core.types import Sampling, ScoredToken
from edge.inference.stopping import StopSearch

Listener = Callable[[str, tuple[ScoredToken, ...]], None]
"""Called with each piece of text and the tokens that end in it."""


class Detokenizer:
    """Text and tokens of one response; the listener is told what is certain as soon as it is. `count`: tokens that were added.

    `tokens` are kept only where they are handed in.
    """

    __slots__ = ("_decoder", "_listener", "_search", "_text", "_tokens", "_told_chars", "_told_tokens", "count")

    def __init__(self, sampling: Sampling, said: str, listener: Listener | None) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._search = StopSearch(sampling.stops, answer_only=sampling.stops_in_answer, said=said) if sampling.stops else None
        self._listener = listener
        self._text = ""
        self._tokens: list[ScoredToken] = []
        self._told_chars = self._told_tokens = self.count = 0

    @property
    def stopped(self) -> bool:
        """A stop string ended the text."""
        return self._search is not None and self._search.cut is not None

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
        self._text += self._decoder.decode(piece, last)
        if token is not None:
            self._tokens.append(replace(token, start=start, end=len(self._text)))
        settled = len(self._text) if self._search is None else self._search.settled(self._text, last)
        if self._listener is not None:
            self._tell(self._listener, settled, self.stopped or last)
        return self.stopped

    def _tell(self, listener: Listener, settled: int, last: bool) -> None:
        tokens = self.tokens if last else self._tokens
        count = self._told_tokens
        while count < len(tokens) and (last or tokens[count].end <= settled):
            count += 1
        text, news = self._text[self._told_chars : settled], tuple(tokens[self._told_tokens : count])
        if text or news:
            self._told_chars, self._told_tokens = max(settled, self._told_chars), count
            listener(text, news)
