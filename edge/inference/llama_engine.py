"""llama.cpp's context as a table of rows.

A *row* is one sequence with a key/value stream of its own (llama.cpp's `kv_unified` off). In one unified buffer every row attends over the
cells of all, and where a row's cells lie, and so the order of its sums, depends on its company: the same seed then gives logits that
differ by a few hundredths. Copying a prompt to another stream costs a memory copy of one row. For large models and long prompts streams are
also much faster; for a 2 M-parameter model whose rows share short prompts the unified buffer decodes 32 rows in about half the time
(measured).

Prompts are decoded alone, one call per prompt, and continued one token per row, so that a row's logits do not depend on its company.
A single row is decoded together with an idle one, because matrix products over one column and over several add up in different orders.
Flash attention is on: llama.cpp's CPU kernel walks the cells of one row at a time and skips masked ones, where the plain path multiplies
at least 256 cells for every row (measured: 1.8 times less CPU time for 32 rows of the bundled model). It rounds to half
precision inside: 0.002 to 0.004 nats a token on unquantised random models, against 0.001 without.

Keys are cached as float16, and so are values, but as bfloat16 where weights are quantised: on x86 the kernel adds up bfloat16 values in
single precision, float16 ones in half precision with a conversion at each addition (measured with AVX-512: 1.4 times the decoding speed
for 64 rows of the bundled model, mean |Δ log p| between sampler and trainer the same). With float weights the rounding would be seen.

Measured on x86: exact for Q8_0, F16, BF16 and F32 weights; for Q4_0 and K-quants the kernels change at 4 or 8 rows, which moves logits
by about 5e-6. On CUDA (H200) it does not hold: one row and 16 rows take other kernels, which moves the log-probability of the token that
moves most by 0.2 (nano-edge) to 0.5 nats (0.5B, Q8_0), so equal seeds give equal responses only in equal company.

With `shared_tokens` the rows serve people instead: they share one buffer of that many cells (`kv_unified`), a copy of a row is a note
that cells belong to two of them, and beginnings of conversations are kept after their rows are used otherwise. Measured with SmolLM2 at
4,000 tokens and one thread: one chat decodes as fast as in a stream of its own. A lone row has no idle one beside it (41 ms a token
against 73), so its last bits depend on whether somebody else is answered. Values are float16: llama.cpp reads prompts in tiles only
where keys and values have one type (half the time of bfloat16), and a lone row is decoded faster too.

All methods must be called on one thread at a time.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from edge.core.errors import AdapterError, EdgeError, ModelFileError
from edge.core.types import GGUF_ADAPTER
from edge.inference.batcher import in_common
from edge.inference.gguf_model import ENGINE_LOG, GGML_BF16, GgufModel
from edge.inference.sampling import Floats

PREFILL_CHUNK = 512
"""Longest piece of a prompt in one decode call; fixed, so that results do not depend on settings."""

MOST_ROWS = int(llama_cpp.llama_max_parallel_sequences()) - 1
"""Rows that a context can have in addition to the idle one."""
_IDLE = 0
_FIRST = 1
"""Sequence ids in llama.cpp: the idle row, and row 0. llama.cpp splits a batch wherever the ids of its rows are not consecutive."""
KEPT = 24
"""Most beginnings of conversations that are kept, as long as the buffer has room; each has a sequence id."""
_NO_ROOM = 1
"""What llama_decode returns when no cells are left; nothing has changed then."""
_LOT = 64
"""Tokens after which logits are given at once where rows are shared."""


class LlamaEngine:
    """Rows 0..rows-1 of a context of `n_ctx` tokens each, over a loaded model. `n_threads` serve both prompts and decoding.

    With `shared_tokens`, `n_ctx` at least, it implements `SharedRows`, else `Engine`.
    """

    def __init__(
        self,
        model: GgufModel,
        *,
        rows: int,
        n_ctx: int,
        n_threads: int,
        flash_attention: bool = True,
        shared_tokens: int = 0,
    ) -> None:
        self.rows, self.n_ctx, self.vocab_size = rows, n_ctx, model.vocabulary.size
        self.same_in_parts = model.rounds_activations  # products of floats add up in blocks that depend on the length
        self.shared_tokens = shared_tokens
        self._model = model
        self._adapter: Any = None
        # A state that is no list of cells can be copied as a whole only.
        self._keeps = shared_tokens > 0 and not llama_cpp.llama_model_is_hybrid(model.handle)
        self._kept: dict[int, list[int]] = {}
        streams = rows + 1 if not shared_tokens else rows + 2 + KEPT
        self._lot = streams if not shared_tokens else _LOT
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max = streams
        params.n_outputs_max = max(self._lot, rows + 1)
        params.n_ctx = shared_tokens or n_ctx * streams
        params.n_batch = params.n_ubatch = max(PREFILL_CHUNK, streams)
        self._threads = n_threads
        kinds = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED, llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.flash_attn_type = kinds[flash_attention]
        params.kv_unified = shared_tokens > 0
        params.swa_full = True  # all of a conversation, also where a layer attends to its end alone: it may go on from anywhere
        if not shared_tokens and flash_attention and model.rounds_activations and platform.machine() in ("x86_64", "AMD64"):
            params.type_v = GGML_BF16
        params.offload_kqv = params.no_perf = True
        ENGINE_LOG.forget()
        self._context = llama_cpp.llama_init_from_model(model.handle, params)
        if not self._context:
            reason = ENGINE_LOG.last_error() or "no reason given"
            raise ModelFileError(
                f"{model.path}: no memory for {params.n_ctx:,} tokens of conversations ({reason})",
                hint="lower engine.max_rows, learning.context_tokens or model.context_tokens",
            )
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = _Batch(max(PREFILL_CHUNK, streams))

    def use_threads(self, threads: int) -> None:
        """Compute with this many from the next decode on; may be called on any thread."""
        self._threads = threads

    def prefill(self, row: int, ids: list[int], start: int = 0) -> Floats:
        """Clear a row from `start` on, decode a prompt into it, and return the logits after its last token [V] (a copy)."""
        llama_cpp.llama_memory_seq_rm(self._memory, row + _FIRST, start, -1)
        for read in range(0, len(ids), PREFILL_CHUNK):
            chunk = ids[read : read + PREFILL_CHUNK]
            last = read + len(chunk) == len(ids)
            self._batch.fill_one_row(row + _FIRST, chunk, start + read)
            self._batch.want_logits(len(chunk) - 1 if last else len(chunk))
            self._decode()
        last_V: Floats = self._logits(1)[0].copy()
        return last_V

    def read(self, row: int, ids: list[int], start: int = 0) -> Iterator[Floats]:
        """Clear a row from `start` on, decode a text into it, and yield the logits [T, V] after each of its tokens; each lot is valid until
        the next one.

        A lot has as many tokens as the context gives logits at once, which is one for each of its rows where these are not shared.
        """
        llama_cpp.llama_memory_seq_rm(self._memory, row + _FIRST, start, -1)
        for read in range(0, len(ids), self._lot):
            chunk = ids[read : read + self._lot]
            self._batch.fill_one_row(row + _FIRST, chunk, start + read)
            self._batch.want_logits(0)
            self._decode()
            yield self._logits(len(chunk))

    def decode(self, tokens: NDArray[np.int32], positions: NDArray[np.int32]) -> Floats:
        """Decode one token in each of rows 0..R-1 and return the logits after them [R, V].

        The result is a view that the caller may overwrite; it is valid until the next call of any method here.
        """
        count = len(tokens)
        if count == 1 and not self.shared_tokens:
            self._batch.fill_rows(_IDLE, np.append(tokens, tokens), np.append(0, positions))
            llama_cpp.llama_memory_seq_rm(self._memory, _IDLE, -1, -1)
            self._decode()
            return self._logits(2)[1:]
        self._batch.fill_rows(_FIRST, tokens, positions)
        self._decode()
        return self._logits(count)

    def fork(self, source: int, target: int, length: int) -> None:
        """Make the target row hold the first `length` tokens of the source row."""
        if source != target:
            llama_cpp.llama_memory_seq_rm(self._memory, target + _FIRST, -1, -1)
            llama_cpp.llama_memory_seq_cp(self._memory, source + _FIRST, target + _FIRST, -1, -1)
        llama_cpp.llama_memory_seq_rm(self._memory, target + _FIRST, length, -1)

    def keep(self, row: int, ids: list[int]) -> None:
        """Keep what a shared row holds, as far as it is these tokens, for conversations that go on from there; the row is empty afterwards.

        It replaces a beginning of itself that was kept, else what was used longest ago.
        """
        sequence = row + _FIRST
        held = ids[: int(llama_cpp.llama_memory_seq_pos_max(self._memory, sequence)) + 1]
        if self._keeps and held and not any(kept[: len(held)] == held for kept in self._kept.values()):
            first = _FIRST + self.rows + 1
            free = next((place for place in range(first, first + KEPT) if place not in self._kept), None)
            place = next((place for place, kept in self._kept.items() if held[: len(kept)] == kept), free)
            place = next(iter(self._kept)) if place is None else place
            self._drop(place)
            llama_cpp.llama_memory_seq_cp(self._memory, sequence, place, 0, len(held))
            self._kept[place] = held
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def recall(self, row: int, ids: list[int]) -> int:
        """Put the longest kept beginning of a prompt into a shared row; returns its length, which is less than the prompt's."""
        llama_cpp.llama_memory_seq_rm(self._memory, row + _FIRST, -1, -1)
        common, place = max(((in_common(kept, ids[:-1]), place) for place, kept in self._kept.items()), default=(0, 0))
        if common:
            llama_cpp.llama_memory_seq_cp(self._memory, place, row + _FIRST, 0, common)
            self._kept[place] = self._kept.pop(place)
        return common

    def _drop(self, place: int) -> None:
        """Let go of what is kept in a place, if anything is."""
        self._kept.pop(place, None)
        llama_cpp.llama_memory_seq_rm(self._memory, place, -1, -1)

    def load_adapter(self, folder: Path) -> Any:
        """Load `adapter.gguf` without using it. Raises AdapterError when it is missing, corrupt or does not fit the model."""
        path = folder / GGUF_ADAPTER
        if not path.is_file():
            raise AdapterError(f"{path}: no such adapter file")
        from edge.inference.adapters import check_gguf_adapter  # needs gguf, which a coordinator does without

        check_gguf_adapter(path)
        ENGINE_LOG.forget()
        handle = llama_cpp.llama_adapter_lora_init(self._model.handle, str(path).encode())
        if not handle:
            raise AdapterError(f"{path}: not a usable adapter ({ENGINE_LOG.last_error() or 'unreadable'})")
        return handle

    def use_adapter(self, handle: Any) -> None:
        """Decode with this loaded adapter (None: the bare model) and free the one before.

        Everything computed with the old one is forgotten. On failure the old one stays in use and the new one is freed.
        """
        llama_cpp.llama_set_adapters_lora(self._context, None, 0, None)
        if handle is not None and not self._attach(handle):
            self.free_adapter(handle)
            if self._adapter is not None:
                self._attach(self._adapter)
            raise AdapterError("llama.cpp rejected the adapter")
        old, self._adapter = self._adapter, handle
        if old is not None:
            llama_cpp.llama_adapter_lora_free(old)
        # False marks every cell empty; zeroing the buffers would take longer than the swap.
        llama_cpp.llama_memory_clear(self._memory, False)
        self._kept.clear()

    def free_adapter(self, handle: Any) -> None:
        """Free an adapter that is not in use."""
        llama_cpp.llama_adapter_lora_free(handle)

    def close(self) -> None:
        """Free the context and the adapter. Safe to call twice."""
        if not self._context:
            return
        llama_cpp.llama_set_adapters_lora(self._context, None, 0, None)
        if self._adapter is not None:
            llama_cpp.llama_adapter_lora_free(self._adapter)
        llama_cpp.llama_free(self._context)
        self._adapter = self._context = self._memory = None

    def _attach(self, handle: Any) -> bool:
        adapters = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(handle)
        return int(llama_cpp.llama_set_adapters_lora(self._context, adapters, 1, (ctypes.c_float * 1)(1.0))) == 0

    def _decode(self) -> None:
        ENGINE_LOG.forget()
        llama_cpp.llama_set_n_threads(self._context, self._threads, self._threads)
        code = llama_cpp.llama_decode(self._context, self._batch.struct)
        while code == _NO_ROOM and self._kept:  # people who are answered now come before conversations that may go on
            self._drop(next(iter(self._kept)))
            code = llama_cpp.llama_decode(self._context, self._batch.struct)
        if code != 0:
            raise EdgeError(f"llama.cpp failed to decode (code {code}): {ENGINE_LOG.last_error() or 'no reason given'}")

    def _logits(self, count: int) -> Floats:
        pointer = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(count, self.vocab_size))


