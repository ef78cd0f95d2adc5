"""The MLX backend. Knows how a decoder and its file's words become an engine of rows; the rest is batched.py.

The decoder is handed in (edge.models.mlx_decoder), so that training can share its weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from edge.core.worker import EngineWorker
from edge.inference.backend import ModelInfo
from edge.inference.batched import BatchedBackend, rows_that_fit
from edge.inference.gguf_model import sha256_of
from edge.inference.mlx_engine import Decoder, MlxEngine, Shape
from edge.inference.words import Words, words_of


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
    ModelFileError when the words of the model cannot be read.
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
        words = words_of(path, shape.vocab_size)
        row_tokens = min(n_ctx, shape.context_tokens or n_ctx)
        token_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * decoder.dtype.size
        rollout_rows = max_rows or rows_that_fit(token_bytes * row_tokens, graphics=True)
        self._decoder = decoder
        super().__init__(
            MlxEngine(decoder.twin(), decoder.twin(), rows=rollout_rows + serving_rows, n_ctx=row_tokens),
            words.tokens,
            words.template,
            _describe(path, words, shape),
            worker,
            rollout_rows=rollout_rows,
            close_model=words.close,
        )

    def beside(self, *, max_rows: int | None = None) -> MlxBackend:
        """Another backend over the same weights and worker, with rows and an adapter of its own. It must be closed before this one."""
        return MlxBackend(self.model.path, self._decoder, self._worker, n_ctx=self._n_ctx, max_rows=max_rows)


def _describe(path: Path, words: Words, shape: DescribedShape) -> ModelInfo:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return ModelInfo(
        name=words.name,
        architecture=shape.architecture,
        parameters=shape.parameters,
        context_tokens=shape.context_tokens,
        file_bytes=sum(file.stat().st_size for file in files),
        sha256=sha256_of(files[0]),
        path=str(path),
        prompt_form=words.prompt_form,
    )
