"""MLX: a decoder as a table of rows (the engine), and the backend over it.

The decoder is handed in (edge.models.mlx_decoder), so that training can share its weights. A *row* is one sequence: its keys and values
lie at places 0..length-1 of that row's own memory, so a row's place is its position whatever the others do. Prompts are decoded alone.
Single tokens are decoded over a number of rows and of places that are rounded up to `ROW_STEP` and `PLACE_STEP`; what lies beyond a row's
position is masked and adds exact zeros.

Measured on the CPU build: with these steps a row's logits are the same bits in any company (tests/engine/test_mlx_backend.py). On Apple's
GPU this has not been measured. Keys and values are in the decoder's type.
All methods must be called on one thread, the one that first calls `prefill`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edge.core.errors import AdapterError
from edge.core.worker import EngineWorker
from edge.inference.adapters import read_peft_adapter
from edge.inference.batched import BatchedBackend, rows_that_fit
from edge.inference.model_tokenizer import tokenizer_of
from edge.inference.sampling import Floats

PREFILL_CHUNK = 512
"""Longest piece of a prompt in one call; fixed, so that results do not depend on settings."""
READ_CHUNK = 64
"""Tokens whose logits are there at once when a text is read."""
ROW_STEP = 8
PLACE_STEP = 256


Adapter = tuple[dict[str, Any], int, float]
"""A loaded adapter: peft's tensors, rank, and the factor on B A."""


class MlxEngine:
    """Rows 0..rows-1 of `n_ctx` tokens each over a twin of the decoder (edge.models.mlx_decoder.MlxDecoder).

    Adapters are tried on another twin before they are used.
    """

    def __init__(self, decoder: Any, *, rows: int, n_ctx: int) -> None:
        self.rows, self.n_ctx, self.vocab_size = rows, n_ctx, decoder.shape.vocab_size
        self.same_in_parts = False
        self._decoder, self._trial = decoder.twin(), decoder.twin()
        self._memory: list[_LayerRows] = []

    def prefill(self, row: int, ids: list[int], start: int = 0) -> Floats:
        """Put a prompt, or from `start` on the rest of one, into a row and return the logits after its last token [V]."""
        for hidden in self._hidden_states(row, ids, PREFILL_CHUNK, start):
            self._settle(hidden)
            last = hidden
        last_V: Floats = self._as_numpy(self._decoder.logits(last[:, -1]))[0]
        return last_V

    def read(self, row: int, ids: list[int], start: int = 0) -> Iterator[Floats]:
        """Put a text into a row from `start` on and yield the logits [T, V] after each of its tokens, READ_CHUNK at a time."""
        for hidden in self._hidden_states(row, ids, READ_CHUNK, start):
            yield self._as_numpy(self._decoder.logits(hidden[0]))

    def _hidden_states(self, row: int, ids: list[int], at_once: int, start: int = 0) -> Iterator[Any]:
        """Hidden states [1, T, D] of a text in a row from `start` on, piece by piece."""
        memory = self._open_memory()
        for read in range(0, len(ids), at_once):
            chunk = mx.array([ids[read : read + at_once]])
            yield self._decoder.hidden_states(chunk, [_OneRow(layer, row, start + read) for layer in memory])

    def decode(self, tokens: NDArray[np.int32], positions: NDArray[np.int32]) -> Floats:
        """One more token in each of rows 0..R-1 and the logits after them [R, V] (a copy)."""
        count = len(tokens)
        rows = min(_up_to(ROW_STEP, count), len(self._open_memory()[0].keys))
        places = min(_up_to(PLACE_STEP, int(positions.max()) + 1), self.n_ctx)
        padding = (0, rows - count)
        where = mx.array(np.pad(positions, padding, constant_values=self.n_ctx))
        views = [_AllRows(layer, where, places) for layer in self._memory]
        hidden = self._decoder.hidden_states(mx.array(np.pad(tokens, padding))[:, None], views)
        return self._as_numpy(self._decoder.logits(hidden[:, -1]))[:count]

    def fork(self, source: int, target: int, length: int) -> None:
        """Make the target row hold the first `length` tokens of the source row."""
        if source == target or not length:
            return
        for layer in self._open_memory():
            layer.keys[target, :, :length] = layer.keys[source, :, :length]
            layer.values[target, :, :length] = layer.values[source, :, :length]

    def load_adapter(self, folder: Path) -> Adapter:
        """Read and try a peft folder without using it. Raises AdapterError when it is missing, corrupt or does not fit."""
        peft = read_peft_adapter(folder)
        tensors = {name: mx.array(tensor) for name, tensor in peft.by_peft_name().items()}
        adapter = tensors, peft.rank, peft.scaling
        try:
            self._trial.adopt_lora(*adapter)
        except AdapterError as error:
            raise AdapterError(f"{folder}: {error}", hint=error.hint) from error
        finally:
            self._trial.remove_lora()
        return adapter

    def use_adapter(self, handle: Adapter | None) -> None:
        """Decode with this loaded adapter (None: the bare model). What rows hold is void."""
        if handle is None:
            self._decoder.remove_lora()
        else:
            self._decoder.adopt_lora(*handle)

    def free_adapter(self, handle: Adapter) -> None:
        """Nothing is held for an adapter that is not in use."""

    def close(self) -> None:
        """Let go of the rows. Safe to call twice."""
        self._memory = []

    def _open_memory(self) -> list[_LayerRows]:
        """The rows' memory, made on the thread that uses it; the place after a row's last takes what padding writes."""
        if not self._memory:
            shape = self._decoder.shape
            size = (_up_to(ROW_STEP, self.rows), shape.kv_heads, self.n_ctx + 1, shape.head_dim)
            self._memory = [
                _LayerRows(mx.zeros(size, self._decoder.dtype), mx.zeros(size, self._decoder.dtype)) for _ in range(shape.layers)
            ]
        return self._memory

    def _settle(self, *results: Any) -> None:
        """Compute now, the memory too: a graph that grew over calls would hold every intermediate result."""
        mx.eval(*results, [(layer.keys, layer.values) for layer in self._memory])

    def _as_numpy(self, logits: Any) -> Floats:
        self._settle(logits)
        return np.array(logits)


