"""A backend over a table of rows.

A *pump* is a job on the engine worker that steps the batcher while there is work of its priority or more urgent, one decode a slice.
There is at most one pump per priority; they step the same batch, so a served request joins the rollouts in flight at the next slice and
keeps them moving.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from edge.core.errors import AdapterError, ContextOverflow, EdgeError, Unsupported, UsageError
from edge.core.forms import THINKING_ENDS, PlainForm, ReasonedForm, ResponseForm
from edge.core.types import AdapterRef, Message, PromptGroup, Sampling, ScoredToken, TextDelta, ToolConversation, Turn
from edge.core.worker import EngineWorker, Priority
from edge.dagrpo.prompts import HELP_PHRASE
from edge.inference.backend import ModelInfo, RawPrompt, RolloutCounts, TokenizerInfo
from edge.inference.batcher import Batcher, Engine, Request, SharedRows, TokenTable
from edge.inference.chat_template import ChatTemplate

if TYPE_CHECKING:
    from edge.inference.guide import FormVocabulary, Grammar, Guide, ReasonedGuide

_SHORT_PROMPT = 4096
"""Characters, or token ids, that are read in a few milliseconds."""
KV_BYTES = 192 << 20
"""Key/value memory given to rollouts unless the number of rows is set."""
FEWEST_ROWS, MOST_ROWS, MOST_ROWS_ON_GRAPHICS = 8, 32, 128
"""A processor generates no faster beyond 32 rows (tools/experiments/LOG.md); rows are memory that is taken from the start."""


def rows_that_fit(row_bytes: int, budget_bytes: int = KV_BYTES, *, graphics: bool = False) -> int:
    """How many rows of `row_bytes` key/value memory each are decoded together by default; more on a graphics processor."""
    most = MOST_ROWS_ON_GRAPHICS if graphics else MOST_ROWS
    return max(FEWEST_ROWS, min(most, budget_bytes // max(1, row_bytes)))


SERVED_TOKENS = 8192
"""Context of a served conversation unless it is set, and what several short ones may have together."""
SERVED_SHARE = 0.25
"""Of free memory that goes to served conversations at most, unless their context is set."""
_LEAST_SERVED_TOKENS, _STEP = 1024, 256


ContextLimit = Literal["model", "setting", "default", "memory"]


@dataclass(frozen=True, slots=True)
class ServingMemory:
    """How long a served conversation may be, and how many tokens of conversations are in memory together."""

    context_tokens: int
    held_tokens: int
    limited_by: ContextLimit = "model"
    """Why it is not longer."""

    @property
    def reason(self) -> str:
        """The same in words."""
        raises = "model.context_tokens raises it"
        return {
            "model": "all that the model was made for",
            "setting": "model.context_tokens",
            "default": f"of what the model was made for; {raises}",
            "memory": f"of what the model was made for: a quarter of the free memory; {raises}",
        }[self.limited_by]


def serving_memory(wanted: int | None, trained: int, token_bytes: int, free_bytes: int) -> ServingMemory:
    """What is served of a model that was trained for so many tokens (0: unknown), each of which takes `token_bytes`.

    `wanted` is what was set. Else it is what the model was made for, at most SERVED_TOKENS and what fits in SERVED_SHARE of free memory.
    Two conversations of that length are held where that fits too, and SERVED_TOKENS at least where nothing was set.
    """
    fits = int(SERVED_SHARE * free_bytes) // max(1, token_bytes) // _STEP * _STEP
    limits: list[tuple[int, ContextLimit]] = [(trained or wanted or SERVED_TOKENS, "model")]
    limits += [(wanted, "setting")] if wanted else [(SERVED_TOKENS, "default"), (max(fits, _LEAST_SERVED_TOKENS), "memory")]
    context, limited_by = min(limits, key=lambda limit: limit[0])
    together = 2 * context if wanted else max(2 * context, SERVED_TOKENS)
    return ServingMemory(context, max(context, min(fits, together)), limited_by)


class BatchedBackend:
    """Implements `InferenceBackend` over an engine of rows.

    At most `rollout_rows` of the engine's rows are given to rollouts, a few more to raw texts. People's answers, and raw texts too long
    for these rows, have those of an engine of their own: `open_serving` opens it on the worker's thread when the first of them comes, with
    a context of `served_tokens`, and it is closed when nobody was answered for `unload_after_s` (0: never); None: they share the rows.
    `close_model` is called once, on the worker's thread, after the engines' own `close`; None where the model belongs to another backend.
    The worker is shared and not closed here.
    """

    def __init__(
        self,
        engine: Engine,
        tokens: TokenTable,
        template: ChatTemplate,
        info: ModelInfo,
        worker: EngineWorker,
        *,
        rollout_rows: int,
        close_model: Callable[[], object] | None,
        open_serving: Callable[[], SharedRows] | None = None,
        served_tokens: int = 0,
        unload_after_s: float = 0.0,
    ) -> None:
        self._engine, self._tokens, self._template, self._worker = engine, tokens, template, worker
        self.model, self._n_ctx, self._close_model = info, engine.n_ctx, close_model
        self.rollout_rows = rollout_rows
        self._batcher = Batcher(engine, tokens, rollout_rows=rollout_rows)
        self._open_serving, self._served_tokens = open_serving, served_tokens or engine.n_ctx
        self._serving: tuple[SharedRows, Batcher] | None = None
        self._unload_after_s = unload_after_s
        self._unloading: asyncio.TimerHandle | None = None
        self._unloads: set[asyncio.Task[None]] = set()
        self._adapter: AdapterRef | None = None
        self._lock = threading.Lock()
        self._pumping: set[Priority] = set()
        self._swaps = asyncio.Lock()
        self._closed = False
        self._form_vocabulary: FormVocabulary | None = None
        self._guides: dict[ResponseForm, Guide] = {}
        self._phrase: list[int] | None = None
        self._readings: set[asyncio.Future[tuple[int, ...]]] = set()

    @property
    def adapter_version(self) -> int:
        """Version of the adapter in use; 0 is the bare model."""
        return self._batcher.adapter_version

    @property
    def rollout_counts(self) -> RolloutCounts:
        """What was sampled for rollouts so far; see `CountingBackend`."""
        return self._batcher.counts

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids that the model reads for these messages. Raises ContextOverflow when they leave no room for a response."""
        self._require_open()
        return self._fitting(self._template.prompt_ids(messages), self._n_ctx)

    def served_ids(self, messages: Sequence[Message] | ToolConversation, prefix: str = "") -> tuple[int, ...]:
        """The same for an answer to people, whose turn begins with `prefix`, whatever their number."""
        self._require_open()
        return tuple(self._template.prompt_ids(messages, prefix))

    async def sample_group(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        seeds: Sequence[int],
        priority: Priority = Priority.ROLLOUT,
    ) -> PromptGroup:
        """Sample len(seeds) responses to one prompt; see `InferenceBackend`."""
        _check_sampling(sampling)
        ids = self.prompt_ids(messages)
        if not seeds:
            return PromptGroup(ids, ())
        return await self._run(self._request(ids, sampling, seeds, priority))

    async def sample_ids(self, ids: Sequence[int], sampling: Sampling, seed: int) -> PromptGroup:
        """Sample one response to a prompt that was read before (`prompt_ids`), as a raw text's continuation that nobody watches."""
        _check_sampling(sampling)
        return await self._run(Request(ids, sampling, [seed], Priority.TEXTS))

    async def stream(
        self, messages: Sequence[Message] | ToolConversation, sampling: Sampling, seed: int, prefix: str = ""
    ) -> AsyncIterator[TextDelta]:
        """Stream one answer at serving priority; see `InferenceBackend`."""
        _check_sampling(sampling)
        turns = messages.messages if isinstance(messages, ToolConversation) else messages
        size = sum(len(message.content) for message in turns)
        ids = await self._aside(size, lambda: self._fitting(self.served_ids(messages, prefix), self._served_tokens))
        async with aclosing(self._streamed(ids, Priority.SERVING, sampling, seed, prefix)) as deltas:
            async for delta in deltas:
                yield delta

    async def continue_text(self, prompt: RawPrompt, sampling: Sampling, seed: int) -> AsyncGenerator[TextDelta, None]:
        """Stream the continuation of a raw prompt; see `InferenceBackend`."""
        _check_sampling(sampling)
        ids = await self._raw_ids(prompt)
        async with aclosing(self._streamed(ids, Priority.TEXTS, sampling, seed)) as deltas:
            async for delta in deltas:
                yield delta

    async def read(self, prompt: RawPrompt, top_logprobs: int = 0) -> tuple[ScoredToken, ...]:
        """How likely the tokens of a raw text are; see `InferenceBackend`."""
        ids = await self._raw_ids(prompt, room=0)
        group = await self._run(Request(ids, Sampling(top_logprobs=top_logprobs), [0], Priority.TEXTS, reads=True))
        return group.responses[0].tokens

    async def _raw_ids(self, prompt: RawPrompt, room: int = 1) -> tuple[int, ...]:
        """The ids that the model reads for a raw prompt. Raises ContextOverflow when they leave no room for this many more."""

        def ids() -> tuple[int, ...]:
            self._require_open()
            found = self._template.plain_ids(prompt) if isinstance(prompt, str) else self._known(prompt)
            return self._fitting(found, self._served_tokens, room)

        return await self._aside(len(prompt), ids)

    async def _aside(self, size: int, ids_of: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
        """The ids of a prompt. A long one is read on a thread of its own, so that the event loop goes on with everybody else's."""
        if size <= _SHORT_PROMPT:
            return ids_of()
        self._require_open()
        reading = asyncio.get_running_loop().run_in_executor(None, ids_of)
        self._readings.add(reading)
        reading.add_done_callback(self._readings.discard)
        return await asyncio.shield(reading)

    def text_tokens(self, text: str) -> tuple[int, ...]:
        """The ids of a raw text; see `InferenceBackend`."""
        return tuple(self._template.plain_ids(text, bos=False))

    def guided_turn(self, text: str, form: ResponseForm, max_tokens: int) -> Turn | None:
        """A text of a form as the model's own whole turn; see `InferenceBackend`."""
        if isinstance(form, PlainForm) and not form.options:
            return Turn(self.response_tokens(text))
        return self._guide_of(form).turn(text, max_tokens)

    def _request(
        self, ids: Sequence[int], sampling: Sampling, seeds: Sequence[int], priority: Priority, **further: Any
    ) -> Request:
        """A request whose responses are held to their form, where they have one, or decide at their start."""
        form, prefix = sampling.form, further.get("prefix", "")
        context = self._served_tokens if priority <= Priority.SERVING else self._n_ctx
        if form is None:
            return Request(ids, sampling, seeds, priority, **further)
        guide = None if isinstance(form, PlainForm) and not form.options else self._guide(sampling, context - len(ids))
        if isinstance(form, ReasonedForm) and prefix.endswith(THINKING_ENDS):
            guide = cast("ReasonedGuide", guide).after_thinking()
        elif guide is not None and prefix:
            raise UsageError("a response in a form goes on after its thinking only")
        # a plain turn decides at its start; one that goes on has begun already
        phrase_ids = self._phrase_ids(context - len(ids)) if isinstance(form, PlainForm) and not prefix else ()
        return Request(ids, sampling, seeds, priority, guide=guide, phrase_ids=phrase_ids, **further)

    def _phrase_ids(self, room: int) -> Sequence[int]:
        """The help phrase as a turn begins with it; () where a turn cannot: of a vocabulary or a context that has no room for it."""
        if self._phrase is None:
            try:
                self._phrase = self._vocabulary().ids(HELP_PHRASE.rstrip("."))
            except Unsupported:
                self._phrase = []
        return self._phrase if len(self._phrase) <= room else ()

    def _guide(self, sampling: Sampling, room: int) -> Guide:
        """What holds responses to their form, in the room that the prompt leaves."""
        assert sampling.form is not None
        guide = self._guide_of(sampling.form)
        if room < guide.least <= sampling.max_tokens:
            raise ContextOverflow(
                f"the prompt leaves {room} tokens of the context, a response of its form needs {guide.least}",
                hint="shorten it or raise model.context_tokens (learning.context_tokens where it is learned from)",
            )
        if sampling.max_tokens < guide.least:
            raise Unsupported(
                f"a response of this form needs {guide.least} tokens, not {sampling.max_tokens}",
                parameter="max_tokens",
                hint="allow more tokens",
            )
        return guide.fork(min(sampling.max_tokens, room))

    def _guide_of(self, form: ResponseForm) -> Guide:
        """The guide of a form, to be forked; made once."""
        from edge.inference.guide import OptionsGuide, ReasonedGuide  # needs llguidance, which a coordinator does without

        if form not in self._guides:
            words = self._vocabulary()
            self._guides[form] = ReasonedGuide(form, words) if isinstance(form, ReasonedForm) else OptionsGuide(form, words)
        return self._guides[form]

    def _grammar(self, sampling: Sampling) -> Callable[[], Grammar] | None:
        """Makes what holds one response to its grammar, where it has one. Raises Unsupported at once for a grammar that is none."""
        from edge.inference.guide import Grammar

        if not sampling.grammar:
            return None
        make = partial(Grammar, self._vocabulary(), sampling.grammar)
        make()
        return make

    def _vocabulary(self) -> FormVocabulary:
        """What guides and grammars need of the vocabulary; made once."""
        from edge.inference.guide import FormVocabulary  # needs llguidance, which a coordinator does without

        if self._form_vocabulary is None:
            pieces = [*self._tokens.pieces, *[b""] * (self._engine.vocab_size - len(self._tokens.pieces))]
            self._form_vocabulary = FormVocabulary(pieces, self._response_ids, self._turn_end())
        return self._form_vocabulary

    def response_tokens(self, text: str) -> tuple[int, ...]:
        """The ids of a text as the model's own whole turn; see `InferenceBackend`."""
        end = self._turn_end()
        return (*self._response_ids(text), *([] if end is None else [end]))

    def _response_ids(self, text: str) -> list[int]:
        shown = {spelt for spelt, token in self._tokens.control_ids.items() if self._tokens.pieces[token]}
        return self._template.response_ids(text, shown)

    def _turn_end(self) -> int | None:
        """What the template writes after a turn, else the end of text, else any token that ends one; some models have none."""
        ends = self._tokens.ends
        likely = (self._template.turn_end(), self._tokens.control_ids.get(self.tokenizer.eos), *range(len(ends)))
        return next((token for token in likely if token is not None and ends[token]), None)

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The text of these ids; see `InferenceBackend`."""
        return b"".join(map(self._batcher.piece, self._known(token_ids))).decode("utf-8", "replace")

    @property
    def tokenizer(self) -> TokenizerInfo:
        """What a client that prepares prompts itself has to know."""
        return self._template.tokenizer_info(self._engine.vocab_size, self._served_tokens, self._n_ctx)

    def _known(self, token_ids: Sequence[int]) -> list[int]:
        most = min(self._engine.vocab_size, len(self._tokens.pieces))
        if any(not 0 <= token < most for token in token_ids):
            raise UsageError(f"token ids of this model are 0 to {most - 1}")
        return list(token_ids)

    def _fitting(self, ids: Sequence[int], context: int, room: int = 1) -> tuple[int, ...]:
        if len(ids) + room > context:
            most, setting = self.model.context_tokens, "model" if context == self._served_tokens else "learning"
            hint = f"shorten it or raise {setting}.context_tokens{f' (at most {most} with this model file)' if most else ''}"
            if 0 < most <= context:
                hint = "shorten it: this model reads no more"
            # LangChain and Anthropic's clients know this error by "prompt is too long".
            raise ContextOverflow(f"the prompt is too long: {len(ids)} tokens, the context {context}", hint=hint)
        if not ids:
            raise UsageError("the prompt is empty")
        return tuple(ids)

    async def _streamed(
        self, ids: tuple[int, ...], priority: Priority, sampling: Sampling, seed: int, prefix: str = ""
    ) -> AsyncGenerator[TextDelta, None]:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[TextDelta | None] = asyncio.Queue()

        def report(delta: TextDelta | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(pieces.put_nowait, delta)

        def on_text(text: str, tokens: tuple[ScoredToken, ...]) -> None:
            report(TextDelta(text, tokens=tokens))

        request = self._request(ids, sampling, [seed], priority, prefix=prefix, on_text=on_text, filter=self._grammar(sampling))
        request.future.add_done_callback(lambda _: report(None))
        try:
            await self._submit(request)
            while (piece := await pieces.get()) is not None:
                yield piece
            yield TextDelta("", request.future.result().responses[0], len(ids), cached_tokens=request.cached_tokens or 0)
        finally:
            request.future.cancel()

    async def score(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], priority: Priority = Priority.ROLLOUT
    ) -> tuple[float, ...]:
        """Log-probabilities (nats, temperature 1) of given ids after a prompt, computed row by row exactly as sampling does."""
        if len(prompt_ids) + len(token_ids) > self._n_ctx:
            raise EdgeError(f"{len(prompt_ids)} + {len(token_ids)} tokens exceed the context of {self._n_ctx}")
        if not prompt_ids:
            raise UsageError("the prompt is empty")
        if not token_ids:
            return ()
        group = await self._run(Request(prompt_ids, Sampling(), [0], priority, forced_ids=token_ids))
        return group.responses[0].logprobs

    async def feed(self, prompt_ids: Sequence[int], token_ids: Sequence[int], rows: int) -> None:
        """Decode the same ids after one prompt in this many rows together, exactly as a rollout that sampled them would; for measuring."""
        self._require_open()
        if len(prompt_ids) + len(token_ids) > self._n_ctx or not prompt_ids or not token_ids:
            raise UsageError(f"{len(prompt_ids)} + {len(token_ids)} tokens do not make a row of at most {self._n_ctx}")
        await self._run(Request(prompt_ids, Sampling(), range(rows), Priority.ROLLOUT, whole=True, forced_ids=token_ids))

    async def swap_adapter(self, adapter: AdapterRef | None) -> None:
        """Use this adapter from the next request on; responses in progress are finished with the old one first."""
        async with self._swaps:
            self._require_open()
            self._hold(True)
            try:
                await self._worker.run(self._swap(adapter), Priority.SERVING)
            finally:
                self._hold(False)
                for priority in () if self._closed else Priority:  # pump again what was on hold
                    self._ensure_pump(priority)

    def sharing_weights(self, *, max_rows: int | None = None) -> BatchedBackend:
        """Another backend over the same weights and worker, with rows and an adapter of its own. It must be closed before this one."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Fail what is in flight and release the engine. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._unloading is not None:
            self._unloading.cancel()
        await asyncio.gather(*self._readings, return_exceptions=True)  # they use the model's vocabulary
        try:
            await self._worker.call(self._release, Priority.SERVING)
        except RuntimeError:  # the worker is closed: nothing runs on its thread any more
            self._worker.close()
            self._release()

    async def _run(self, request: Request) -> PromptGroup:
        try:
            await self._submit(request)
            return await asyncio.wrap_future(request.future)
        finally:
            request.future.cancel()

    async def _submit(self, request: Request) -> None:
        self._require_open()
        apart = self._open_serving is not None and (request.priority <= Priority.SERVING or self._is_long(request))
        while not self._added(request, apart):
            async with self._swaps:
                await self._worker.call(self._begin_serving, Priority.SERVING)
            self._require_open()
        self._ensure_pump(request.priority)
        if apart and self._unload_after_s:
            request.future.add_done_callback(partial(self._unload_later, asyncio.get_running_loop()))

    def _added(self, request: Request, apart: bool) -> bool:
        """Queue a request; False where the rows that it needs are not open."""
        with self._lock:
            batcher = self._batcher if not apart else self._serving[1] if self._serving else None
            if batcher is not None:
                batcher.add(request)
            return batcher is not None

    def _unload_later(self, loop: asyncio.AbstractEventLoop, _ended: Future[PromptGroup]) -> None:
        """Close the rows for serving after a while in which nobody is answered."""

        def unload() -> None:
            task = loop.create_task(self._unload())
            self._unloads.add(task)
            task.add_done_callback(self._unloads.discard)

        def wait() -> None:
            if self._unloading is not None:
                self._unloading.cancel()
            self._unloading = loop.call_later(self._unload_after_s, unload)

        if not loop.is_closed():
            loop.call_soon_threadsafe(wait)

    async def _unload(self) -> None:
        async with self._swaps:
            if not self._closed:
                await self._worker.call(self._end_serving, Priority.TRAINING)

    def _end_serving(self) -> None:
        with self._lock:
            if self._closed or self._serving is None or self._serving[1].has_work(Priority.TRAINING):
                return
            engine, _ = self._serving
            self._serving = None
        engine.close()

    def _is_long(self, request: Request) -> bool:
        """A raw text that the rows of rollouts have no room for, with what is to be written after it."""
        written = 0 if request.reads else request.sampling.max_tokens
        return request.priority == Priority.TEXTS and len(request.prompt_ids) + written > self._n_ctx

    def _begin_serving(self) -> None:
        """Open the rows for serving, with the adapter in use. Raises ModelFileError where there is no memory for them."""
        self._require_open()
        if self._serving is not None or self._open_serving is None:  # opened by a request that came first
            return
        engine = self._open_serving()
        try:
            if self._adapter is not None:
                engine.use_adapter(engine.load_adapter(Path(self._adapter.folder)))
        except BaseException:
            engine.close()
            raise
        batcher = Batcher(engine, self._tokens, rollout_rows=0, shared=engine)
        batcher.adapter_version = self._batcher.adapter_version
        self._serving = engine, batcher

    def _hold(self, hold: bool) -> None:
        for batcher in self._batchers:
            batcher.hold = hold

    @property
    def _batchers(self) -> list[Batcher]:
        """The most urgent work's first."""
        return [*([] if self._serving is None else [self._serving[1]]), self._batcher]

    def _require_open(self) -> None:
        if self._closed:
            raise EdgeError("the inference engine is closed")

    def _ensure_pump(self, priority: Priority) -> None:
        with self._lock:
            if priority in self._pumping:
                return
            self._pumping.add(priority)
        try:
            self._worker.submit(self._pump(priority), priority).add_done_callback(self._pump_ended)
        except RuntimeError as error:
            self._pumping.discard(priority)
            raise EdgeError("the inference engine is closed") from error

    def _pump_ended(self, pump: Future[None]) -> None:
        """A pump that was cut off (the worker was closed) leaves nobody waiting."""
        if pump.cancelled():
            self._fail_all(EdgeError("the inference engine was closed"))

    def _fail_all(self, error: BaseException) -> None:
        for batcher in self._batchers:
            batcher.fail_all(error)

    def _pump(self, priority: Priority) -> Generator[None, None, None]:
        while True:
            with self._lock:  # a pump without work is gone from the moment of the check
                batcher = None if self._closed else self._with_work(priority)
                if batcher is None:
                    self._pumping.discard(priority)
                    return
            self._step(batcher)
            yield

    def _with_work(self, priority: Priority) -> Batcher | None:
        return next((batcher for batcher in self._batchers if batcher.has_work(priority)), None)

    def _step(self, batcher: Batcher) -> None:
        try:
            batcher.step()
        except Exception as error:  # every request shares the batch, so its failure is everybody's
            batcher.fail_all(error)

    def _swap(self, adapter: AdapterRef | None) -> Generator[None, None, None]:
        """Prove the new adapter before the old one is touched, drain what was begun, then switch."""
        if self._closed:
            raise AdapterError("the inference engine is closed")
        trained = adapter if adapter is not None and (adapter.version or adapter.folder) else None
        engines: list[Engine] = [self._engine, *([] if self._serving is None else [self._serving[0]])]
        loaded: list[tuple[Engine, Any]] = []
        try:
            for engine in engines:
                loaded.append((engine, None if trained is None else engine.load_adapter(Path(trained.folder))))
            while (batcher := self._with_work(Priority.TRAINING)) is not None:
                self._step(batcher)
                yield
            while loaded:  # what a first context of the model takes, another takes too
                engine, handle = loaded.pop(0)
                engine.use_adapter(handle)
        except BaseException:
            for engine, handle in loaded:
                if handle is not None:
                    engine.free_adapter(handle)
            raise
        self._adapter = trained
        for batcher in self._batchers:
            batcher.forget_prompts()
            batcher.adapter_version = adapter.version if adapter else 0

    def _release(self) -> None:
        self._fail_all(EdgeError("the inference engine was closed"))
        if self._serving is not None:
            self._serving[0].close()
        self._engine.close()
        if self._close_model is not None:
            self._close_model()


def _check_sampling(sampling: Sampling) -> None:
    if sampling.max_tokens < 1:
        raise UsageError(f"max_tokens must be at least 1, not {sampling.max_tokens}")
    if not 0.0 <= sampling.temperature <= 100.0:
        raise UsageError(f"temperature must be between 0 and 100, not {sampling.temperature}")
    if not 0.0 < sampling.top_p <= 1.0:
        raise UsageError(f"top_p must be above 0 and at most 1, not {sampling.top_p}")
    held = isinstance(sampling.form, ReasonedForm) or (sampling.form is not None and sampling.form.options)
    if held and (sampling.grammar or sampling.ignore_eos):
        raise UsageError("a response in a form has no other grammar, and ends with its form")
    if not all(sampling.stops):
        raise UsageError("a stop string must not be empty")
