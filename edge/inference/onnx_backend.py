"""The ONNX backend. Knows how a graph and its model file's words become an engine of rows; the rest is batched.py.

The graph is the one that edge.models.onnx_decoder makes of a GGUF file. The file itself stays needed: vocabulary, template and
description are its own, and training computes on its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge.core.errors import ModelFileError
from edge.core.gguf_header import GgufHeader, read_header
from edge.core.onnx_providers import ProviderChoice
from edge.core.worker import EngineWorker
from edge.inference.backend import ModelInfo
from edge.inference.batched import BatchedBackend, rows_that_fit
from edge.inference.gguf_model import sha256_of
from edge.inference.llamacpp import physical_cores
from edge.inference.onnx_engine import OnnxEngine, OnnxGraph
from edge.inference.words import Words, words_of


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A model file with its graph in a session: what several backends can share. One worker's thread computes on it."""

    graph: OnnxGraph
    words: Words
    info: ModelInfo


class OnnxBackend(BatchedBackend):
    """Implements `InferenceBackend` on ONNX Runtime over a graph that was made of `model_path`, a GGUF file.

    `providers` names execution providers in order of preference, with or without their common ending; what is not there falls back to
    the CPU, and `providers` of the backend tells what became of it. The other parameters are those of LlamaCppBackend. Raises
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
        """`loaded` is the model of another backend, which closes it; see `beside`."""
        model = loaded or _load(Path(model_path), Path(graph_path), providers, n_threads or physical_cores())
        graph = model.graph
        row_tokens = min(n_ctx, model.info.context_tokens or n_ctx)
        rollout_rows = max_rows or rows_that_fit(graph.kv_bytes_per_token * row_tokens)
        self.providers: ProviderChoice = graph.providers
        self._model, self._graph_path = model, graph_path
        super().__init__(
            OnnxEngine(graph, rows=rollout_rows + serving_rows, n_ctx=row_tokens),
            model.words.tokens,
            model.words.template,
            model.info,
            worker,
            rollout_rows=rollout_rows,
            close_model=model.words.close if loaded is None else _leave_open,
        )

    def beside(self, *, max_rows: int | None = None) -> OnnxBackend:
        """Another backend over the same session and worker, with rows and an adapter of its own. It must be closed before this one."""
        return OnnxBackend(
            self.model.path,
            self._graph_path,
            self._worker,
            n_ctx=self._n_ctx,
            max_rows=max_rows,
            serving_rows=0,
            loaded=self._model,
        )


def _load(path: Path, graph_path: Path, providers: tuple[str, ...], n_threads: int) -> OnnxModel:
    header, sha256 = read_header(path), sha256_of(path)
    graph = OnnxGraph(graph_path, n_threads=n_threads, providers=providers)
    if graph.source_sha256 != sha256:
        raise ModelFileError(f"{graph_path}: was not made of {path}", hint="remove it: a graph is made where there is none")
    words = words_of(path, graph.vocab_size)
    return OnnxModel(graph, words, _describe(header, words, sha256))


def _leave_open() -> None:
    """The words belong to another backend."""


def _context_tokens(header: GgufHeader) -> int:
    """Context length the model was trained for, 0 when unknown."""
    return int(header.of_architecture("context_length", 0))


def _describe(header: GgufHeader, words: Words, sha256: str) -> ModelInfo:
    return ModelInfo(
        name=words.name,
        architecture=header.architecture,
        parameters=header.parameters,
        context_tokens=_context_tokens(header),
        file_bytes=header.file_bytes,
        sha256=sha256,
        path=str(header.path),
        prompt_form=words.prompt_form,
    )
