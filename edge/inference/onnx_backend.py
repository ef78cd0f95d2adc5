"""ONNX Runtime: a decoder's graph as a table of rows (the engine), and the backend over it.

The graph is the one that edge.models.onnx_decoder makes of a GGUF file. The file itself stays needed: vocabulary, template and
description are its own, and training computes on its weights. The cache lies here, one stretch of `n_ctx` places a row; a run gets the
part in use and gives back the new keys and values.

A row's logits do not depend on its company: rows are computed together only with rows whose caches have the same width, a multiple of
BUCKET that follows from a row's own length, so that the sums over its cache are added up in one order; and a single row is computed
together with a copy of itself, because products over one column and over several add up in different orders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.core.engines import choose_providers
from edge.core.errors import AdapterError, EdgeError, ModelFileError
from edge.core.gguf_header import read_header
from edge.core.machine import physical_cores
from edge.core.worker import EngineWorker
from edge.inference.adapters import read_peft_adapter
from edge.inference.backend import ModelInfo
from edge.inference.batched import BatchedBackend, rows_that_fit
from edge.inference.gguf_model import sha256_of
from edge.inference.model_tokenizer import ModelTokenizer, tokenizer_of
from edge.inference.sampling import Floats

SOURCE_KEY = "edge_agent.source_sha256"
"""Where a graph's metadata names the model file it was made of."""
BUCKET = 64
"""Cached places are computed in multiples of this."""
PREFILL_CHUNK = 512
Adapter = Mapping[str, Floats]
"""The graph's LoRA inputs by name, scaling included."""


class OnnxGraph:
    """A decoder's ONNX file in a session: its shape and where it came from. Engines with rows of their own may share it.

    `providers` in order of preference; what is missing falls back to the CPU. `source_sha256` is that of the model file the graph was
    made of, "" when that is not recorded. Raises ModelFileError for a file that cannot be run.
    """

    def __init__(self, path: Path, *, n_threads: int, providers: tuple[str, ...] = ()) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = n_threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the cores are shared with training
        options.log_severity_level = 3
        hint = "remove it: a graph is made where there is none"
        used = choose_providers(providers, onnxruntime.get_available_providers()).used
        try:
            self.session: Any = onnxruntime.InferenceSession(str(path), options, providers=list(used))
        except Exception as error:  # the runtime's own exceptions share no base class
            reason = " ".join(str(error).split())[:200]
            raise ModelFileError(f"{path}: ONNX Runtime cannot use it ({reason})", hint=hint) from error
        inputs = {entry.name: entry.shape for entry in self.session.get_inputs()}
        if "past_keys" not in inputs:
            raise ModelFileError(f"{path}: not a decoder with a key/value cache", hint=hint)
        self.layers, _, self.kv_heads, _, self.head_dim = inputs["past_keys"]
        self.vocab_size = int(self.session.get_outputs()[0].shape[1])
        self.lora_shapes = {name: shape for name, shape in inputs.items() if name.endswith((".lora_a", ".lora_b"))}
        self.source_sha256 = str(self.session.get_modelmeta().custom_metadata_map.get(SOURCE_KEY, ""))


