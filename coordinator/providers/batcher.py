"""Continuous batching of the cloud's answers over the rows of a llama.cpp context.

Each conversation is decoded into a row by itself, then all rows go on together, one token each per decode call. An answer does not depend
on its company (edge/inference/llama_engine.py). Running rows are always the first ones: where one ends, the last takes its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random

import numpy as np

from edge.inference.gguf_model import Vocabulary
from edge.inference.llama_engine import LlamaEngine
from edge.inference.sampling import Floats


class Stage(Enum):
    """Where a generation stands."""

    QUEUED = "queued"
    RUNNING = "running"
    OVER = "over"


@dataclass(slots=True)
class Generation:
    """One answer to be decoded: prompt ids, limits and randomness, and what came of it.

    `report` is called on the engine's thread after each token of a streamed generation and at the end of any.
    """

    prompt_ids: Sequence[int]
    max_tokens: int
    temperature: float
    random: Random
    report: Callable[[Generation], None]
    streamed: bool = False
    text: bytearray = field(default_factory=bytearray)
    output_tokens: int = 0
    finish: str = ""
    error: Exception | None = None
    stage: Stage = Stage.QUEUED
    cancelled: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def claim(self) -> bool:
        """Begin; False when it was cancelled while it waited."""
        with self._lock:
            self.stage = Stage.OVER if self.cancelled else Stage.RUNNING
            return not self.cancelled

    def cancel(self) -> bool:
        """Give it up, from any thread; True when it had not begun, so that nothing was executed."""
        with self._lock:
            self.cancelled = True
            return self.stage is Stage.QUEUED


@dataclass(slots=True)
class _Row:
    """`position`: where its next token goes; `token`: that token, -1 before the first."""

    generation: Generation
    position: int
    token: int = -1


class RowBatcher:
    """Generations on an engine's rows. All methods on one thread."""

    def __init__(self, engine: LlamaEngine, vocabulary: Vocabulary) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._rows: list[_Row] = []

    @property
    def has_room(self) -> bool:
        """Whether another generation can be admitted."""
        return len(self._rows) < self._engine.rows

    @property
    def busy(self) -> bool:
        """Whether any generation is running."""
        return bool(self._rows)

    def admit(self, generation: Generation) -> None:
        """Decode a prompt into the next free row and take its first token."""
        if not generation.claim():
            return
        row = _Row(generation, len(generation.prompt_ids))
        self._rows.append(row)
        self._take_token(row, self._engine.prefill(len(self._rows) - 1, list(generation.prompt_ids)))
        self._close_gaps()

    def step(self) -> None:
        """Decode one token in every running row."""
        for row in self._rows:
            if row.generation.cancelled:
                self._end(row, "cancelled")
        self._close_gaps()
        if not self._rows:
            return
        tokens = np.array([row.token for row in self._rows], dtype=np.int32)
        positions = np.array([row.position for row in self._rows], dtype=np.int32)
        logits_RV = self._engine.decode(tokens, positions)
        best_R = logits_RV.argmax(axis=1)
        for row, logits_V, best in zip(self._rows, logits_RV, best_R.tolist(), strict=True):
            row.position += 1
            self._take_token(row, logits_V, best)
        self._close_gaps()

    def fail_all(self, error: Exception) -> None:
        """End every running generation with this error."""
        for row in self._rows:
            row.generation.error = error
            self._end(row, "error")
        self._rows.clear()

    def _take_token(self, row: _Row, logits_V: Floats, best: int | None = None) -> None:
        """Choose a row's next token, or end it."""
        generation = row.generation
        row.token = _choose(logits_V, generation.temperature, generation.random, best)
        generation.output_tokens += 1
        if self._vocabulary.ends[row.token]:
            self._end(row, "stop")
            return
        generation.text += self._vocabulary.pieces[row.token]
        if generation.output_tokens >= generation.max_tokens or row.position + 1 >= self._engine.n_ctx:
            self._end(row, "length")
        elif generation.streamed:
            generation.report(generation)

    def _end(self, row: _Row, finish: str) -> None:
        row.generation.finish = finish
        row.generation.stage = Stage.OVER
        row.generation.report(row.generation)

    def _close_gaps(self) -> None:
        """The last row takes the place of one that is over."""
        for index in reversed(range(len(self._rows))):
            if self._rows[index].generation.stage is Stage.OVER:
                last = self._rows.pop()
                if index < len(self._rows):
                    self._engine.fork(len(self._rows), index, last.position)
                    self._rows[index] = last


def _choose(logits: Floats, temperature: float, random: Random, best: int | None) -> int:
    """The likeliest token at temperature 0, else one drawn from softmax(logits / temperature)."""
    if temperature <= 0.0:
        return int(logits.argmax()) if best is None else best
    scaled = logits.astype(np.float64) / temperature
    cumulative = np.exp(scaled - scaled.max()).cumsum()
    return min(int(np.searchsorted(cumulative, random.random() * cumulative[-1], side="right")), len(logits) - 1)
