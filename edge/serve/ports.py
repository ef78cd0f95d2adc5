"""What the HTTP endpoint needs from an agent. Knows questions, answers in pieces, JSON values; knows nothing of engines or HTTP.

The agent is adapted to `AnswerService` where the endpoint is started, so the endpoint can be tested, and served, without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from edge.core.errors import NotFound
from edge.core.types import Message

Mode = Literal["auto", "prefer-local", "local-only", "cloud-only"]


@dataclass(frozen=True, slots=True)
class Question:
    """One request for an answer, under an id of its own. None leaves the choice to the agent."""

    id: str
    messages: tuple[Message, ...]
    mode: Mode | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerNote:
    """What the agent says about a finished answer.

    `source` is local, cloud or local-fallback, `reason` why in one line, `finish` stop or length. `help_log_odds` (nats) and
    `dual` are None where no decision was taken; `calls_left` is None where there is no limit. Token counts are this machine's;
    `cloud_tokens` are billed elsewhere. `final` is the answer alone, without reasoning, tags and box.
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

    def to_json(self) -> dict[str, Any]:
        """The note as a JSON object, without what the wire says elsewhere."""
        return {name: value for name, value in asdict(self).items() if name not in _SAID_ELSEWHERE}


_SAID_ELSEWHERE = frozenset({"finish", "prompt_tokens", "completion_tokens"})


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A piece of a streamed answer; the last one carries the note."""

    text: str
    note: AnswerNote | None = None


class AnswerService(Protocol):
    """An agent as the endpoint sees it. Every method may raise EdgeError and nothing else for a well-formed question."""

    def answer(self, question: Question) -> AsyncGenerator[AnswerPiece, None]:
        """Stream one answer; the last piece has the note. Closing the iterator stops generation."""
        ...

    async def why(self, answer_id: str) -> Mapping[str, Any]:
        """How one answer came about. Raises NotFound for an unknown id."""
        ...

    async def status(self) -> Mapping[str, Any]:
        """What the agent is doing now: model, mode, learning, budget."""
        ...

    async def steps(self, after: int) -> Sequence[Mapping[str, Any]]:
        """Learning steps with a number above `after`, oldest first, each with its `step`."""
        ...

    async def adapters(self) -> Sequence[Mapping[str, Any]]:
        """The adapter versions on disk, oldest first, each with its `version`."""
        ...

    async def rollback(self, version: int) -> Mapping[str, Any]:
        """Serve and learn on from a version (0: the bare model). Raises NotFound, StateError or AdapterError."""
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
        self.log: list[Mapping[str, Any]] = []
        self.versions: list[Mapping[str, Any]] = []
        self.state: dict[str, Any] = {"mode": "auto", "model": {"name": "scripted"}}

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

    async def why(self, answer_id: str) -> Mapping[str, Any]:
        """The note under any id that was asked."""
        if answer_id not in {question.id for question in self.asked}:
            raise NotFound(f"no answer {answer_id!r}")
        return {**self.note.to_json(), "id": answer_id}

    async def status(self) -> Mapping[str, Any]:
        """The prepared state."""
        return self.state

    async def steps(self, after: int) -> Sequence[Mapping[str, Any]]:
        """The prepared steps above `after`."""
        return [step for step in self.log if step["step"] > after]

    async def adapters(self) -> Sequence[Mapping[str, Any]]:
        """The prepared versions."""
        return self.versions

    async def rollback(self, version: int) -> Mapping[str, Any]:
        """Marks one of the prepared versions as serving. Raises NotFound for another one."""
        if version and version not in [known["version"] for known in self.versions]:
            raise NotFound(f"there is no adapter version {version} here")
        self.versions = [{**known, "serving": known["version"] == version} for known in self.versions]
        return {"head": version, "serving": version}