class _Batch:
    """A llama_batch over arrays that we own, so that it is filled without a Python loop."""

    def __init__(self, capacity: int) -> None:
        self._token = np.zeros(capacity, dtype=np.int32)
        self._position = np.zeros(capacity, dtype=np.int32)
        self._sequences = np.ones(capacity, dtype=np.int32)
        self._row = np.zeros(capacity, dtype=np.int32)
        self._row_pointers = (self._row.ctypes.data + 4 * np.arange(capacity)).astype(np.uintp)
        self._wants_logits = np.zeros(capacity, dtype=np.int8)
        self.struct = llama_cpp.llama_batch()
        self.struct.token = _pointer(self._token, llama_cpp.llama_token)
        self.struct.pos = _pointer(self._position, llama_cpp.llama_pos)
        self.struct.n_seq_id = _pointer(self._sequences, ctypes.c_int32)
        self.struct.seq_id = _pointer(self._row_pointers, ctypes.POINTER(llama_cpp.llama_seq_id))
        self.struct.logits = _pointer(self._wants_logits, ctypes.c_int8)

    def fill_one_row(self, sequence: int, ids: list[int], start: int) -> None:
        """Consecutive tokens of one sequence from position `start`."""
        count = len(ids)
        self._token[:count] = ids
        self._position[:count] = np.arange(start, start + count)
        self._row[:count] = sequence
        self.struct.n_tokens = count

    def want_logits(self, first: int) -> None:
        """Logits after this token of the batch and after all later ones."""
        self._wants_logits[:first] = 0
        self._wants_logits[first : self.struct.n_tokens] = 1

    def fill_rows(self, first: int, tokens: NDArray[np.int32], positions: NDArray[np.int32]) -> None:
        """One token for each of the consecutive sequences from `first` on, all with logits."""
        count = len(tokens)
        self._token[:count] = tokens
        self._position[:count] = positions
        self._row[:count] = np.arange(first, first + count)
        self._wants_logits[:count] = 1
        self.struct.n_tokens = count


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
