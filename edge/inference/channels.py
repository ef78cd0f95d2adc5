"""What a person reads of a response: its reasoning and its answer, without the tags, also where the model broke them.

The models write `<think> ... </think> <answer> ... </answer>`. Clients of the OpenAI API expect the reasoning apart from the
answer. Text may arrive cut anywhere, also in the middle of a tag, so what may become a tag is held back until decided.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from edge.core.types import ScoredToken
from edge.dagrpo.answers import last_boxed
from edge.inference.detokenizer import StopSearch

_TAG = re.compile(r"<(/?)(think|answer)[ \t]*(?:>|(?=[<\\\n]))", re.IGNORECASE)
"""A tag in any case, also one whose `>` is missing before the next tag, a box or the end of the line."""
_STEMS = ("<think", "</think", "<answer", "</answer")


@dataclass(frozen=True, slots=True)
class ChannelText:
    """Text for one channel: `reasoning` or `content`. `tokens`: those of content, where they were asked for."""

    channel: str
    text: str
    tokens: tuple[ScoredToken, ...] = ()


class AnswerReader:
    """Text by channel, the content cut at the first stop string. Tags are swallowed, and so is white space between the channels.

    All text in an open `<answer>` is content; after a closed one that is not empty, only the text of another one is.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._search = StopSearch(stops)
        self._part, self._fresh, self._source = "content", True, ""
        """Where the text is: in the reasoning, the answer, other content, or in the rest after an answer, which is not shown."""
        self.answer = ""
        """The text in the last `<answer>` so far."""
        self._held = ""
        self._sorted = 0
        """Characters of the whole text that have their channel or are tags; those held back come after them."""
        self._content, self._shown = "", 0
        self._parts: deque[tuple[int, int, int]] = deque()
        """Of each part of the content: where it begins and ends in the whole text, and where it begins in the content."""
        self._tokens: deque[ScoredToken] = deque()

    @property
    def stop(self) -> str:
        """The stop string that cut the content, "" where none did."""
        return self._search.stop

    def feed(
        self, text: str, tokens: Sequence[ScoredToken] = (), *, verbatim: bool = False, source: str = "local"
    ) -> list[ChannelText]:
        """What may be shown of the text so far. Tokens come in order, with offsets in the whole text. A verbatim text is content as it
        is. Where another source goes on, its text is read again."""
        out: list[ChannelText] = []
        if text and source != self._source:
            self._source = source
            if self._part == "rest":
                self._part, self._fresh = "content", True
        self._tokens.extend(tokens)
        if verbatim:
            self._sort(len(self._held), out)
            self._part, self._fresh, self._held = "content", False, text
            self._sort(len(text), out)
            return out
        self._held += text
        while found := _TAG.search(self._held):
            self._sort(found.start(), out)
            self._part, self._fresh = self._behind(found[1] + found[2].lower()), True
            self._sorted += len(found[0])
            self._held = self._held[len(found[0]) :]
        self._sort(self._tag_begins(), out)
        return out

    def finish(self) -> list[ChannelText]:
        """What was held back; the beginning of a tag is dropped."""
        out: list[ChannelText] = []
        begin = self._tag_begins()
        self._sort(begin if len(self._held) - begin > 1 else len(self._held), out)
        self._show(out, last=True)
        return out

    def _behind(self, tag: str) -> str:
        """The part that a tag begins."""
        if tag in ("think", "answer"):
            return "reasoning" if tag == "think" else "answer"
        answered = self._part == "rest" or (tag == "/answer" and self._content.strip())
        return "rest" if answered else "content"

    def _tag_begins(self) -> int:
        """Where what may become a tag begins at the end of the text that is held; its length where there is none."""
        begin = self._held.rfind("<")
        tail = self._held[begin:].lower() if begin >= 0 else ""
        may_be_tag = any(stem.startswith(tail) for stem in _STEMS) or tail.rstrip(" \t") in _STEMS
        return begin if tail and may_be_tag else len(self._held)

    def _sort(self, end: int, out: list[ChannelText]) -> None:
        """What is held up to `end` belongs to the present part."""
        text, self._held = self._held[:end], self._held[end:]
        self._sorted += end
        if self._fresh:
            text = text.lstrip()
        if not text or self._part == "rest":
            return
        fresh, self._fresh = self._fresh, False
        if self._part == "reasoning":
            out.append(ChannelText("reasoning", text))
            return
        if fresh and self._content and not self._content[-1].isspace():
            self._content += "\n"
        if self._part == "answer":
            self.answer = text if fresh else self.answer + text
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


def readable_answer(text: str, *, plain: bool = False) -> str:
    """The answer alone, as a person reads it: boxed, else in `<answer>`, else all of the content; of a plain turn all of the content. ""
    where nothing of it is an answer."""
    reader = AnswerReader()
    content = "".join(part.text for part in reader.feed(text) + reader.finish() if part.channel == "content")
    if plain:
        return content.strip()
    answer = last_boxed(content) or (reader.answer or content).strip().removeprefix("\\boxed{").rstrip()
    return answer or last_boxed(text) or ""
