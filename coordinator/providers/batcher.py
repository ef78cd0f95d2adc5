"""Continuous batching over one llama.cpp context.

Each conversation is decoded into its own row by itself, then all rows go on together, one token each per decode call. An answer does not
depend on its company: rows have separate key/value streams, prompts are never mixed, and at least two rows are decoded at a time, since a
product with one column is summed in another order than one with several.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from coordinator.providers.gguf_chat import ChatModel, engine_complaint, forget_complaints

PREFILL_CHUNK = 512
Floats = NDArray[np.float32]


class DecodeError(Exception):
    """llama.cpp failed; what was running is lost."""


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
    generation: Generation
    position: int
    token: int


class RowBatcher:
    """Rows of one context. All methods on one thread. `rows` generations run at once, each within `context_tokens` tokens."""

    def __init__(self, model: ChatModel, *, rows: int, context_tokens: int, n_threads: int) -> None:
        self._model = model
        self.context_tokens = context_tokens
        self._rows: list[_Row | None] = [None] * rows
        width = max(2, rows)
        self._context = _open_context(model, width, context_tokens, n_threads)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = _Batch(max(PREFILL_CHUNK, width))

    @property
    def has_room(self) -> bool:
        """Whether another generation can be admitted."""
        return None in self._rows

    @property
    def busy(self) -> bool:
        """Whether any generation is running."""
        return any(self._rows)

    def admit(self, generation: Generation) -> None:
        """Decode a prompt into the lowest free row and take its first token."""
        if not generation.claim():
            return
        index = self._rows.index(None)
        row = self._rows[index] = _Row(generation, len(generation.prompt_ids), -1)
        self._take_token(index, row, self._prefill(index, generation.prompt_ids))

    def step(self) -> None:
        """Decode one token in every running row."""
        self._drop_cancelled()
        top = max((index for index, row in enumerate(self._rows) if row), default=-1)
        if top < 0:
            return
        logits = self._decode_rows(max(2, top + 1))
        best = logits.argmax(axis=1)
        for index, row in enumerate(self._rows[: top + 1]):
            if row is not None:
                self._take_token(index, row, logits[index], int(best[index]))

    def fail_all(self, error: Exception) -> None:
        """End every running generation with this error and forget all rows."""
        for index, row in enumerate(self._rows):
            if row is not None:
                row.generation.error = error
                self._end(index, row, "error")
        llama_cpp.llama_memory_clear(self._memory, True)

    def close(self) -> None:
        """Free the context. Safe to call twice."""
        if self._context:
            llama_cpp.llama_free(self._context)
            self._context = self._memory = None

    def _drop_cancelled(self) -> None:
        for index, row in enumerate(self._rows):
            if row is not None and row.generation.cancelled:
                self._end(index, row, "cancelled")

    def _prefill(self, index: int, ids: Sequence[int]) -> Floats:
        llama_cpp.llama_memory_seq_rm(self._memory, index, -1, -1)
        for start in range(0, len(ids), PREFILL_CHUNK):
            chunk = ids[start : start + PREFILL_CHUNK]
            self._batch.fill_prompt(index, chunk, start, wants_logits=start + len(chunk) == len(ids))
            self._decode()
        first: Floats = self._logits(1)[0]
        return first

    def _decode_rows(self, count: int) -> Floats:
        """One token in rows 0..count-1; rows that do not run decode a token nobody looks at, to keep the batch in one piece."""
        for index in range(count):
            row = self._rows[index] if index < len(self._rows) else None
            if row is None:
                llama_cpp.llama_memory_seq_rm(self._memory, index, -1, -1)
            self._batch.set_row(index, row.token if row else 0, row.position if row else 0)
        self._batch.finish_rows(count)
        self._decode()
        return self._logits(count)

    def _decode(self) -> None:
        forget_complaints()
        code = llama_cpp.llama_decode(self._context, self._batch.struct)
        if code != 0:
            raise DecodeError(f"llama.cpp failed to decode (code {code}): {engine_complaint('no reason given')}")

    def _logits(self, count: int) -> Floats:
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), shape=(count, self._model.vocabulary_size))

    def _take_token(self, index: int, row: _Row, logits: Floats, best: int | None = None) -> None:
        """Choose a row's next token, or end it."""
        generation = row.generation
        if row.token >= 0:
            row.position += 1
        row.token = _choose(logits, generation.temperature, generation.random, best)
        generation.output_tokens += 1
        if self._model.is_end(row.token):
            self._end(index, row, "stop")
            return
        generation.text += self._model.piece(row.token)
        if generation.output_tokens >= generation.max_tokens or row.position + 1 >= self.context_tokens:
            self._end(index, row, "length")
        elif generation.streamed:
            generation.report(generation)

    def _end(self, index: int, row: _Row, finish: str) -> None:
        self._rows[index] = None
        row.generation.finish = finish
        row.generation.stage = Stage.OVER
        row.generation.report(row.generation)


class _Batch:
    """A llama_batch over arrays of ours."""

    def __init__(self, capacity: int) -> None:
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._positions = np.zeros(capacity, dtype=np.int32)
        self._counts = np.ones(capacity, dtype=np.int32)
        self._owners = np.zeros(capacity, dtype=np.int32)
        self._owner_addresses = self._owners.ctypes.data + np.arange(capacity, dtype=np.uintp) * self._owners.itemsize
        self._wanted = np.zeros(capacity, dtype=np.int8)
        self.struct = llama_cpp.llama_batch(
            n_tokens=0,
            token=self._tokens.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token)),
            embd=None,
            pos=self._positions.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_pos)),
            n_seq_id=self._counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=self._owner_addresses.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(llama_cpp.llama_seq_id))),
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill_prompt(self, row: int, ids: Sequence[int], start: int, *, wants_logits: bool) -> None:
        """A piece of a prompt for one row; logits behind its last token if wanted."""
        count = len(ids)
        self._tokens[:count] = ids
        self._positions[:count] = np.arange(start, start + count)
        self._owners[:count] = row
        self._wanted[:count] = 0
        self._wanted[count - 1] = wants_logits
        self.struct.n_tokens = count

    def set_row(self, row: int, token: int, position: int) -> None:
        """The token of one row in the next joint decode."""
        self._tokens[row] = token
        self._positions[row] = position

    def finish_rows(self, count: int) -> None:
        """Rows 0..count-1, with logits for each."""
        self._owners[:count] = np.arange(count)
        self._wanted[:count] = 1
        self.struct.n_tokens = count


def _open_context(model: ChatModel, rows: int, context_tokens: int, n_threads: int) -> Any:
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = rows * context_tokens
    parameters.n_batch = parameters.n_ubatch = max(PREFILL_CHUNK, rows)
    parameters.n_seq_max = rows
    parameters.n_threads = parameters.n_threads_batch = n_threads
    parameters.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
    parameters.kv_unified = False
    parameters.no_perf = True
    forget_complaints()
    context = llama_cpp.llama_init_from_model(model.handle, parameters)
    if not context:
        raise DecodeError(f"llama.cpp cannot make a context: {engine_complaint('no reason given')}")
    return context


def _choose(logits: Floats, temperature: float, random: Random, best: int | None) -> int:
    """The likeliest token at temperature 0, else one drawn from softmax(logits / temperature)."""
    if temperature <= 0.0:
        return int(logits.argmax()) if best is None else best
    scaled = logits.astype(np.float64) / temperature
    cumulative = np.exp(scaled - scaled.max()).cumsum()
    return min(int(np.searchsorted(cumulative, random.random() * cumulative[-1], side="right")), len(logits) - 1)
