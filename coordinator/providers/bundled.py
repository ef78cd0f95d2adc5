"""The bundled cloud LLM: a GGUF model decoded in this process.

One owned thread decodes; calls in flight share its decode batches. At temperature 0 an answer depends on the conversation alone; above it,
also on the idempotency key, which seeds the draw.
"""

from __future__ import annotations

import asyncio
import codecs
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.providers.provider import ProviderDelta, ProviderError, ProviderRequest, ProviderResult
from edge.core.errors import EdgeError
from edge.core.rng import stream as random_stream
from edge.core.types import TokenUsage

if TYPE_CHECKING:
    from coordinator.providers.batcher import Generation, RowBatcher
    from edge.inference.llama_engine import LlamaEngine
    from edge.inference.model_tokenizer import ModelTokenizer

MAX_CONTEXT_TOKENS = 4096
_BYTES_OF_A_TURN = 64


def bundled_model_path(model: str) -> Path:
    """Where a model that ships with the project lies."""
    return Path(str(files("edge.models.files").joinpath(f"{model}.gguf")))


class BundledProvider:
    """CloudProvider over a local GGUF file: `path`, or the bundled `model`. `rows` calls are decoded at once on `n_threads` threads."""

    def __init__(
        self, *, model: str = "nano-cloud", path: str | Path | None = None, n_threads: int = 1, rows: int = 16, seed: int = 0
    ) -> None:
        self.name = f"bundled:{model if path is None else Path(path).stem}"
        self._path = bundled_model_path(model) if path is None else Path(path)
        self._n_threads = n_threads
        self._rows = rows
        self._seed = seed
        self._engine: _Engine | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    async def start(self) -> None:
        """Load the model. Raises ModelFileError. Safe to call twice."""
        async with self._starting:
            if self._engine is None and not self._closed:
                engine = _Engine(self._path, self._rows, self._n_threads)
                await asyncio.wrap_future(engine.start())
                self._engine = engine

    def input_token_bound(self, request: ProviderRequest) -> int:
        """The exact number of input tokens once the model is loaded; before that a bound by bytes."""
        if self._engine is not None:
            try:
                return len(self._engine.tokenizer.template.prompt_ids(request.messages))
            except (EdgeError, UnicodeError):  # complete() will say so
                pass
        return sum(len(turn.content.encode("utf-8", "replace")) + _BYTES_OF_A_TURN for turn in request.messages) + 256

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Complete once. Raises ProviderError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        generation = await self._submit(request, _setter(done), streamed=False)
        try:
            async with asyncio.timeout(request.deadline_s):
                await done
        except TimeoutError:
            raise _deadline_error(generation) from None
        finally:
            if not generation.finish:
                generation.cancel()
        return _result(generation, request)

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """Complete once, piece by piece. Raises ProviderError."""
        end = asyncio.get_running_loop().time() + request.deadline_s
        news = asyncio.Event()
        generation = await self._submit(request, news.set, streamed=True)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        sent = 0
        try:
            while not generation.finish:
                await _news_until(news, end, generation)
                data = bytes(generation.text[sent:])
                sent += len(data)
                if text := decoder.decode(data):
                    yield ProviderDelta(text)
        finally:
            if not generation.finish:
                generation.cancel()
        result = _result(generation, request)
        yield ProviderDelta(decoder.decode(bytes(generation.text[sent:]), final=True), result)

    async def aclose(self) -> None:
        """Stop decoding and free the model. Safe to call twice."""
        async with self._starting:
            self._closed = True
            engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.close)

    async def _submit(self, request: ProviderRequest, notify: Callable[[], None], *, streamed: bool) -> Generation:
        await self.start()
        if self._engine is None:
            raise ProviderError("the bundled model is closed", kind="closed", executed=False)
        return self._engine.submit(request, self._seed, notify, streamed=streamed)


