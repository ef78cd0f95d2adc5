"""MLX: a decoder as a table of rows (the engine), and the backend over it.

The decoder is handed in (edge.models.mlx_decoder), so that training can share its weights. A *row* is one sequence: its keys and values
lie at places 0..length-1 of that row's own memory, so a row's place is its position whatever the others do. Prompts are decoded alone.
Single tokens are decoded over a number of rows and of places that are rounded up to `ROW_STEP` and `PLACE_STEP`; what lies behind a row's
position is masked and adds exact zeros.

Measured on the CPU build: with these steps a row's logits are the same bits in any company (tests/engine/test_mlx_backend.py). On Apple's
GPU this has not been measured. Keys and values are kept in the decoder's type.
All methods must be called on one thread, the one that first calls `prefill`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edge.core.errors import AdapterError
from edge.core.worker import EngineWorker
from edge.inference.adapters import read_peft_adapter
from edge.inference.backend import ModelInfo
from edge.inference.batched import BatchedBackend, rows_that_fit
from edge.inference.gguf_model import sha256_of
from edge.inference.model_tokenizer import ModelTokenizer, tokenizer_of
from edge.inference.sampling import Floats

PREFILL_CHUNK = 512
"""Longest piece of a prompt in one call; fixed, so that results do not depend on settings."""
READ_CHUNK = 64
"""Tokens whose logits are there at once when a text is read."""
ROW_STEP = 8
PLACE_STEP = 256


class Shape(Protocol):
    """The numbers of a decoder that its memory depends on."""

    @property
    def vocab_size(self) -> int:
        """Logits of one row."""
        ...

    @property
    def layers(self) -> int:
        """Blocks."""
        ...

    @property
    def kv_heads(self) -> int:
        """Key/value heads of a block."""
        ...

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        ...


class Decoder(Protocol):
    """What the engine needs of a model (edge.models.mlx_decoder.MlxDecoder)."""

    dtype: Any

    @property
    def shape(self) -> Shape:
        """Its shape."""
        ...

    def hidden_states(self, ids_BT: Any, cache: Sequence[Any] | None = None) -> Any:
        """Hidden states [B, T, D]; `cache` gives each layer its offset, its mask and its keys and values."""
        ...

    def logits(self, hidden: Any) -> Any:
        """Logits [..., V] in float32."""
        ...

    def adopt_lora(self, tensors: Mapping[str, Any], rank: int, scale: float) -> None:
        """Decode with an adapter. Raises AdapterError when it does not fit."""
        ...

    def remove_lora(self) -> None:
        """Decode without one."""
        ...


@dataclass(frozen=True, slots=True)
class MlxAdapter:
    """A loaded adapter: peft's tensors and the factor on B A."""

    tensors: dict[str, Any]
    rank: int
    scale: float