class OnnxEngine:
    """Rows 0..rows-1 of `n_ctx` tokens each over a graph. Implements `Engine`."""

    def __init__(self, graph: OnnxGraph, *, rows: int, n_ctx: int) -> None:
        self.rows, self.n_ctx, self.vocab_size = rows, n_ctx, graph.vocab_size
        self.same_in_parts = False
        self._session = graph.session
        places = (2, graph.layers, rows, graph.kv_heads, n_ctx, graph.head_dim)
        self._cache = np.full(places, 0.0, dtype=np.float32)  # written, so that the memory is taken now: learning counts on that
        self._lora_shapes = graph.lora_shapes
        self._bare = {name: np.zeros(_of_rank(shape, 1), dtype=np.float32) for name, shape in self._lora_shapes.items()}
        self._adapter: Adapter = self._bare

    def prefill(self, row: int, ids: list[int], start: int = 0) -> Floats:
        """Put a prompt, or from `start` on the rest of one, into a row; logits [V] after it (a copy)."""
        rows = np.array([row])
        logits_RV: Floats = np.empty((0, 0), dtype=np.float32)
        for read in range(0, len(ids), PREFILL_CHUNK):
            chunk = np.array([ids[read : read + PREFILL_CHUNK]], dtype=np.int64)
            logits_RV = self._run(rows, chunk, np.array([start + read]), start + read)
        last_V: Floats = logits_RV[0].copy()
        return last_V

    def read(self, row: int, ids: list[int], start: int = 0) -> Iterator[Floats]:
        """Put a text into a row from `start` on, token by token because the graph gives the logits of a run's last one only; logits [1, V]
        after each."""
        rows = np.array([row])
        for place, token in enumerate(ids, start):
            width = min(-(-place // BUCKET) * BUCKET, self.n_ctx)
            yield self._run(rows, np.array([[token]], dtype=np.int64), np.array([place]), width)

    def decode(self, tokens: NDArray[np.int32], positions: NDArray[np.int32]) -> Floats:
        """One more token in each of rows 0..R-1; logits [R, V]."""
        logits_RV = np.empty((len(tokens), self.vocab_size), dtype=np.float32)
        widths = np.minimum(-(-positions // BUCKET) * BUCKET, self.n_ctx)
        for width in np.unique(widths):
            rows = np.flatnonzero(widths == width)
            together = np.repeat(rows, 2) if len(rows) == 1 else rows
            out = self._run(together, tokens[together, None].astype(np.int64), positions[together], int(width))
            logits_RV[rows] = out[: len(rows)]
        return logits_RV

    def fork(self, source: int, target: int, length: int) -> None:
        """Make the target row hold the first `length` tokens of the source row."""
        if source != target:
            self._cache[:, :, target, :, :length] = self._cache[:, :, source, :, :length]

    def load_adapter(self, folder: Path) -> Adapter:
        """A peft folder's tensors as the graph takes them. Raises AdapterError."""
        peft = read_peft_adapter(folder)
        inputs = dict(self._bare)
        for module, (lora_a, lora_b) in peft.tensors.items():
            for name, values in ((f"{module}.lora_a", lora_a.T), (f"{module}.lora_b", lora_b.T * np.float32(peft.scaling))):
                shape = self._lora_shapes.get(name)
                if shape is None or tuple(_of_rank(shape, peft.rank)) != values.shape:
                    raise AdapterError(f"{folder}: {module} does not fit the model")
                inputs[name] = np.ascontiguousarray(values, dtype=np.float32)
        return inputs

    def use_adapter(self, adapter: Adapter | None) -> None:
        """Compute with these tensors from the next call on (None: the bare model)."""
        self._adapter = self._bare if adapter is None else adapter

    def free_adapter(self, adapter: Adapter) -> None:
        """Nothing to free: an adapter is plain memory."""

    def close(self) -> None:
        """Release session and cache. Safe to call twice."""
        self._session = None
        self._cache = self._cache[:, :, :0]

    def _run(self, rows: NDArray[Any], ids_RT: NDArray[np.int64], starts_R: NDArray[Any], width: int) -> Floats:
        """Compute T tokens a row after its first `starts_R` cached ones, of which `width` places are read."""
        length = ids_RT.shape[1]
        past_k, past_v = self._cache[:, :, rows, :, :width]
        feed = {
            "ids": ids_RT,
            "positions": starts_R[:, None].astype(np.int64) + np.arange(length),
            "bias": _attention_bias(starts_R, width, length),
            "past_keys": past_k,
            "past_values": past_v,
        }
        try:
            logits_RV, new_k, new_v = self._session.run(None, feed | dict(self._adapter))
        except Exception as error:  # the runtime's own exceptions share no base class
            raise EdgeError(f"ONNX Runtime failed: {' '.join(str(error).split())[:300]}") from error
        for index, (row, start) in enumerate(zip(rows, starts_R, strict=True)):
            self._cache[0, :, row, :, start : start + length] = new_k[:, index]
            self._cache[1, :, row, :, start : start + length] = new_v[:, index]
        result: Floats = logits_RV
        return result


def _attention_bias(starts_R: NDArray[Any], width: int, length: int) -> Floats:
    """0 where a new token may attend and -inf elsewhere, [R, 1, 1, T, width + T]: at its row's cached tokens, at new ones up to itself."""
    bias = np.zeros((len(starts_R), 1, 1, length, width + length), dtype=np.float32)
    bias[..., :width] = np.where(np.arange(width) < starts_R[:, None], 0.0, -np.inf)[:, None, None, None, :]
    bias[..., width:] = np.where(np.tri(length, dtype=bool), 0.0, -np.inf)
    return bias


def _of_rank(shape: list[Any], rank: int) -> list[int]:
    """A LoRA input's shape with its open axis set."""
    return [axis if isinstance(axis, int) else rank for axis in shape]


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A model file with its graph in a session: what several backends can share. One worker's thread computes on it."""

    graph: OnnxGraph
    tokenizer: ModelTokenizer
    info: ModelInfo


class OnnxBackend(BatchedBackend):
    """Implements `InferenceBackend` on ONNX Runtime over a graph that was made of `model_path`, a GGUF file.

    `providers` names execution providers in order of preference, with or without their common ending; what is not there falls back to
    the CPU, and `providers` of the backend reports what became of it. The other parameters are those of LlamaCppBackend. Raises
    ModelFileError for a file or graph that cannot be used, and for a graph that was made of another file.
    """

    def __init__(
        self,
        model_path: str | Path,
        graph_path: str | Path,
        worker: EngineWorker,
        *,
        providers: tuple[str, ...] = (),
        n_threads: int | None = None,
        n_ctx: int = 1024,
        max_rows: int | None = None,
        serving_rows: int = 2,
        loaded: OnnxModel | None = None,
    ) -> None:
        """`loaded` is the model of another backend, which closes it; see `sharing_weights`."""
        model = loaded or _load(Path(model_path), Path(graph_path), providers, n_threads or physical_cores())
        graph = model.graph
        row_tokens = min(n_ctx, model.info.context_tokens or n_ctx)
        token_bytes = 2 * 4 * graph.layers * graph.kv_heads * graph.head_dim  # float32
        rollout_rows = max_rows or rows_that_fit(token_bytes * row_tokens)
        self._model, self._model_path, self._graph_path = model, model_path, graph_path
        super().__init__(
            OnnxEngine(graph, rows=rollout_rows + serving_rows, n_ctx=row_tokens),
            model.tokenizer.tokens,
            model.tokenizer.template,
            model.info,
            worker,
            rollout_rows=rollout_rows,
            close_model=model.tokenizer.close if loaded is None else None,
        )

    def sharing_weights(self, *, max_rows: int | None = None) -> OnnxBackend:
        """Another backend over the same session and worker, with rows and an adapter of its own. It must be closed before this one."""
        return OnnxBackend(
            self._model_path,
            self._graph_path,
            self._worker,
            n_ctx=self._n_ctx,
            max_rows=max_rows,
            serving_rows=0,
            loaded=self._model,
        )


def _load(path: Path, graph_path: Path, providers: tuple[str, ...], n_threads: int) -> OnnxModel:
    header = read_header(path)
    graph = OnnxGraph(graph_path, n_threads=n_threads, providers=providers)
    if graph.source_sha256 != sha256_of(path):
        raise ModelFileError(f"{graph_path}: was not made of {path}", hint="remove it: a graph is made where there is none")
    tokenizer = tokenizer_of(path, graph.vocab_size)
    info = tokenizer.describe(path, header.architecture, header.parameters, int(header.of_architecture("context_length", 0)))
    return OnnxModel(graph, tokenizer, info)
