"""Which tokens of an answer a person sees. Knows offsets of the answer's visible parts; knows nothing of tags or HTTP."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from edge.core.types import ScoredToken


class ContentTokens:
    """Lets tokens go with the content that they are part of; those of reasoning and tags are dropped."""

    def __init__(self) -> None:
        self._waiting: deque[ScoredToken] = deque()
        self._parts: deque[tuple[int, int, int]] = deque()
        self._content = 0

    def add(self, tokens: Sequence[ScoredToken]) -> None:
        """The next tokens of the whole text."""
        self._waiting.extend(tokens)

    def reveal(self, start: int, text: str) -> None:
        """The next visible part: where it begins in the whole text."""
        if text:
            self._parts.append((start, start + len(text), self._content))
            self._content += len(text)

    def until(self, decided: int, shown: int) -> tuple[ScoredToken, ...]:
        """The tokens that begin in the first `shown` characters of the content; of the whole text `decided` characters are sorted out."""
        out: list[ScoredToken] = []
        while self._waiting and self._waiting[0].start < decided:
            place = self._place(self._waiting[0])
            if place is not None and place >= shown:
                break
            token = self._waiting.popleft()
            if place is not None:
                out.append(token)
        return tuple(out)

    def _place(self, token: ScoredToken) -> int | None:
        """Where a token's first visible character is in the content, None when it has none. Tokens come in order."""
        while self._parts and self._parts[0][1] <= token.start:
            self._parts.popleft()
        if not self._parts or self._parts[0][0] >= max(token.end, token.start + 1):
            return None
        start, _, content = self._parts[0]
        return content + max(0, token.start - start)
