"""The bundled cloud LLM: a GGUF model in this process, on the engine that the agent decodes with.

At temperature 0, its own where none is asked for, an answer depends on the conversation alone; above it, also on the idempotency key,
which seeds the draw.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.config import UpstreamConfig
from coordinator.providers.provider import ProviderDelta, ProviderError, ProviderRequest, ProviderResult
from edge.core.errors import ContextOverflow, EdgeError
from edge.core.rng import stream as random_stream
from edge.core.types import FinishReason, LocalResponse, Sampling, TokenUsage
from edge.core.worker import EngineWorker, Priority

if TYPE_CHECKING:
    from edge.inference.llamacpp import LlamaCppBackend

MAX_CONTEXT_TOKENS = 4096
_BYTES_OF_A_TURN = 64
_FINISH = {FinishReason.EOS: "stop", FinishReason.LENGTH: "length"}


def bundled_model_path(model: str) -> Path:
    """Where a model that ships with the project lies."""
    return Path(str(files("edge.models.files").joinpath(f"{model}.gguf")))


class BundledProvider:
    """CloudProvider over a local GGUF file. As many calls are decoded at once as the upstream admits."""

    def __init__(self, config: UpstreamConfig, name: str) -> None:
        self._path = bundled_model_path(config.model) if config.path is None else Path(config.path)
        self.name = f"bundled:{self._path.stem}"
        self._n_threads = config.threads
        self._rows = config.max_concurrency
        self._worker: EngineWorker | None = None
        self._backend: LlamaCppBackend | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    async def start(self) -> None:
        """Load the model. Raises ModelFileError. Safe to call twice."""
        async with self._starting:
            if self._backend is None and not self._closed:
                self._worker = self._worker or EngineWorker("bundled-llm")
                self._backend = await self._worker.call(self._load, Priority.SERVING)

    def _load(self) -> LlamaCppBackend:
        from edge.inference.llama_engine import MOST_ROWS
        from edge.inference.llamacpp import LlamaCppBackend

        assert self._worker is not None
        rows = min(self._rows, MOST_ROWS)
        threads, context = self._n_threads, MAX_CONTEXT_TOKENS
        backend = LlamaCppBackend(
            self._path, self._worker, n_threads=threads, n_ctx=context, max_rows=rows, serving_rows=0, gpu_layers=0
        )
        about = backend.tokenizer
        self._longest_prompt_bytes = about.context_tokens * max(
            len(backend.text_of((token,)).encode()) for token in range(about.vocab_size)
        )
        self._free_rows = asyncio.Semaphore(rows)
        return backend

    def input_token_bound(self, request: ProviderRequest) -> int:
        """The exact number of input tokens once the model is loaded; before that a bound by bytes."""
        if self._backend is not None:
            with suppress(ProviderError):  # complete() will say so
                return len(self._prompt_ids(self._backend, request))
        return _prompt_bytes(request) + _BYTES_OF_A_TURN * len(request.messages) + 256

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Complete once. Raises ProviderError."""
        backend, ids = await self._prepared(request)
        end = asyncio.get_running_loop().time() + request.deadline_s
        async with self._row(end), asyncio.timeout_at(end):
            group = await backend.sample_ids(ids, *self._sampling(request))
        return _result(group.responses[0], ids, request)

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """Complete once, piece by piece. Raises ProviderError."""
        backend, ids = await self._prepared(request)
        end = asyncio.get_running_loop().time() + request.deadline_s
        async with self._row(end), aclosing(backend.continue_text(ids, *self._sampling(request))) as deltas:
            while True:
                async with asyncio.timeout_at(end):  # never spans a `yield`, where it would hit the consumer
                    delta = await anext(deltas)
                if delta.response is not None:
                    yield ProviderDelta(delta.text, _result(delta.response, ids, request))
                    return
                yield ProviderDelta(delta.text)

    async def aclose(self) -> None:
        """Stop decoding and free the model. Safe to call twice."""
        async with self._starting:
            self._closed = True
            backend, self._backend = self._backend, None
        if backend is not None and self._worker is not None:
            await backend.aclose()
            self._worker.close()

    async def _prepared(self, request: ProviderRequest) -> tuple[LlamaCppBackend, tuple[int, ...]]:
        await self.start()
        if self._backend is None:
            raise ProviderError("the bundled model is closed", kind="closed", executed=False)
        return self._backend, self._prompt_ids(self._backend, request)

    def _prompt_ids(self, backend: LlamaCppBackend, request: ProviderRequest) -> tuple[int, ...]:
        """What the model reads. Raises ProviderError."""
        if _prompt_bytes(request) > self._longest_prompt_bytes:  # not even read
            raise ProviderError("the prompt does not fit the model's context", kind="too_long", executed=False)
        try:
            return backend.prompt_ids(request.messages)
        except ContextOverflow as error:
            raise ProviderError(str(error), kind="too_long", executed=False) from error
        except (EdgeError, UnicodeError) as error:
            raise ProviderError(str(error), kind="bad_request", executed=False) from error

    def _sampling(self, request: ProviderRequest) -> tuple[Sampling, int]:
        """How its answer is drawn, and the seed."""
        sampling = Sampling(temperature=request.temperature or 0.0, max_tokens=request.max_output_tokens)
        return sampling, random_stream(0, "bundled", request.idempotency_key).getrandbits(62)

    @asynccontextmanager
    async def _row(self, end: float) -> AsyncIterator[None]:
        """A row of the model. A call that waits for one has certainly not begun. Raises ProviderError, also for what fails inside."""
        begun = False
        try:
            async with asyncio.timeout_at(end):
                await self._free_rows.acquire()
            begun = not self._closed
            try:
                yield
            finally:
                self._free_rows.release()
        except TimeoutError:
            raise ProviderError("the bundled model did not answer in time", kind="deadline", executed=begun) from None
        except EdgeError as error:
            kind = "closed" if self._closed else "engine"
            raise ProviderError(str(error), kind=kind, executed=begun) from error


def _prompt_bytes(request: ProviderRequest) -> int:
    return sum(len(turn.content.encode("utf-8", "replace")) for turn in request.messages)


def _result(response: LocalResponse, ids: Sequence[int], request: ProviderRequest) -> ProviderResult:
    usage = TokenUsage(len(ids), len(response.token_ids))
    return ProviderResult(response.text, usage, f"bundled:{request.idempotency_key}", _FINISH[response.finish])
