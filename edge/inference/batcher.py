"""Continuous batching.

One *request* is one prompt with G seeds. Its prompt is decoded once, alone; its responses start from copies of that row and are
advanced one token at a time together with everybody else's. Active rows are always rows 0..R-1 of the engine: a row that ends is
refilled from the most urgent waiting request, or else takes over the last row. `step` is one slice of work: one prompt or one decode.

Where rows share one memory (`SharedRows`) prompts may be long: they are read in pieces, in turn with decodes, after the longest
beginning that was kept of an earlier conversation. A response begins only if all that are in progress can end in that memory.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge.core.rng import stream
from edge.core.types import (
    FORCED,
    AllowedTokens,
    BiasedDecision,
    DialOverride,
    FinishReason,
    LocalResponse,
    PromptGroup,
    Sampling,
    ScoredToken,
    TokenChance,
    TurnStart,
)
from edge.core.worker import Priority
from edge.dagrpo.prompts import HELP_PHRASE
from edge.dagrpo.turn_start import ask_probability, log_odds, unfinished, unsure
from edge.inference.backend import RolloutCounts
from edge.inference.decisions import HelpTokens, ResponseFollower
from edge.inference.detokenizer import Detokenizer, Listener, text_of
from edge.inference.sampling import Floats, RowSampler, likeliest, log_odds_of, log_probabilities, log_sum_exp

if TYPE_CHECKING:
    from edge.inference.guide import Guide


DRAFT_TOKENS = 8
"""How much of a plain answer shows how sure the model is of it. Twice as much tells right from wrong a little better, and a person waits
twice as long (tools/experiments/LOG.md)."""
PIECE = 256
"""Tokens of a long prompt that are read in one slice: so long do others wait for their next token."""
WORTH_COPYING = 16
"""Tokens that two prompts have in common from which on they are read once."""
_NO_CHANGE = 1e-6
"""Nats by which a logit may be off; a single-precision one is not more exact."""


class Engine(Protocol):
    """A table of rows over a model, whose adapter can be exchanged. All methods are called on the worker's thread, one at a time."""

    rows: int
    n_ctx: int
    vocab_size: int
    same_in_parts: bool
    """Whether a prompt read in parts gives the same bits as in one go, as far as bits do not depend on the number of rows anyway."""

    def prefill(self, row: int, ids: list[int], start: int = 0) -> Floats:
        """Put a prompt, or from `start` on the rest of one, into a row; logits [V] after it."""
        ...

    def read(self, row: int, ids: list[int], start: int = 0) -> Iterator[Floats]:
        """Put a text into a row from `start` on; logits [T, V] after each of its tokens, some at a time, each valid until the next ones."""
        ...

    def decode(self, tokens: NDArray[np.int32], positions: NDArray[np.int32]) -> Floats:
        """One more token in each of rows 0..R-1; logits [R, V], valid until the next call, may be overwritten."""
        ...

    def fork(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a row."""
        ...

    def load_adapter(self, folder: Path) -> Any:
        """A handle of a checked adapter that is not yet in use. Raises AdapterError."""
        ...

    def use_adapter(self, handle: Any) -> None:
        """Decode with this adapter (None: the bare model); what rows hold is void. On failure the old one stays."""
        ...

    def free_adapter(self, handle: Any) -> None:
        """Let go of an adapter that is not in use."""
        ...

    def close(self) -> None:
        """Release rows and adapters. Safe to call twice."""
        ...


class SharedRows(Engine, Protocol):
    """Rows that share one memory, in which what they held is kept. Row `rows` exists as well: prompts are read there."""

    shared_tokens: int
    """How many tokens all rows hold together, `n_ctx` at least."""

    def keep(self, row: int, ids: list[int]) -> None:
        """Keep what a row holds, as far as it is these tokens, for conversations that go on from there; the row is empty afterwards."""
        ...

    def recall(self, row: int, ids: list[int]) -> int:
        """Put the longest kept beginning of a prompt into a row; returns its length, which is less than the prompt's."""
        ...


class TokenFilter(Protocol):
    """Decides token by token what one response may be (guide.Grammar)."""

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        ...

    def restrict(self, logits_V: Floats) -> None:
        """Make impossible, in place, nearly all that is not allowed next, and nothing that is."""
        ...

    def accept(self, token: int) -> None:
        """The next token is this one, which is allowed."""
        ...


class TokenTable(Protocol):
    """What the batcher needs of a vocabulary (gguf_model.Vocabulary). `pieces` are silent for control tokens, `control_ids` names them."""

    pieces: list[bytes]
    texts: list[str]
    ends: list[bool]
    control_ids: dict[str, int]


class Request:
    """One prompt with its seeds. `future` resolves to the PromptGroup; cancel it to withdraw the request.

    `on_text` is called on the engine's thread with each piece of text (for a single response). With `forced_ids` nothing is
    sampled: these ids are fed one by one and their log-probabilities recorded. With `reads` the prompt itself is the text: it is read in
    one go, and the one response reports how likely its tokens were. A `whole` prompt is read even where another row begins with it.
    `filter` makes what holds one response to its grammar. Responses are held to their form by forks of `guide`; what it forces first is
    read with the prompt. With `phrase_ids`, the tokens of a request, they decide at their start whether to ask for help.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        seeds: Sequence[int],
        priority: Priority,
        *,
        prefix: str = "",
        on_text: Listener | None = None,
        forced_ids: Sequence[int] = (),
        reads: bool = False,
        whole: bool = False,
        filter: Callable[[], TokenFilter] | None = None,
        guide: Guide | None = None,
        phrase_ids: Sequence[int] = (),
    ) -> None:
        self.prompt_ids, self.seeds, self.forced_ids = list(prompt_ids), tuple(seeds), tuple(forced_ids)
        self.sampling, self.priority, self.prefix = sampling, priority, prefix
        self.on_text, self.reads, self.filter, self.guide = on_text, reads, filter, guide
        self.whole = whole
        self.opening = () if guide is None else guide.opening
        self.first_ids = [*self.prompt_ids, *self.opening]
        """What its responses have in common."""
        self.phrase_ids = tuple(phrase_ids)
        self.drafting = False
        self.begin_again()
        self.future: Future[PromptGroup] = Future()
        self.responses: list[LocalResponse | None] = [None] * len(self.seeds)
        self.started = 0
        self.prompt_logits: Floats | None = None
        self.cached_tokens: int | None = None
        """How much of the prompt an earlier conversation had read; None: it was not looked for yet."""
        self.counts = RolloutCounts()

    @property
    def most_tokens(self) -> int:
        """What prompt and response may take together, with what is read to decide."""
        return len(self.first_ids) + max(self.sampling.max_tokens, len(self.phrase_ids), DRAFT_TOKENS)

    def begin_again(self) -> None:
        """Forget what is known of the decision at the start: another adapter will answer."""
        self.phrase_logprobs: tuple[float, ...] = ()
        self.unfinished: tuple[float, ...] = ()
        self.unsure: float | None = None
        certain = bool(self.phrase_ids) and self.sampling.certainty != 0.0
        self.wants_draft = certain and self.guide is None and not self.sampling.suppress_help

    @property
    def waiting(self) -> bool:
        """True while responses are left to start, and nothing has to come before them."""
        return self.started < len(self.seeds) and not self.drafting

    @property
    def over(self) -> bool:
        """True when it was withdrawn, failed, or completed."""
        return self.future.done()

    def finish_one(self, index: int, response: LocalResponse) -> None:
        """Record a response; resolves the future with the last one."""
        self.responses[index] = response
        self.counts.responses += 1
        done = [response for response in self.responses if response is not None]
        if len(done) == len(self.seeds) and self.future.set_running_or_notify_cancel():
            self.future.set_result(PromptGroup(tuple(self.prompt_ids), tuple(done)))


class _Sequence:
    """One response in progress."""

    def __init__(self, request: Request, index: int, tokens: HelpTokens, room: int, version: int) -> None:
        self.request, self.index, self.version = request, index, version
        self.is_forced = bool(request.forced_ids)
        self.filter, self.stuck = request.filter() if request.filter else None, False
        self.guide = None if request.guide is None else request.guide.fork(min(request.sampling.max_tokens, room))
        self.temperature = request.sampling.temperature
        self.limit = min(room, len(request.forced_ids) or request.sampling.max_tokens)
        self.uniform = stream(request.seeds[index], "sample").random
        steps = None if request.phrase_ids else request.sampling.max_steps
        self.follower = ResponseFollower(tokens, steps, request.prefix)
        watched = request.on_text is not None or request.sampling.stops or request.sampling.top_logprobs is not None
        self.detokenizer = Detokenizer(request.sampling, request.prefix, request.on_text) if watched else None
        penalties = request.sampling.presence_penalty or request.sampling.frequency_penalty
        self.occurrences: Counter[int] | None = Counter() if penalties else None
        self.places: list[int] = []
        self.sets: dict[bytes, int] = {}
        self.attended = bool(watched) or self.occurrences is not None or request.sampling.top_p < 1.0
        self.logits_V: Floats | None = None
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.pieces: list[bytes] = []
        self.help_log_odds: float | None = None
        self.decided = False
        self.free_choice: int | None = None
        self.overridden: DialOverride = ""
        self.biased: list[BiasedDecision] = []
        self.start: TurnStart | None = None
        self.doubt: float | None = None
        self.drafts = False
        """It is a draft, which nobody sees unless it becomes the response."""
        self.unseen: list[tuple[bytes, ScoredToken | None]] = []
        self.own_logits_V: Floats | None = None

    @property
    def position(self) -> int:
        """Where the last token goes in the row."""
        return len(self.request.prompt_ids) + len(self.token_ids) - 1

    @property
    def forced(self) -> int:
        """The id to take next, -1 when it is to be sampled."""
        return self.request.forced_ids[len(self.token_ids)] if self.is_forced else -1

    def add(self, token: int, logprob: float, piece: bytes) -> None:
        """Append a token, its log-probability and its text."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.pieces.append(piece)
        self.request.counts.tokens += 1

    def cut(self, count: int) -> None:
        """Leave the first tokens only."""
        for one in (self.token_ids, self.logprobs, self.pieces, self.unseen):
            del one[count:]

    def finish_reason(self, ends: bool) -> FinishReason | None:
        """Why the response is over after its last token, or None."""
        if self.stuck:
            return FinishReason.LENGTH
        if ends and not self.is_forced and not self.request.sampling.ignore_eos:
            return FinishReason.EOS
        if self.follower.steps_over and not self.is_forced:
            return FinishReason.STEP_LIMIT
        return FinishReason.LENGTH if len(self.token_ids) >= self.limit else None

    def response(self, finish: FinishReason) -> LocalResponse:
        """The finished response."""
        text = text_of(self.pieces) if self.detokenizer is None else self.detokenizer.text
        tokens = () if self.detokenizer is None else self.detokenizer.tokens
        return LocalResponse(
            text,
            tuple(self.token_ids),
            tuple(self.logprobs),
            finish,
            self.version,
            self.help_log_odds,
            tokens,
            self.overridden,
            tuple(self.biased),
            None if self.guide is None else AllowedTokens(tuple(self.places), tuple(self.sets)),
            self.request.sampling.form,
            self.start,
            self.doubt,
            "" if self.detokenizer is None else self.detokenizer.stop,
        )


class Batcher:
    """Drives an engine. All methods but `add` must be called on the engine's thread.

    At most `rollout_rows` rows are given to rollouts; the other rows are reserved for serving, and half of those may go to raw texts.
    `shared` is the engine itself where its rows share one memory.
    """

    def __init__(self, engine: Engine, tokens: TokenTable, *, rollout_rows: int, shared: SharedRows | None = None) -> None:
        self.adapter_version = 0
        self.hold = False
        self.counts = RolloutCounts()
        """Of requests at rollout priority."""
        self._engine, self._shared = engine, shared
        self._tokens = tokens
        self._rollout_rows = rollout_rows
        self._control_pieces = {token: text.encode() for text, token in tokens.control_ids.items()}
        self._help = HelpTokens(tokens.texts)
        self._help_ids = {key: np.array(ids, dtype=np.intp) for key, ids in self._help.starts.items()}
        self._instead_ids = {tag: np.array(ids, dtype=np.intp) for tag, ids in self._help.instead.items()}
        self.sampler = RowSampler(engine.vocab_size, engine.rows)
        self._inbox: deque[Request] = deque()
        self._waiting: list[tuple[int, int, Request]] = []
        self._ticket = itertools.count()
        self._active: list[_Sequence] = []
        self._prompt_in_row: list[Request | None] = [None] * engine.rows
        self._reading: Request | None = None
        self._read_tokens = 0
        """How much of the prompt of `_reading` is there."""
        self._read_last = False
        """The last slice read a piece of a prompt."""

    def add(self, request: Request) -> None:
        """Queue a request, from any thread."""
        if request.priority == Priority.ROLLOUT:
            request.counts = self.counts
        self._inbox.append(request)

    def has_work(self, priority: Priority) -> bool:
        """True while a request of this priority or a more urgent one can be advanced by `step`."""
        self._take_in()
        if any(sequence.request.priority <= priority for sequence in self._active):
            return True
        return any(request.priority <= priority and self._may_start(request) for _, _, request in self._waiting)

    def step(self) -> None:
        """One slice: decode one prompt and start its responses, or advance all rows by one token."""
        self._take_in()
        while self._waiting and self._waiting[0][2].over:
            heapq.heappop(self._waiting)
        self._close_gaps([sequence.request.over for sequence in self._active])
        in_turn, self._read_last = self._read_last and bool(self._active), False
        if not in_turn and self._start_next():
            self._read_last = self._reading is not None
            return
        if self._active:
            tokens = np.array([sequence.token_ids[-1] for sequence in self._active], dtype=np.int32)
            positions = np.array([sequence.position for sequence in self._active], dtype=np.int32)
            self._close_gaps(self._sample(self._active, self._engine.decode(tokens, positions)))

    def fail_all(self, error: BaseException) -> None:
        """End every request with this error."""
        self._take_in()
        requests = {*(sequence.request for sequence in self._active), *(request for _, _, request in self._waiting)}
        if self._shared is not None:
            for row in (*range(len(self._active)), self._shared.rows):
                self._shared.keep(row, [])
        self._active.clear()
        self._waiting.clear()
        self._reading = None
        for request in requests:
            if not request.over and request.future.set_running_or_notify_cancel():
                request.future.set_exception(error)

    def forget_prompts(self) -> None:
        """What rows hold is void (another adapter is in use); waiting requests decode their prompts again."""
        self._prompt_in_row, self._reading = [None] * self._engine.rows, None
        for _, _, request in self._waiting:
            request.begin_again()

    def _take_in(self) -> None:
        while self._inbox:
            request = self._inbox.popleft()
            heapq.heappush(self._waiting, (int(request.priority), next(self._ticket), request))

    def _start_next(self) -> bool:
        """Start responses of the most urgent waiting request at the end of the batch; True when its prompt was decoded for it."""
        request = self._next_request(len(self._active))
        if request is None:
            return False
        if request.reads:
            self._read(request, len(self._active))
            return True
        decoded = False
        if request not in self._prompt_in_row:
            row = len(self._active)
            if self._shared is None:
                self._prefill(request, row)
            elif not self._read_piece(self._shared, request, row):
                return True
            if request.phrase_ids and not request.phrase_logprobs:
                self._read_phrase(request, row)
            decoded = True
        if request.wants_draft:
            self._start_draft(request, len(self._active))
            return True
        while self._next_request(len(self._active)) is request:
            self._start_one(request, len(self._active))
        row = len(self._active)
        # a prompt of which every response ended with its first token is still in its row
        if self._shared is not None and row < self._shared.rows and self._prompt_in_row[row] is request:
            self._shared.keep(row, request.first_ids)
            self._prompt_in_row[row] = None
        return decoded

    def _prefill(self, request: Request, row: int) -> None:
        """Read a prompt into a row. What it has in common with the beginning of another row is copied from there, unless results would then
        depend on what other rows hold."""
        ids, start = request.first_ids, 0
        if self._engine.same_in_parts and not request.whole:
            held = {other: place for place, other in enumerate(self._prompt_in_row) if other is not None}
            common, source = max(((in_common(one.first_ids, ids[:-1]), place) for one, place in held.items()), default=(0, row))
            if common >= WORTH_COPYING:
                self._engine.fork(source, row, start := common)
        request.prompt_logits = self._engine.prefill(row, ids[start:], start)
        self._prompt_in_row[row] = request

    def _read_piece(self, engine: SharedRows, request: Request, row: int) -> bool:
        """Read the next piece of a prompt, after what was kept of it; True when all of it is there, in the row."""
        ids, reading_row = request.first_ids, engine.rows
        if self._reading is not request:
            if self._reading is not None:  # withdrawn, or less urgent
                engine.keep(reading_row, self._reading.first_ids)
            self._reading, self._read_tokens = request, engine.recall(reading_row, ids)
            if request.cached_tokens is None:
                request.cached_tokens = min(self._read_tokens, len(request.prompt_ids))
        piece = ids[self._read_tokens :][:PIECE]
        logits_V = engine.prefill(reading_row, piece, self._read_tokens)
        self._read_tokens += len(piece)
        if self._read_tokens < len(ids):
            return False
        engine.fork(reading_row, row, len(ids))
        engine.keep(reading_row, ids)
        self._reading, request.prompt_logits, self._prompt_in_row[row] = None, logits_V, request
        return True

    def _vacate(self, engine: SharedRows, row: int) -> None:
        """Keep the conversation of a response that is over where rows share their memory."""
        sequence = self._active[row]
        asks = sequence.start is not None and sequence.start.asked  # the phrase was not read into the row
        prompt_ids = sequence.request.prompt_ids
        engine.keep(row, prompt_ids if asks else [*prompt_ids, *sequence.token_ids])
        self._prompt_in_row[row] = None

    def _read_phrase(self, request: Request, row: int) -> None:
        """How likely the help phrase is after the prompt in a row, which is left with the prompt alone."""
        assert request.prompt_logits is not None
        length, ids = len(request.prompt_ids), np.array(request.phrase_ids, dtype=np.intp)
        logprobs = list(log_probabilities(request.prompt_logits[None], ids[:1]))
        for logits_TV in self._engine.read(row, ids[:-1].tolist(), length):
            logprobs.extend(log_probabilities(logits_TV, ids[len(logprobs) :][: len(logits_TV)]))
        self._engine.fork(row, row, length)
        request.phrase_logprobs = tuple(map(float, logprobs))
        request.unfinished = unfinished(request.phrase_logprobs)
        if request.guide is not None:  # of few answers the likeliest shows how sure the model is
            answers_A = request.prompt_logits[~request.guide.outside(request.guide.allowed())]
            request.unsure = log_sum_exp(answers_A) - float(answers_A.max())

    def _start_draft(self, request: Request, row: int) -> None:
        """Begin the likeliest answer that does not ask, whose first tokens show how sure the model is."""
        request.wants_draft, request.drafting = False, True
        room = self._engine.n_ctx - len(request.prompt_ids)
        sequence = _Sequence(request, 0, self._help, room, self.adapter_version)
        sequence.drafts, sequence.temperature, sequence.limit = True, 0.0, min(DRAFT_TOKENS, room)
        assert request.prompt_logits is not None
        self._prompt_in_row[row] = request
        self._active.append(sequence)
        self._close_gaps([*[False] * row, *self._sample([sequence], request.prompt_logits[None].copy())])

    def _end_draft(self, sequence: _Sequence, ends: bool) -> bool:
        """The draft is there. At temperature 0 it is the beginning of the answer, unless that asks; else the responses start now. True when
        the sequence is over."""
        request, sampling = sequence.request, sequence.request.sampling
        request.drafting, request.unsure = False, unsure(sequence.logprobs)
        sequence.drafts = False
        if sampling.temperature > 0.0 or len(request.seeds) > 1 or sequence.occurrences is not None:
            heapq.heappush(self._waiting, (int(request.priority), next(self._ticket), request))
            return True
        request.started = 1
        if (asking := self._decide(sequence)) is not None:
            request.finish_one(0, asking)
            return True
        sequence.limit = min(self._engine.n_ctx - len(request.prompt_ids), sampling.max_tokens)
        if len(sequence.token_ids) > sequence.limit:
            sequence.cut(sequence.limit)
            ends = False
        finish = sequence.finish_reason(ends)
        for place, (piece, scored) in enumerate(sequence.unseen, 1):
            last = finish is not None and place == len(sequence.unseen)
            if sequence.detokenizer is not None and sequence.detokenizer.add(piece, scored, last):
                sequence.cut(place)
                finish = FinishReason.STOP
                break
        if finish is not None:
            request.finish_one(0, sequence.response(finish))
        return finish is not None

    def _decide(self, sequence: _Sequence) -> LocalResponse | None:
        """Take the decision at the start of a turn; the response, where it asks."""
        request, sampling = sequence.request, sequence.request.sampling
        z = log_odds(request.phrase_logprobs)
        if request.unsure is not None and sampling.certainty:
            sequence.doubt = sampling.certainty * request.unsure
        if request.unsure is not None or not sampling.certainty:  # else it cannot be compared with those of other answers
            sequence.help_log_odds = z + (sequence.doubt or 0.0)
        shift = sequence.doubt or 0.0
        uniform, bias = sequence.uniform(), -np.inf if sampling.suppress_help else sampling.help_bias + shift
        asks, would_ask = (uniform < ask_probability(z, one, sequence.temperature) for one in (bias, shift))
        sequence.start = TurnStart(request.phrase_ids, request.phrase_logprobs, bias, asks, request.guide is not None)
        if asks != would_ask and not sampling.suppress_help:
            sequence.overridden = "to ask" if asks else "not to ask"
        if not asks:
            return None
        sequence.token_ids, sequence.logprobs = list(request.phrase_ids), list(request.phrase_logprobs)
        if request.on_text is not None:
            request.on_text(HELP_PHRASE, ())
        return replace(sequence.response(FinishReason.EOS), text=HELP_PHRASE, allowed=None)

    def _next_request(self, busy_rows: int) -> Request | None:
        """The most urgent request with a response to start, if a row is left for it when this many are busy."""
        while self._waiting and not (self._waiting[0][2].waiting and not self._waiting[0][2].over):
            heapq.heappop(self._waiting)
        # Normally only the most urgent one counts: a later one must not overtake it. On hold (an adapter is about to change) only requests
        # that have begun may go on, wherever they wait, so that all of their responses come from one adapter.
        for _, _, request in sorted(self._waiting) if self.hold else self._waiting[:1]:
            if self._may_start(request) and busy_rows < self._rows_for(request) and self._has_room(request):
                return request
        return None

    def _may_start(self, request: Request) -> bool:
        """True when it has responses to start; while on hold, only those of requests that have begun."""
        return request.waiting and not request.over and (request.started > 0 or not self.hold)

    def _has_room(self, request: Request) -> bool:
        """Whether a response to it and all in progress can end in the memory that rows share."""
        if self._shared is None:
            return True
        requests = (request, *(sequence.request for sequence in self._active if not sequence.request.over))
        return sum(min(one.most_tokens, self._shared.n_ctx) for one in requests) <= self._shared.shared_tokens

    def _read(self, request: Request, row: int) -> None:
        """Read a text in a row and resolve its request: each token with how likely it was after those before it."""
        request.started = 1
        self._prompt_in_row[row] = None
        ids, top = request.prompt_ids, request.sampling.top_logprobs or 0
        detokenizer = Detokenizer(request.sampling, "", None)
        detokenizer.add(self.piece(ids[0]), ScoredToken(ids[0], self.piece(ids[0]), None), len(ids) == 1)
        logprobs: list[float] = []
        for logits_TV in self._engine.read(row, ids) if len(ids) > 1 else ():
            following = np.array(ids[len(logprobs) + 1 :][: len(logits_TV)], dtype=np.intp)
            known_TV = logits_TV[: len(following)]
            for logits_V, token, logprob in zip(
                known_TV, following.tolist(), log_probabilities(known_TV, following), strict=True
            ):
                logprobs.append(float(logprob))
                scored = self._scored(token, float(logprob), logits_V, top)
                detokenizer.add(scored.piece, scored, len(logprobs) + 1 == len(ids))
        response = LocalResponse(
            detokenizer.text, tuple(ids), (0.0, *logprobs), FinishReason.EOS, self.adapter_version, tokens=detokenizer.tokens
        )
        request.finish_one(0, response)

    def piece(self, token: int) -> bytes:
        """The bytes of a token, control tokens written out."""
        return self._tokens.pieces[token] or self._control_pieces.get(token, b"")

    def _scored(self, token: int, logprob: float, logits_V: Floats, top: int) -> ScoredToken:
        """A token with the likeliest ones of the row that it was taken from."""
        ids, above = likeliest(logits_V, max(1, top), token)
        chances = [
            TokenChance(one, self.piece(one), logprob + float(more)) for one, more in zip(ids.tolist(), above, strict=True)
        ]
        return ScoredToken(token, self.piece(token), logprob, bool(above[0] <= 0.0), tuple(chances[:top]))

    def _rows_for(self, request: Request) -> int:
        if request.priority <= Priority.SERVING:
            return self._engine.rows
        reserved = self._engine.rows - self._rollout_rows
        return self._rollout_rows + reserved // 2 if request.priority <= Priority.TEXTS else self._rollout_rows

    def _start_one(self, request: Request, row: int) -> bool:
        """Sample a response's first token and put it into a row; False when that token ended it already."""
        assert request.prompt_logits is not None
        room = self._engine.n_ctx - len(request.prompt_ids)
        sequence = _Sequence(request, request.started, self._help, room, self.adapter_version)
        request.started += 1
        if request.phrase_ids and (asking := self._decide(sequence)) is not None:
            request.finish_one(sequence.index, asking)
            return False
        for token in request.opening:
            sequence.places.append(FORCED)
            sequence.add(token, 0.0, self._tokens.pieces[token])
            if self._add_text(sequence, last=False):
                request.finish_one(sequence.index, sequence.response(FinishReason.STOP))
                return False
        # The first token comes from the prompt's logits, before any row is used: a response that ends with it costs no copy of a row.
        # The logits are copied because sampling changes them in place, and the request's other responses start from them too.
        if self._sample([sequence], request.prompt_logits[None].copy())[0]:
            return False
        # Any row that was filled from this prompt will do as the source: generated tokens come after the prompt's, and are not copied.
        source = row if self._prompt_in_row[row] is request else self._prompt_in_row.index(request)
        self._engine.fork(source, row, len(request.prompt_ids) + len(request.opening))
        self._prompt_in_row[row] = request
        self._active[row : row + 1] = [sequence]
        return True

    def _close_gaps(self, over: Sequence[bool]) -> None:
        """Refill the rows that are over, or fill them with the last ones, so that active rows stay consecutive."""
        # From the last row to the first: the last active row, which is moved into a gap, is then never itself over.
        for row in [row for row, ended in enumerate(over) if ended][::-1]:
            if self._shared is not None:
                self._vacate(self._shared, row)
            elif self._refill(row):
                continue
            last = len(self._active) - 1
            moved = self._active.pop()
            if row != last:
                # Up to `position` only: the newest token is not in the row yet, the next decode puts it there.
                self._engine.fork(last, row, moved.position)
                self._active[row] = moved
                self._prompt_in_row[row] = self._prompt_in_row[last]
                if self._shared is not None:
                    self._shared.keep(last, [])
                    self._prompt_in_row[last] = None

    def _refill(self, row: int) -> bool:
        """Start a response whose prompt is at hand in a row that just ended; False when there is none."""
        while True:
            request = self._next_request(len(self._active) - 1)
            if request is None or request not in self._prompt_in_row:
                return False
            if self._start_one(request, row):
                return True

    def _sample(self, sequences: Sequence[_Sequence], logits_RV: Floats) -> list[bool]:
        """Take the next token of each sequence; true where that ended it."""
        narrow, given = False, None
        uniforms = np.array([sequence.uniform() for sequence in sequences])
        for row, (sequence, logits_V, uniform) in enumerate(zip(sequences, logits_RV, uniforms, strict=True)):
            sampling = sequence.request.sampling
            if sequence.occurrences:  # tokens that came before become less likely
                seen = np.fromiter(sequence.occurrences, dtype=np.intp)
                times = np.fromiter(sequence.occurrences.values(), dtype=np.float32)
                logits_V[seen] -= np.float32(sampling.presence_penalty) + np.float32(sampling.frequency_penalty) * times
            if sequence.guide is not None:
                self._restrict(sequence, sequence.guide, logits_V, uniform)
            elif sequence.request.phrase_ids:
                self._leave_phrase(sequence, logits_V)
            elif sequence.follower.pending is not None and sequence.filter is None:
                self._steer(sequence, logits_V, uniform)
            if sequence.attended:
                sequence.logits_V = logits_V
                narrow = narrow or sampling.top_p < 1.0
            if sequence.is_forced or sequence.filter is not None:
                given = np.full(len(sequences), -1, dtype=np.intp) if given is None else given
                given[row] = sequence.forced if sequence.is_forced else self._permitted(sequence, logits_V, uniform)
        temperatures = np.array([sequence.temperature for sequence in sequences])
        shares = np.array([sequence.request.sampling.top_p for sequence in sequences]) if narrow else None
        ids, logprobs = self.sampler.sample(logits_RV, temperatures, uniforms, given, shares)
        for row, sequence in enumerate(sequences):
            if sequence.own_logits_V is not None:
                logprobs[row] = log_probabilities(sequence.own_logits_V[None], ids[row : row + 1])[0]
                sequence.logits_V = sequence.own_logits_V if sequence.attended else None
                sequence.own_logits_V = None
        return [self._take(*taken) for taken in zip(sequences, ids.tolist(), logprobs.tolist(), strict=True)]

    def _permitted(self, sequence: _Sequence, logits_V: Floats, uniform: float) -> int:
        """The token that the grammar lets through: the one that these logits give, else one drawn from what it leaves of them.

        The result has the distribution of the allowed tokens, and checking one token is much faster than checking all. Where nothing is
        left, as with a character that the vocabulary cannot spell, the response ends unfinished.
        """
        assert sequence.filter is not None
        token = self._choice(sequence, logits_V, uniform)
        if sequence.filter.allows(token):
            return token
        left_V = logits_V.copy()
        sequence.filter.restrict(left_V)
        while np.isfinite(left_V.max()):
            token = self._choice(sequence, left_V, sequence.uniform())
            if sequence.filter.allows(token):
                return token
            left_V[token] = -np.inf
        sequence.stuck = True
        return self._tokens.ends.index(True)

    def _restrict(self, sequence: _Sequence, guide: Guide, logits_V: Floats, uniform: float) -> None:
        """Leave only what the form allows, in place, note it, and record and bias the decision to ask for help.

        A forced token is the only one that is left, so that it is drawn, with probability 1.
        """
        sampling, forced, ask = sequence.request.sampling, guide.forced, guide.ask
        bits = guide.allowed(may_ask=not sampling.suppress_help) if forced < 0 else b""
        if guide.deciding:
            answers = np.flatnonzero(~guide.outside(guide.allowed(may_ask=False)))
            sequence.help_log_odds = log_odds_of(np.append(logits_V[ask], logits_V[answers]), np.array([0]))
            if sampling.suppress_help and len(answers) == 1:
                forced = int(answers[0])
        if forced >= 0:
            sequence.places.append(FORCED)
            kept = logits_V[forced]
            logits_V[:] = -np.inf
            logits_V[forced] = kept
            return
        sequence.places.append(sequence.sets.setdefault(bits, len(sequence.sets)))
        logits_V[guide.outside(bits)] = -np.inf
        if guide.deciding and sampling.help_bias and not sampling.suppress_help:
            sequence.free_choice = self._choice(sequence, logits_V, uniform)
            logits_V[ask] += np.float32(sampling.help_bias)
            sequence.biased.append(BiasedDecision(len(sequence.token_ids), sampling.help_bias, (ask,)))

    def _leave_phrase(self, sequence: _Sequence, logits_V: Floats) -> None:
        """A turn that does not ask: where it is a beginning of the help phrase so far, the phrase goes on only as far as it stays
        unfinished. The logits of the model itself are noted where that changes them."""
        request, place = sequence.request, len(sequence.token_ids)
        if place >= len(request.phrase_ids) or tuple(sequence.token_ids) != request.phrase_ids[:place]:
            return
        less = request.unfinished[place]
        if less < -_NO_CHANGE:
            sequence.own_logits_V = logits_V.copy()
            logits_V[request.phrase_ids[place]] += np.float32(less)

    def _steer(self, sequence: _Sequence, logits_V: Floats, uniform: float) -> None:
        """Record and bias the decision to ask for help, in place.

        White space postpones the decision, so the log-odds that are kept are those of the row that the first other token came from. The
        bias acts only where the phrase would be a request; the choice without it is noted, to know whether the bias decides.
        """
        key = sequence.follower.pending or ""
        starts = self._help_ids[key]
        if key == "" and not sequence.decided:
            sequence.help_log_odds = log_odds_of(logits_V, starts)
        sampling = sequence.request.sampling
        if not (sampling.suppress_help or (sampling.help_bias and sequence.follower.may_ask)):
            return
        free = self._choice(sequence, logits_V, uniform)
        logits_V[starts] += -np.inf if sampling.suppress_help else np.float32(sampling.help_bias)
        if not sampling.suppress_help:
            sequence.free_choice = free
            sequence.biased.append(BiasedDecision(len(sequence.token_ids), sampling.help_bias, self._help.starts[key]))
        if key != "" or sequence.is_forced or sampling.exact:
            return
        if free in starts and self._choice(sequence, logits_V, uniform) not in starts:
            # Leave only what begins an answer: a model stopped from its request for help goes on in the middle of one otherwise.
            wanted = self._instead_ids[sequence.follower.last_tag()]
            allowed = logits_V[wanted]
            if np.isfinite(allowed).any():
                logits_V[:] = -np.inf
                logits_V[wanted] = allowed

    def _choice(self, sequence: _Sequence, logits_V: Floats, uniform: float) -> int:
        """The token that these logits would give."""
        top_p = sequence.request.sampling.top_p
        shares = np.array([top_p]) if top_p < 1.0 else None
        ids, _ = self.sampler.sample(logits_V[None], np.array([sequence.temperature]), np.array([uniform]), None, shares)
        return int(ids[0])

    def _dial_override(self, sequence: _Sequence, token: int) -> DialOverride:
        """Whether the bias, where there was one, changed the decision, and which way."""
        free, sequence.free_choice = sequence.free_choice, None
        if free is None:
            return ""
        starts = self._help_ids[sequence.follower.pending or ""] if sequence.guide is None else np.array([sequence.guide.ask])
        asks, would_ask = bool((starts == token).any()), bool((starts == free).any())
        return "" if asks == would_ask else "to ask" if asks else "not to ask"

    def _take(self, sequence: _Sequence, token: int, logprob: float) -> bool:
        """Append a token to its response, and what its form writes after it; true when the response is over."""
        piece, guide = self._tokens.pieces[token], sequence.guide
        sequence.overridden = self._dial_override(sequence, token) or sequence.overridden
        if guide is not None:
            guide.accept(token)
            ends = False
        else:
            if sequence.overridden == "to ask":
                piece = sequence.follower.request_text.encode()
            if sequence.follower.pending == "" and not self._help.is_space[token]:
                sequence.decided = True
            if sequence.filter is not None and not sequence.stuck:
                sequence.filter.accept(token)
            sequence.follower.add(token, self._tokens.texts[token])
            ends = self._tokens.ends[token] or sequence.overridden == "to ask"
        rest = None if guide is None else guide.rest
        sequence.add(token, logprob, piece)
        if sequence.drafts and (ends or len(sequence.token_ids) >= sequence.limit):
            self._add_text(sequence, last=False)
            return self._end_draft(sequence, ends)
        finish = sequence.finish_reason(ends) if rest is None else FinishReason.EOS
        stopped = self._add_text(sequence, finish is not None and not rest)
        sequence.logits_V = None  # what the form writes by itself has no other chances
        for place, one in enumerate(rest or (), 1):
            if stopped:
                break
            sequence.places.append(FORCED)
            sequence.add(one, 0.0, self._tokens.pieces[one])
            stopped = self._add_text(sequence, place == len(rest or ()))
        if stopped:
            finish = FinishReason.STOP
        if finish is None:
            return False
        sequence.request.finish_one(sequence.index, sequence.response(finish))
        return True

    def _add_text(self, sequence: _Sequence, last: bool) -> bool:
        """Put the newest token into the text; true when a stop string ended it."""
        token, logprob = sequence.token_ids[-1], sequence.logprobs[-1]
        if sequence.occurrences is not None:
            sequence.occurrences[token] += 1
        if sequence.detokenizer is None:
            return False
        top, scored = sequence.request.sampling.top_logprobs, None
        if top is not None and sequence.logits_V is not None:
            scored = self._scored(token, logprob, sequence.logits_V, top)
        elif top is not None:
            scored = ScoredToken(token, self.piece(token), logprob, True)
        if sequence.drafts:
            sequence.unseen.append((sequence.pieces[-1], scored))
            return False
        return sequence.detokenizer.add(sequence.pieces[-1], scored, last)


def in_common(some: Sequence[int], others: Sequence[int]) -> int:
    """With how many equal tokens both begin."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False)))
