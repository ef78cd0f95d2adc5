"""Splits a streamed response into reasoning and answer, and stops at stop strings.

The models write `<think> ... </think> <answer> ... </answer>`. Clients of the OpenAI API expect the reasoning apart from the
answer. Text may arrive cut anywhere, also in the middle of a tag, so what may become a tag is held back until decided.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from edge.core.types import ScoredToken
from edge.inference.detokenizer import StopSearch
from edge.serve.ports import AnswerNote, AnswerPiece

_CHANNELS = {"<think>": "reasoning", "</think>": "content", "<answer>": "content", "</answer>": "content"}
_TAG = re.compile("|".join(_CHANNELS))


@dataclass(frozen=True, slots=True)
class ChannelText:
    """Text for one channel: `reasoning` or `content`. `tokens`: those of content, where they were asked for."""

    channel: str
    text: str
    tokens: tuple[ScoredToken, ...] = ()


Reading = AsyncGenerator[ChannelText | AnswerNote, None]


class AnswerReader:
    """Text by channel, the content cut at the first stop string. Tags are swallowed, and so is white space between the channels."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._search = StopSearch(stops)
        self._channel, self._fresh = "content", True
        self._held = ""
        self._sorted = 0
        """Characters of the whole text that have their channel or are tags; those held back lie behind them."""
        self._content, self._shown = "", 0
        self._parts: deque[tuple[int, int, int]] = deque()
        """Of each part of the content: where it begins and ends in the whole text, and where it begins in the content."""
        self._tokens: deque[ScoredToken] = deque()

    def feed(self, text: str, tokens: Sequence[ScoredToken] = (), *, verbatim: bool = False) -> list[ChannelText]:
        """What may be shown of the text so far. Tokens come in order, with offsets in the whole text. A verbatim text is content as it
        stands."""
        out: list[ChannelText] = []
        self._tokens.extend(tokens)
        if verbatim:
            self._sort(len(self._held), out)
            self._channel, self._fresh, self._held = "content", False, text
            self._sort(len(text), out)
            return out
        self._held += text
        while found := _TAG.search(self._held):
            self._sort(found.start(), out)
            self._channel, self._fresh = _CHANNELS[found[0]], True
            self._sorted += len(found[0])
            self._held = self._held[len(found[0]) :]
        begin = self._held.rfind("<")
        may_be_tag = begin >= 0 and any(tag.startswith(self._held[begin:]) for tag in _CHANNELS)
        self._sort(begin if may_be_tag else len(self._held), out)
        return out

    def finish(self) -> list[ChannelText]:
        """What was held back."""
        out: list[ChannelText] = []
        self._sort(len(self._held), out)
        self._show(out, last=True)
        return out

    def _sort(self, end: int, out: list[ChannelText]) -> None:
        """What is held up to `end` belongs to the present channel."""
        text, self._held = self._held[:end], self._held[end:]
        self._sorted += end
        if self._fresh:
            text = text.lstrip()
        if not text:
            return
        self._fresh = False
        if self._channel == "reasoning":
            out.append(ChannelText("reasoning", text))
        else:
            self._parts.append((self._sorted - len(text), self._sorted, len(self._content)))
            self._content += text
            self._show(out)

    def _show(self, out: list[ChannelText], *, last: bool = False) -> None:
        """Content that is shown now, with its tokens: nothing of a stop string, nor of what may become one."""
        begin, self._shown = self._shown, max(self._shown, self._search.settled(self._content, last))
        if begin < self._shown:
            out.append(ChannelText("content", self._content[begin : self._shown], self._shown_tokens()))

    def _shown_tokens(self) -> tuple[ScoredToken, ...]:
        """The waiting tokens that begin in the shown content; those of reasoning and tags are dropped."""
        out: list[ScoredToken] = []
        while self._tokens and self._tokens[0].start < self._sorted:
            token = self._tokens[0]
            while self._parts and self._parts[0][1] <= token.start:
                self._parts.popleft()
            if self._parts and self._parts[0][0] < max(token.end, token.start + 1):
                start, _, place = self._parts[0]
                if place + max(0, token.start - start) >= self._shown:
                    break
                out.append(token)
            self._tokens.popleft()
        return tuple(out)


async def read_answer(
    pieces: AsyncGenerator[AnswerPiece, None], stops: Sequence[str] = (), count: Callable[[AnswerNote], None] = lambda note: None
) -> Reading:
    """Text by channel, then the note, which `count` gets first. After a stop string the rest is not shown, but the answer runs to its
    record."""
    reader = AnswerReader(stops)
    async with aclosing(pieces):
        async for piece in pieces:
            for part in reader.feed(piece.text, piece.tokens, verbatim=piece.verbatim):
                yield part
            if piece.note:
                for part in reader.finish():
                    yield part
                count(piece.note)
                yield piece.note
