"""The tokens of an answer on their way to a person. Knows offsets in the streamed text; knows nothing of who samples or listens.

Text may be held back or taken back (a request for help) after its tokens are known, so a token goes out when the text it ends in does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from edge.core.types import ScoredToken


class TokenLine:
    """Tokens that wait for their text. Offsets count from the beginning of the answer."""

    def __init__(self) -> None:
        self._waiting: deque[ScoredToken] = deque()
        self._base = 0

    def begin(self, base: int = 0) -> None:
        """A text begins at this offset; what waits belongs to text that was taken back."""
        self._waiting.clear()
        self._base = base

    def add(self, tokens: Sequence[ScoredToken]) -> None:
        """The next tokens, with offsets in the text that `begin` announced."""
        for token in tokens:
            self._waiting.append(replace(token, start=self._base + token.start, end=self._base + token.end))

    def until(self, said: int) -> tuple[ScoredToken, ...]:
        """The tokens that end in the first `said` characters, each once."""
        out = []
        while self._waiting and self._waiting[0].end <= said:
            out.append(self._waiting.popleft())
        return tuple(out)
