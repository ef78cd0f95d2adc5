"""The backend over a GGUF file that llama.cpp computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp

from edge.core.machine import physical_cores
from edge.core.worker import EngineWorker
from edge.inference.batched import BatchedBackend, ServingMemory, rows_that_fit
from edge.inference.gguf_model import GgufModel, on_graphics
from edge.inference.llama_engine import LlamaEngine
from edge.inference.model_tokenizer import gguf_tokenizer

SERVING_ROWS = 8
"""People who are answered at once, as far as their conversations have room; others wait."""
_TEXT_ROWS = 1
"""For raw texts, beside the rollouts'."""


class LlamaCppBackend(BatchedBackend):
    """Implements `InferenceBackend` over one GGUF file. Loading happens in the constructor and may raise ModelFileError.

    `max_rows` responses of rollouts are decoded together (None: as many as fit in KV_BYTES of key/value memory, see rows_that_fit), and
    one more row is for raw texts. `n_ctx` is the context of one row in tokens (prompt and response; at most what the model was trained
    for). `serving_rows` people are answered at once, in the memory that `serving` describes (None: conversations as long as a row); with 0
    there are no such rows. That memory is given back when nobody was answered for `unload_after_s` (0: never). `n_threads` defaults to the
    physical cores this process may use. What `flash_attention` costs in precision is documented in llama_engine. The worker is shared and
    not closed here.
    """

    def __init__(
        self,
        model_path: str | Path,
        worker: EngineWorker,
        *,
        n_threads: int | None = None,
        n_ctx: int = 1024,
        max_rows: int | None = None,
        serving_rows: int = SERVING_ROWS,
        serving: ServingMemory | None = None,
        unload_after_s: float = 0.0,
        gpu_layers: int | None = None,
        repack: bool = True,
        flash_attention: bool = True,
        loaded: GgufModel | None = None,
    ) -> None:
        """`loaded` is a model of another backend, which closes it; see `sharing_weights`."""
        model = loaded or GgufModel(Path(model_path), gpu_layers=gpu_layers, repack=repack)
        try:
            row_tokens = min(n_ctx, model.trained_context_tokens or n_ctx)
            tokenizer = gguf_tokenizer(model)
            rollout_rows = max_rows or rows_that_fit(model.kv_bytes_per_token * row_tokens, graphics=on_graphics(gpu_layers))
            threads = n_threads or physical_cores()
            engine = LlamaEngine(
                model,
                rows=rollout_rows + (_TEXT_ROWS if serving_rows else 0),
                n_ctx=row_tokens,
                n_threads=threads,
                flash_attention=flash_attention,
            )
        except BaseException:
            if loaded is None:
                model.close()
            raise
        memory = serving or ServingMemory(row_tokens, serving_rows * row_tokens)
        self._model, self._llama, self._threads = model, [engine], threads

        def open_serving() -> LlamaEngine:
            """On the worker's thread."""
            opened = LlamaEngine(
                model,
                rows=serving_rows,
                n_ctx=memory.context_tokens,
                n_threads=self._threads,
                flash_attention=flash_attention,
                shared_tokens=memory.held_tokens,
            )
            self._llama[1:] = [opened]
            return opened

        self._options = {"n_threads": n_threads, "n_ctx": n_ctx, "flash_attention": flash_attention}
        super().__init__(
            engine,
            tokenizer.tokens,
            tokenizer.template,
            tokenizer.describe(model.path, model.header.architecture, model.parameters, model.trained_context_tokens),
            worker,
            rollout_rows=rollout_rows,
            close_model=model.close if loaded is None else None,
            open_serving=open_serving if serving_rows else None,
            served_tokens=memory.context_tokens if serving_rows else 0,
            unload_after_s=unload_after_s,
        )
        self._batcher.sampler.use_threads(threads)

    def use_threads(self, threads: int) -> None:
        """Compute with this many from the next decode on."""
        self._threads = threads
        for engine in self._llama:
            engine.use_threads(threads)

    def sharing_weights(self, *, max_rows: int | None = None) -> LlamaCppBackend:
        """Another backend over the same weights and worker, with rows and an adapter of its own. It must be closed before this one."""
        options: dict[str, Any] = {**self._options, "max_rows": max_rows, "serving_rows": 0}
        return LlamaCppBackend(self._model.path, self._worker, loaded=self._model, **options)


_TRIAL_TOKENS = 64
"""Enough for the products of whole matrices, which are other code than those of one token."""


def decode_some(model: str) -> None:
    """Read a short prompt and one token more, in a process of its own: a build for another processor ends it here, by a signal."""
    llama = llama_cpp.Llama(model, n_ctx=256, n_threads=1, verbose=False)
    llama.eval([1] * _TRIAL_TOKENS)
    llama.eval([2])
    llama.close()