class _Engine:
    """The thread that owns model and context."""

    def __init__(self, path: Path, rows: int, n_threads: int) -> None:
        self.tokenizer: ModelTokenizer
        self._engine: LlamaEngine
        self._path = path
        self._row_count = rows
        self._n_threads = n_threads
        self._queue: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, name="bundled-llm", daemon=True)
        self._longest_piece = 0

    def start(self) -> Future[None]:
        """Start the thread; the future is done when the model is loaded, or holds why it is not."""
        self._thread.start()
        return self._ready

    def submit(self, request: ProviderRequest, seed: int, notify: Callable[[], None], *, streamed: bool) -> Generation:
        """Queue a request; `notify` is called on the caller's loop at every token of a streamed one and at the end."""
        from coordinator.providers.batcher import Generation

        ids = self._prompt_ids(request)
        loop = asyncio.get_running_loop()

        def report(_: Any) -> None:
            try:
                loop.call_soon_threadsafe(notify)
            except RuntimeError:  # the caller's loop is closed: nobody waits any more
                generation.cancelled = True

        random = random_stream(seed, "bundled", request.idempotency_key)
        generation = Generation(ids, request.max_output_tokens, request.temperature, random, report, streamed)
        self._queue.put(generation)
        return generation

    def close(self) -> None:
        """Stop, failing what runs, and wait."""
        self._queue.put(None)
        self._thread.join()

    def _prompt_ids(self, request: ProviderRequest) -> list[int]:
        size, room = sum(len(message.content.encode("utf-8", "replace")) for message in request.messages), self._engine.n_ctx
        if size > room * self._longest_piece:  # not even read
            message = f"a prompt of {size} bytes does not fit the model's context of {room} tokens"
            raise ProviderError(message, kind="too_long", executed=False)
        try:
            ids = self.tokenizer.template.prompt_ids(request.messages)
        except (EdgeError, UnicodeError) as error:
            raise ProviderError(str(error), kind="bad_request", executed=False) from error
        if not ids or len(ids) >= room:
            message = f"a prompt of {len(ids)} tokens does not fit the model's context of {room}"
            raise ProviderError(message, kind="too_long", executed=False)
        return ids

    def _serve(self) -> None:
        try:
            batcher = self._load()
        except Exception as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        try:
            self._decode_until_closed(batcher)
        finally:
            batcher.fail_all(_closed())
            self._fail_queued()
            self._engine.close()
            self._model.close()

    def _load(self) -> RowBatcher:
        from coordinator.providers.batcher import RowBatcher
        from edge.inference.gguf_model import GgufModel
        from edge.inference.llama_engine import MOST_ROWS, LlamaEngine
        from edge.inference.model_tokenizer import gguf_tokenizer

        self._model = GgufModel(self._path, gpu_layers=0)
        try:
            self.tokenizer, vocabulary = gguf_tokenizer(self._model), self._model.vocabulary
            self._longest_piece = max(len(vocabulary.text_of(token).encode()) for token in range(vocabulary.size))
            context_tokens = min(self._model.trained_context_tokens, MAX_CONTEXT_TOKENS)
            rows = min(self._row_count, MOST_ROWS)  # further calls wait
            self._engine = LlamaEngine(self._model, rows=rows, n_ctx=context_tokens, n_threads=self._n_threads)
        except BaseException:
            self._model.close()
            raise
        return RowBatcher(self._engine, vocabulary)

    def _decode_until_closed(self, batcher: RowBatcher) -> None:
        while True:
            try:
                if not self._admit_waiting(batcher):
                    return
                batcher.step()
            except EdgeError as error:
                batcher.fail_all(ProviderError(str(error), kind="engine", executed=True))

    def _admit_waiting(self, batcher: RowBatcher) -> bool:
        """Take in what waits, as far as there is room; wait when nothing runs. False when it is time to stop."""
        while batcher.has_room:
            try:
                generation = self._queue.get(block=not batcher.busy)
            except queue.Empty:
                break
            if generation is None:
                return False
            batcher.admit(generation)
        return True

    def _fail_queued(self) -> None:
        while not self._queue.empty():
            generation = self._queue.get()
            if generation is not None and generation.claim():
                generation.error, generation.finish = _closed(executed=False), "error"
                generation.report(generation)


async def _news_until(news: asyncio.Event, end: float, generation: Generation) -> None:
    """Wait for more text; the time-out never spans a `yield`, where it would hit the consumer."""
    try:
        async with asyncio.timeout_at(end):
            await news.wait()
    except TimeoutError:
        raise _deadline_error(generation) from None
    news.clear()


def _setter(done: asyncio.Future[None]) -> Callable[[], None]:
    return lambda: None if done.done() else done.set_result(None)


def _closed(executed: bool | None = True) -> ProviderError:
    return ProviderError("the bundled model was closed", kind="closed", executed=executed)


def _deadline_error(generation: Generation) -> ProviderError:
    """A call that never began is certainly not executed; one that did is."""
    began = not generation.cancel()
    return ProviderError("the bundled model did not answer in time", kind="deadline", executed=began)


def _result(generation: Generation, request: ProviderRequest) -> ProviderResult:
    if generation.error is not None:
        raise generation.error
    usage = TokenUsage(len(generation.prompt_ids), generation.output_tokens)
    text = generation.text.decode("utf-8", "replace")
    return ProviderResult(text, usage, f"bundled:{request.idempotency_key}", generation.finish)