class _LayerRows:
    """Keys and values of one layer, [rows, K, n_ctx + 1, head_dim] each; the last place takes what nobody reads."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: Any, values: Any) -> None:
        self.keys, self.values = keys, values


class _OneRow:
    """The cache role of mlx_lm's layers for consecutive tokens of one row from position `offset` on."""

    def __init__(self, layer: _LayerRows, row: int, offset: int) -> None:
        self._layer, self._row, self.offset = layer, row, offset

    def make_mask(self, length: int, **_: Any) -> str | None:
        """Causal; the layers align the last query with the last key."""
        return "causal" if length > 1 else None

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Append [1, K, T, d] to what is stored and return all of it."""
        layer, row, end = self._layer, self._row, self.offset + keys.shape[2]
        layer.keys[row, :, self.offset : end] = keys[0]
        layer.values[row, :, self.offset : end] = values[0]
        return layer.keys[row : row + 1, :, :end], layer.values[row : row + 1, :, :end]


class _AllRows:
    """The cache role of mlx_lm's layers for one token in each of the first rows, at a position of each row's own."""

    def __init__(self, layer: _LayerRows, positions: Any, places: int) -> None:
        self._layer, self.offset, self._places = layer, positions, places

    def make_mask(self, _length: int, **_: Any) -> Any:
        """True for the places up to a row's position, [R, 1, 1, places]."""
        return (mx.arange(self._places) <= self.offset[:, None])[:, None, None]

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Store [R, K, 1, d] at the positions and return the first places of these rows."""
        layer, count = self._layer, keys.shape[0]
        rows = mx.arange(count)
        layer.keys[rows, :, self.offset] = keys[:, :, 0]
        layer.values[rows, :, self.offset] = values[:, :, 0]
        return layer.keys[:count, :, : self._places], layer.values[:count, :, : self._places]


def _up_to(step: int, count: int) -> int:
    return -(-count // step) * step


class MlxBackend(BatchedBackend):
    """Implements `InferenceBackend` on MLX over a GGUF file or an MLX folder that `decoder` was loaded from.

    The parameters are those of LlamaCppBackend. The decoder itself stays as it is: the backend works on twins of it. Raises
    ModelFileError when the tokenizer of the model cannot be read.
    """

    def __init__(
        self,
        model_path: str | Path,
        decoder: Any,
        worker: EngineWorker,
        *,
        n_ctx: int = 1024,
        max_rows: int | None = None,
        serving_rows: int = 2,
    ) -> None:
        path, shape = Path(model_path), decoder.shape
        tokenizer = tokenizer_of(path, shape.vocab_size)
        row_tokens = min(n_ctx, shape.context_tokens or n_ctx)
        token_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * decoder.dtype.size
        rollout_rows = max_rows or rows_that_fit(token_bytes * row_tokens, graphics=True)
        self._path, self._decoder = path, decoder
        super().__init__(
            MlxEngine(decoder, rows=rollout_rows + serving_rows, n_ctx=row_tokens),
            tokenizer.tokens,
            tokenizer.template,
            tokenizer.describe(path, shape.architecture, shape.parameters, shape.context_tokens),
            worker,
            rollout_rows=rollout_rows,
            close_model=tokenizer.close,
        )

    def sharing_weights(self, *, max_rows: int | None = None) -> MlxBackend:
        """Another backend over the same weights and worker, with rows and an adapter of its own. It must be closed before this one."""
        return MlxBackend(self._path, self._decoder, self._worker, n_ctx=self._n_ctx, max_rows=max_rows)
