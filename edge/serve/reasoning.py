"""Splits a streamed response into reasoning and answer, and stops at stop strings.

The models write `<think> ... </think> <answer> ... </answer>`. Clients of the OpenAI API expect the reasoning apart from the
answer. Text may arrive cut anywhere, also in the middle of a tag, so what may become a tag is held back until decided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from edge.core.types import ScoredToken
from edge.inference.detokenizer import StopSearch, longest_partial
from edge.serve.ports import AnswerNote, AnswerPiece

_TAGS = {"<think>": "reasoning", "</think>": "content", "<answer>": "content", "</answer>": "content"}


@dataclass(frozen=True, slots=True)
class ChannelText:
    """Text for one channel: `reasoning` or `content`. `start`: its offset in the whole text. `tokens`: those of content, if asked for."""

    channel: str
    text: str
    start: int = field(default=0, compare=False)
    tokens: tuple[ScoredToken, ...] = ()


Reading = AsyncGenerator[ChannelText | AnswerNote, None]


class ReasoningSplitter:
    """Feeds on text, gives text with its channel; tags themselves are swallowed, and so is white space between the channels."""

    def __init__(self) -> None:
        self._channel = "content"
        self._held = ""
        self._fresh = True
        self.decided = 0
        """Characters that are sorted out; those held back lie behind them."""

    def feed(self, text: str) -> list[ChannelText]:
        """The decided text so far."""
        self._held += text
        out: list[ChannelText] = []
        while True:
            position, tag = _first_tag(self._held)
            if tag is None:
                break
            self._say(self._held[:position], out)
            self._switch(_TAGS[tag])
            self.decided += len(tag)
            self._held = self._held[position + len(tag) :]
        keep = longest_partial(self._held, tuple(_TAGS))
        decided, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        self._say(decided, out)
        return out

    def finish(self) -> list[ChannelText]:
        """What was held back."""
        out: list[ChannelText] = []
        self._say(self._held, out)
        self._held = ""
        return out

    def _switch(self, channel: str) -> None:
        self._channel = channel
        self._fresh = True

    def _say(self, text: str, out: list[ChannelText]) -> None:
        self.decided += len(text)
        if self._fresh:
            text = text.lstrip()
        if text:
            self._fresh = False
            out.append(ChannelText(self._channel, text, self.decided - len(text)))


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


class AnswerReader:
    """Text by channel, the content cut at the first stop string."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._splitter = ReasoningSplitter()
        self._search = StopSearch(stops)
        self._tokens = ContentTokens()
        self._content = ""
        self._shown = 0

    def feed(self, text: str, tokens: Sequence[ScoredToken] = ()) -> list[ChannelText]:
        """What may be shown of the text so far."""
        self._tokens.add(tokens)
        return self._cut(self._splitter.feed(text))

    def finish(self) -> list[ChannelText]:
        """What was held back."""
        rest = self._cut(self._splitter.finish())
        held = self._settled(last=True)
        return [*rest, held] if held.text else rest

    def _cut(self, parts: list[ChannelText]) -> list[ChannelText]:
        for part in parts:
            if part.channel == "content":
                self._tokens.reveal(part.start, part.text)
        cut = [self._settled(part.text) if part.channel == "content" else part for part in parts]
        return [part for part in cut if part.text]

    def _settled(self, text: str = "", *, last: bool = False) -> ChannelText:
        """Content that is shown now, with its tokens: nothing of a stop string, nor of what may become one."""
        self._content += text
        begin, self._shown = self._shown, max(self._shown, self._search.settled(self._content, last))
        tokens = self._tokens.until(self._splitter.decided, self._shown)
        return ChannelText("content", self._content[begin : self._shown], tokens=tokens)


async def read_answer(pieces: AsyncGenerator[AnswerPiece, None], stops: Sequence[str] = ()) -> Reading:
    """Text by channel, then the note. After a stop string the rest is not shown, but the answer runs to its record."""
    reader = AnswerReader(stops)
    async with aclosing(pieces):
        async for piece in pieces:
            for part in reader.feed(piece.text, piece.tokens):
                yield part
            if piece.note:
                for part in reader.finish():
                    yield part
                yield piece.note


def _first_tag(text: str) -> tuple[int, str | None]:
    found = [(text.find(tag), tag) for tag in _TAGS if tag in text]
    return min(found) if found else (-1, None)