class MlxEngine:
    """Rows 0..rows-1 of `n_ctx` tokens each over a decoder that is this engine's own.

    `trial` is a decoder of the same shape on which adapters are tried before they are used.
    """

    def __init__(self, decoder: Decoder, trial: Decoder, *, rows: int, n_ctx: int) -> None:
        self.rows = rows
        self.n_ctx = n_ctx
        self.vocab_size = decoder.shape.vocab_size
        self._decoder = decoder
        self._trial = trial
        self._memory: list[_LayerRows] = []

    def prefill(self, row: int, ids: list[int]) -> Floats:
        """Put a prompt into a row and return the logits behind its last token [V]."""
        memory = self._open_memory()
        hidden = None
        for start in range(0, len(ids), PREFILL_CHUNK):
            chunk = ids[start : start + PREFILL_CHUNK]
            hidden = self._decoder.hidden_states(mx.array([chunk]), [_OneRow(layer, row, start) for layer in memory])
            self._settle(hidden)
        assert hidden is not None
        last_V: Floats = self._as_numpy(self._decoder.logits(hidden[:, -1]))[0]
        return last_V

    def read(self, row: int, ids: list[int]) -> Iterator[Floats]:
        """Put a text into a row and yield the logits [T, V] behind its tokens, READ_CHUNK at a time."""
        memory = self._open_memory()
        for start in range(0, len(ids), READ_CHUNK):
            chunk = ids[start : start + READ_CHUNK]
            hidden = self._decoder.hidden_states(mx.array([chunk]), [_OneRow(layer, row, start) for layer in memory])
            yield self._as_numpy(self._decoder.logits(hidden[0]))

    def decode(self, tokens: NDArray[np.int32], positions: NDArray[np.int32]) -> Floats:
        """One more token in each of rows 0..R-1 and the logits behind them [R, V] (a copy)."""
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

    def load_adapter(self, folder: Path) -> MlxAdapter:
        """Read and try a peft folder without using it. Raises AdapterError when it is missing, corrupt or does not fit."""
        peft = read_peft_adapter(folder)
        tensors = {name: mx.array(tensor) for name, tensor in peft.by_peft_name().items()}
        adapter = MlxAdapter(tensors, peft.rank, peft.scaling)
        try:
            self._trial.adopt_lora(adapter.tensors, adapter.rank, adapter.scale)
        except AdapterError as error:
            raise AdapterError(f"{folder}: {error}", hint=error.hint) from error
        finally:
            self._trial.remove_lora()
        return adapter

    def use_adapter(self, handle: MlxAdapter | None) -> None:
        """Decode with this loaded adapter (None: the bare model). What rows hold is void."""
        if handle is None:
            self._decoder.remove_lora()
        else:
            self._decoder.adopt_lora(handle.tensors, handle.rank, handle.scale)

    def free_adapter(self, handle: MlxAdapter) -> None:
        """Nothing is held for an adapter that is not in use."""

    def close(self) -> None:
        """Let go of the rows. Safe to call twice."""
        self._memory = []

    def _open_memory(self) -> list[_LayerRows]:
        """The rows' memory, made on the thread that uses it; the place behind a row's last takes what padding writes."""
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
        """Store [1, K, T, d] behind what is there and return all up to here."""
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


class SharedDecoder(Decoder, Protocol):
    """A decoder that can be had several times over one copy of the weights."""

    def twin(self) -> SharedDecoder:
        """Another one over the same weights, without an adapter."""
        ...


class DescribedShape(Shape, Protocol):
    """The shape of a decoder with what a description of the model needs."""

    @property
    def architecture(self) -> str:
        """Such as qwen2."""
        ...

    @property
    def parameters(self) -> int:
        """Number of weights."""
        ...

    @property
    def context_tokens(self) -> int:
        """Context length the model was trained for, 0 when unknown."""
        ...


class MlxBackend(BatchedBackend):
    """Implements `InferenceBackend` on MLX over a GGUF file or an MLX folder that `decoder` was loaded from.

    The parameters are those of LlamaCppBackend. The decoder itself stays as it is: the backend works on twins of it. Raises
    ModelFileError when the tokenizer of the model cannot be read.
    """

    def __init__(
        self,
        model_path: str | Path,
        decoder: SharedDecoder,
        worker: EngineWorker,
        *,
        n_ctx: int = 1024,
        max_rows: int | None = None,
        serving_rows: int = 2,
    ) -> None:
        path = Path(model_path)
        shape: Any = decoder.shape
        tokenizer = tokenizer_of(path, shape.vocab_size)
        row_tokens = min(n_ctx, shape.context_tokens or n_ctx)
        token_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * decoder.dtype.size
        rollout_rows = max_rows or rows_that_fit(token_bytes * row_tokens, graphics=True)
        self._decoder = decoder
        super().__init__(
            MlxEngine(decoder.twin(), decoder.twin(), rows=rollout_rows + serving_rows, n_ctx=row_tokens),
            tokenizer.tokens,
            tokenizer.template,
            _describe(path, tokenizer, shape),
            worker,
            rollout_rows=rollout_rows,
            close_model=tokenizer.close,
        )

    def beside(self, *, max_rows: int | None = None) -> MlxBackend:
        """Another backend over the same weights and worker, with rows and an adapter of its own. It must be closed before this one."""
        return MlxBackend(self.model.path, self._decoder, self._worker, n_ctx=self._n_ctx, max_rows=max_rows)


def _describe(path: Path, tokenizer: ModelTokenizer, shape: DescribedShape) -> ModelInfo:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return ModelInfo(
        name=tokenizer.name,
        architecture=shape.architecture,
        parameters=shape.parameters,
        context_tokens=shape.context_tokens,
        file_bytes=sum(file.stat().st_size for file in files),
        sha256=sha256_of(files[0]),
        path=str(path),
        prompt_form=tokenizer.prompt_form,
    )
