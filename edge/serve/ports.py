"""What the HTTP endpoint needs of whoever answers. Knows questions and answers in pieces; knows nothing of engines or HTTP.

The agent is adapted to `AnswerService` where the endpoint is started, so the endpoint can be tested, and served, without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from edge.core.types import NO_WISHES, ONLY_TEXT, BeyondText, Message, SamplingWishes, ScoredToken

Mode = Literal["auto", "prefer-local", "local-only", "cloud-only"]


@dataclass(frozen=True, slots=True)
class Question:
    """One request for an answer, under an id of its own. None leaves the choice to the agent.

    `no_cloud`: why whoever asks keeps it from the cloud ("": they do not).
    """

    id: str
    messages: tuple[Message, ...]
    mode: Mode | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    task: str | None = None
    beyond: BeyondText = ONLY_TEXT
    wishes: SamplingWishes = NO_WISHES
    no_cloud: str = ""


@dataclass(frozen=True, slots=True)
class AnswerNote:
    """What the agent says about a finished answer.

    `source` is local, cloud or local-fallback, `reason` why in one line, `finish` stop, length, tool_calls or content_filter.
    `help_log_odds` (nats) and `dual` are None where no decision was taken; `calls_left` is None where there is no limit.
    Token counts are this machine's; `cloud_tokens` are billed elsewhere. `final` is the answer alone, without reasoning, tags and box.
    `assist_rate` is the realised rate of the task's latest answers, `target_rate` its dial's τ (None: not told). `tool_calls` are in
    OpenAI's form. `asked`: the model asked for help. `quota` is what may still be asked, see edge/agent/quota.py.
    `cached`: the coordinator gave a stored answer again, which costs nothing. `task_known`: somebody set, learns or serves this label; a
    label of which that is not true may be a slip of the hand.
    """

    id: str
    source: str
    reason: str = ""
    finish: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    help_log_odds: float | None = None
    dual: float | None = None
    calls_left: int | None = None
    spend_left_uusd: int | None = None
    cloud_tokens: int = 0
    spend_uusd: int = 0
    adapter_version: int = 0
    latency_s: float = 0.0
    final: str = ""
    task: str = ""
    assist_rate: float | None = None
    target_rate: float | None = None
    tokens_left: int | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    asked: bool = False
    quota: Mapping[str, Any] | None = None
    cached: bool = False
    task_known: bool = True

    def to_json(self) -> dict[str, Any]:
        """The note as a JSON object, without what the wire says elsewhere."""
        return {name: value for name, value in asdict(self).items() if name not in _SAID_ELSEWHERE}


_SAID_ELSEWHERE = frozenset({"finish", "prompt_tokens", "completion_tokens", "tool_calls"})


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known before an answer begins; the fields are those of AnswerNote."""

    adapter_version: int = 0
    task: str = ""
    dual: float | None = None
    assist_rate: float | None = None
    target_rate: float | None = None
    calls_left: int | None = None
    tokens_left: int | None = None
    spend_left_uusd: int | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A piece of a streamed answer; the last one carries the note. `tokens` are the local ones that end in it, where they were asked for,
    with offsets in the whole text."""

    text: str
    note: AnswerNote | None = None
    tokens: tuple[ScoredToken, ...] = ()


class AnswerService(Protocol):
    """An agent as the endpoint sees it. Every method may raise EdgeError and nothing else for a well-formed question."""

    def answer(self, question: Question) -> AsyncGenerator[AnswerPiece, None]:
        """Stream one answer; the last piece has the note. Closing the iterator stops generation."""
        ...

    def standing(self, task: str | None) -> Standing:
        """What is known before the next answer of this task (None: the agent's own)."""
        ...


class ScriptedAnswers:
    """Says prepared words, piece by piece; for tests and for working on the page without a model.

    `failure` is raised after `fail_after` pieces; piece i waits for the event `wait_before[i]`.
    """

    def __init__(self, pieces: Sequence[str], *, note: AnswerNote | None = None, delay_s: float = 0.0) -> None:
        self.pieces = list(pieces)
        self.note = note or AnswerNote(id="", source="local", completion_tokens=len(self.pieces))
        self.delay_s = delay_s
        self.asked: list[Question] = []
        self.closed = 0
        self.failure: Exception | None = None
        self.fail_after = 0
        self.wait_before: Mapping[int, asyncio.Event] = {}

    def standing(self, task: str | None) -> Standing:
        """What the prepared note says."""
        note = self.note
        return Standing(note.adapter_version, task or note.task, note.dual, calls_left=note.calls_left)

    async def answer(self, question: Question) -> AsyncGenerator[AnswerPiece, None]:
        """The prepared pieces in order, or the prepared failure after `fail_after` of them."""
        self.asked.append(question)
        try:
            for count, text in enumerate(self.pieces):
                if self.failure is not None and count >= self.fail_after:
                    raise self.failure
                if count in self.wait_before:
                    await self.wait_before[count].wait()
                await asyncio.sleep(self.delay_s)
                yield AnswerPiece(text)
            yield AnswerPiece("", note=replace(self.note, id=question.id))
        finally:
            self.closed += 1
