"""Answering one person. Knows the order local -> ask -> cloud -> fallback and records each answer; knows nothing of HTTP or gRPC.

Local text is streamed as it is sampled, except that what could turn out to be a help request is held back until it is known. When the
model asks and may, the cloud's text follows in the same stream; when it may not, cannot, or the cloud fails, the local model goes on
with the help phrase suppressed, and the record says which.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from edge.agent.beyond_text import UNFOLLOWED, finish_of, refusal_of
from edge.agent.dial import HelpDial, Setting
from edge.agent.dials import DialBook
from edge.agent.doubts import UNSETTLED, CallsInDoubt
from edge.agent.events import AnswerFinished, Source
from edge.agent.gate import ServingGate
from edge.agent.hints import Cut, with_hint
from edge.agent.hold_back import HelpHoldBack
from edge.agent.link import WatchedClient
from edge.agent.quota import Quotas
from edge.agent.record import AnswerDelta, AnswerRecord, AnswerRequest, Standing
from edge.agent.state import StateFolder
from edge.agent.streams import closing
from edge.agent.switch import CloudSwitch
from edge.agent.token_line import TokenLine
from edge.config.schema import Mode
from edge.core.clock import Clock
from edge.core.errors import (
    BudgetExhausted,
    CoordinatorError,
    InvalidRequest,
    PermissionDenied,
    RateLimited,
    Unauthenticated,
    Unpriced,
    UsageError,
    Withheld,
)
from edge.core.events import EventSink
from edge.core.types import FinishReason, LocalResponse, Message, Sampling
from edge.dagrpo.answers import answer_part, last_boxed, shown_answer
from edge.dagrpo.composition import local_part
from edge.dagrpo.format import check_format, help_trigger_span
from edge.dagrpo.prompts import SYSTEM_PROMPT
from edge.inference.backend import InferenceBackend
from edge.privacy.cutting import private_cut
from edge.rpc.client import CallProgress, CloudCall, CloudCompletion

OFFLINE_DEADLINE_S = 2.0
"""How long a person waits for a coordinator that was away at the last attempt."""
UNLIMITED_STEPS = 64
"""Step limit when none is configured; free conversation has none of its own."""
_NOT_CHARGED = (RateLimited, Unpriced, InvalidRequest, PermissionDenied, Unauthenticated, Withheld)
"""Refusals of the call itself; after any other failure the coordinator is asked what became of it."""


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How people are answered. `switched_off`: why the cloud may not be asked as long as this process runs ("" when it may). `hint_chars`:
    how much of the local response goes along when it is."""

    mode: Mode
    task: str
    temperature: float
    max_tokens: int
    max_steps: int | None
    prompt_form: str
    cloud_prompt_form: str
    max_output_tokens: int
    cloud_deadline_s: float
    model_alias: str = "default"
    switched_off: str = ""
    hint_chars: int = 0
    hint_cut: Cut = private_cut


@dataclass(slots=True)
class _Draft:
    """One answer while it grows."""

    request: AnswerRequest
    id: str
    task: str
    mode: Mode
    sampling: Sampling
    began_at: float
    began: float
    text: str = ""
    local_text: str = ""
    cloud_text: str = ""
    source: Source = "local"
    reason: str = "answered on this device"
    responses: list[LocalResponse] = field(default_factory=list)
    prompt_tokens: int = 0
    completion: CloudCompletion | None = None
    line: TokenLine = field(default_factory=TokenLine)
    asked: bool = False
    call_key: str = ""
    call_state: str = ""
    local_s: float = 0.0
    cloud_s: float | None = None
    first_token_s: float | None = None


@dataclass(frozen=True, slots=True)
class CloudAccess:
    """What decides whether the cloud is asked for people, and counts it: switch, dials, quotas, calls whose end is not known."""

    switch: CloudSwitch
    dials: DialBook
    quotas: Quotas
    doubts: CallsInDoubt


Pieces = AsyncGenerator[AnswerDelta, None]

_THINK_PART = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_CUT_TAG = re.compile(r"</?(?:think|answer)>|</?[a-z]{0,6}\Z")

_MOST_RESTRICTIVE_FIRST: tuple[Mode, ...] = ("local-only", "prefer-local", "auto", "cloud-only")


class Answerer:
    """Streams answers; any number at once."""

    def __init__(
        self,
        backend: InferenceBackend,
        client: WatchedClient,
        state: StateFolder,
        gate: ServingGate,
        access: CloudAccess,
        sink: EventSink,
        clock: Clock,
        settings: AnswerSettings,
        new_id: Callable[[], str] = lambda: secrets.token_hex(6),
    ) -> None:
        self._backend = backend
        self._client = client
        self._state = state
        self._gate = gate
        self._access = access
        self._sink = sink
        self._clock = clock
        self._settings = settings
        self._new_id = new_id
        self.answers = 0

    async def stream(self, request: AnswerRequest) -> AsyncGenerator[AnswerDelta, None]:
        """Answer a conversation whose last message is the user's. Raises CoordinatorError only in mode cloud-only."""
        if not request.messages or request.messages[-1].role != "user" or not request.messages[-1].content.strip():
            raise UsageError("the last message must be the user's and not empty")
        draft = self._draft(request)
        with self._gate.serving(), self._access.doubts.waited_for(lambda: draft.call_key):
            async with closing(self._answered(draft)) as pieces:
                async for piece in pieces:
                    if piece.text and draft.first_token_s is None:
                        draft.first_token_s = self._clock.monotonic() - draft.began
                    draft.text += piece.text
                    tokens = draft.line.until(len(draft.text))
                    yield replace(piece, tokens=tokens) if tokens else piece
            record = self._recorded(draft)
        yield AnswerDelta("", record.source, record)

    async def answer(self, request: AnswerRequest) -> AnswerRecord:
        """The whole answer at once."""
        async with closing(self.stream(request)) as pieces:
            async for piece in pieces:
                if piece.record is not None:
                    return piece.record
        raise AssertionError("a stream ends with a record")

    def standing(self, task: str | None = None) -> Standing:
        """What holds before the next answer of a task (None: the one people's questions use)."""
        label = task or self._settings.task
        quota = self._access.quotas.now(label, self._backend.adapter_version)
        return Standing(
            task=label,
            adapter_version=self._backend.adapter_version,
            dual=quota.dual,
            target_rate=quota.target_rate,
            calls_left=quota.calls_left,
            tokens_left=quota.tokens_left,
            spend_left_uusd=quota.spend_left_uusd,
        )

    def _draft(self, request: AnswerRequest) -> _Draft:
        settings = self._settings
        task = request.task or settings.task
        sampling = Sampling(
            temperature=settings.temperature if request.temperature is None else request.temperature,
            max_tokens=min(request.max_tokens or settings.max_tokens, settings.max_tokens),
            max_steps=settings.max_steps,
        )
        return _Draft(
            request=request,
            id=request.id or self._new_id(),
            task=task,
            mode=agreed_mode(request.mode, settings.mode),
            sampling=request.wishes.granted(sampling),
            began_at=self._clock.now(),
            began=self._clock.monotonic(),
        )

    def _answered(self, draft: _Draft) -> Pieces:
        if draft.request.beyond.wants:
            return self._beyond_the_slm(draft)
        if draft.mode == "cloud-only":
            return self._from_the_cloud(draft)
        if draft.mode == "auto" and not self._access.switch.reason:
            return self._as_the_model_decides(draft)
        return self._without_asking(draft)

    async def _from_the_cloud(self, draft: _Draft) -> Pieces:
        if off := self._access.switch.reason:
            raise UsageError(f"mode cloud-only is not possible: {off}")
        draft.reason = "mode cloud-only"
        async with closing(self._cloud_pieces(draft)) as pieces:
            async for piece in pieces:
                yield piece

    async def _as_the_model_decides(self, draft: _Draft) -> Pieces:
        hold, dial = HelpHoldBack(), self._access.dials.of(draft.task)
        setting = dial.setting(self._backend.adapter_version)
        draft.sampling = replace(draft.sampling, help_bias=setting.bias)
        async with closing(self._local_pieces(draft, draft.sampling)) as texts:
            async for text in texts:
                yield AnswerDelta(hold.feed(text))
        draft.asked = self._asks(draft)
        _tell(dial, draft, setting)
        if not draft.asked:
            yield AnswerDelta(hold.rest())
            return
        start, end = help_trigger_span(draft.local_text) or (hold.sent, hold.sent)
        yield AnswerDelta(draft.local_text[hold.sent : start])
        failure = ""
        try:
            async with closing(self._cloud_pieces(draft)) as pieces:
                async for piece in pieces:
                    yield piece
            draft.reason = "the model asked for help"
            yield AnswerDelta(draft.local_text[end:], "cloud")
        except CoordinatorError as error:
            failure = _why_not(error)
        if failure:
            async with closing(self._locally_after_all(draft, failure)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _locally_after_all(self, draft: _Draft, failure: str) -> Pieces:
        """Go on where the request for help stood, with the help phrase impossible."""
        draft.source, draft.reason, draft.cloud_text = "local-fallback", f"the model asked for help, but {failure}", ""
        prefix = local_part(draft.local_text)
        draft.local_text = prefix
        async with closing(self._local_pieces(draft, replace(draft.sampling, suppress_help=True), prefix)) as texts:
            async for text in texts:
                yield AnswerDelta(text, "local-fallback")

    async def _beyond_the_slm(self, draft: _Draft) -> Pieces:
        """Tools and the like, which only the cloud follows: it is asked at once where that is allowed. What must be followed has no
        local answer. Raises Unsupported where the cloud is not asked here, and CoordinatorError where it fails."""
        beyond = draft.request.beyond
        wanted, demanded = " and ".join(beyond.wants), bool(beyond.required) or draft.mode == "cloud-only"
        why = self._access.switch.reason or ("mode local-only" if draft.mode == "local-only" else "")
        if why and demanded:
            raise refusal_of(beyond, why)
        if not why:
            try:
                async with closing(self._cloud_pieces(draft)) as pieces:
                    async for piece in pieces:
                        yield piece
                draft.reason = f"{wanted}: only the cloud follows this"
                return
            except CoordinatorError as error:
                if demanded:
                    raise
                why, draft.source, draft.cloud_text = _why_not(error), "local-fallback", ""
        draft.reason = f"{why}; {wanted} {UNFOLLOWED}"
        async with closing(self._local_pieces(draft, replace(draft.sampling, suppress_help=True))) as texts:
            async for text in texts:
                yield AnswerDelta(text, draft.source)

    async def _without_asking(self, draft: _Draft) -> Pieces:
        """Mode local-only, prefer-local or the kill switch: help suppressed; prefer-local asks when the local answer is unusable."""
        off = self._access.switch.reason
        draft.reason = off or f"mode {draft.mode}"
        async with closing(self._local_pieces(draft, replace(draft.sampling, suppress_help=True))) as texts:
            async for text in texts:
                yield AnswerDelta(text)
        _tell(self._access.dials.of(draft.task), draft, None)
        if draft.mode != "prefer-local" or off or self._usable(draft):
            return
        draft.asked = True
        try:
            yield AnswerDelta("\n")
            async with closing(self._cloud_pieces(draft)) as pieces:
                async for piece in pieces:
                    yield piece
            draft.reason = "mode prefer-local: the local answer was unusable"
        except CoordinatorError as error:
            draft.source, draft.reason = "local-fallback", f"the local answer is unusable, but {_why_not(error)}"

    async def _local_pieces(self, draft: _Draft, sampling: Sampling, prefix: str = "") -> AsyncGenerator[str, None]:
        messages, began = local_messages(draft.request.messages, self._settings.prompt_form), self._clock.monotonic()
        draft.line.begin(len(draft.text))
        async with closing(self._backend.stream(messages, sampling, draft.request.seed, prefix)) as deltas:
            async for delta in deltas:
                draft.line.add(delta.tokens)
                if delta.response is not None:
                    draft.local_s += self._clock.monotonic() - began
                    draft.responses.append(delta.response)
                    draft.prompt_tokens = draft.prompt_tokens or delta.prompt_tokens
                if delta.text:
                    draft.local_text += delta.text
                    yield delta.text

    async def _cloud_pieces(self, draft: _Draft) -> Pieces:
        settings = self._settings
        draft.line.begin()
        draft.call_key, draft.call_state = f"{self._state.run_id}-{draft.id}", UNSETTLED
        call = CloudCall(
            call_key=draft.call_key,
            task=draft.task,
            step=-1,
            prompt_id=draft.id,
            help_units=1,
            messages=with_hint(
                conversation_for_the_cloud(draft.request.messages, settings.cloud_prompt_form),
                draft.local_text,
                settings.hint_chars,
                settings.hint_cut,
            ),
            max_output_tokens=settings.max_output_tokens,
            model_alias=settings.model_alias,
            openai_json=draft.request.beyond.openai_json,
        )
        deadline_s = settings.cloud_deadline_s if self._client.online else min(OFFLINE_DEADLINE_S, settings.cloud_deadline_s)
        with self._settling(draft):
            async with closing(self._client.stream_complete(call, deadline_s)) as deltas:
                async for delta in deltas:
                    if delta.completion is not None:
                        draft.completion, draft.source = delta.completion, "cloud"
                        draft.call_state = CallProgress.COMPLETED.value
                    if delta.text:
                        draft.cloud_text += delta.text
                        yield AnswerDelta(delta.text, "cloud")

    @contextmanager
    def _settling(self, draft: _Draft) -> Iterator[None]:
        """Around a call: noted on disk before it is sent, and what is known of its end afterwards."""
        access, began = self._access, self._clock.monotonic()
        access.doubts.begin(replace(self._record(draft), reason="cut off while the cloud was asked"))
        try:
            yield
            access.quotas.answered(draft.task)
        except BudgetExhausted as error:
            draft.call_state = "refused"
            access.doubts.forget(draft.call_key)
            access.quotas.refused(draft.task, str(error))
            raise
        except _NOT_CHARGED:
            draft.call_state = CallProgress.FAILED.value
            access.doubts.forget(draft.call_key)
            raise
        finally:
            draft.cloud_s = self._clock.monotonic() - began

    def _asks(self, draft: _Draft) -> bool:
        last = draft.responses[-1] if draft.responses else None
        if last is None or last.finish is not FinishReason.EOS:
            return False
        return check_format(draft.local_text, self._settings.max_steps or UNLIMITED_STEPS).asks_help

    def _usable(self, draft: _Draft) -> bool:
        if draft.responses and draft.responses[-1].finish is FinishReason.STOP:
            return True
        return check_format(draft.local_text, self._settings.max_steps or UNLIMITED_STEPS).ok

    def _recorded(self, draft: _Draft) -> AnswerRecord:
        record = self._record(draft)
        self._state.put_request(record.id, record.created_at, record.to_json(), beside=lambda: self._settled(draft))
        self.answers += 1
        self._sink.emit(
            AnswerFinished(
                record.id,
                record.source,
                record.reason,
                record.help_log_odds,
                record.dual,
                record.adapter_version,
                record.latency_s,
                record.cloud_tokens,
                record.charged_uusd,
            )
        )
        return record

    def _settled(self, draft: _Draft) -> None:
        """What is written together with a record: the dial that learned from it, the budget, and the end of its call."""
        access = self._access
        access.dials.save(access.dials.of(draft.task))
        access.quotas.save(draft.task)
        if draft.call_key and draft.call_state != UNSETTLED:
            access.doubts.cross_out(draft.call_key)

    def _record(self, draft: _Draft) -> AnswerRecord:
        quota = self._access.quotas.now(draft.task, self._backend.adapter_version)
        first = draft.responses[0] if draft.responses else None
        last = draft.responses[-1] if draft.responses else None
        usage = draft.completion.usage if draft.completion else None
        told = draft.completion.openai_json if draft.completion and draft.source == "cloud" else ""
        shown = draft.cloud_text if draft.source == "cloud" else draft.text
        cut = draft.source != "cloud" and last is not None and last.finish in (FinishReason.LENGTH, FinishReason.STOP)
        return AnswerRecord(
            id=draft.id,
            source=draft.source,
            text=draft.text,
            final=cut_answer(shown) if cut else shown_answer(shown),
            help_log_odds=first.help_log_odds if first else None,
            dual=quota.dual,
            calls_left=quota.calls_left,
            tokens_left=quota.tokens_left,
            spend_left_uusd=quota.spend_left_uusd,
            adapter_version=last.adapter_version if last else self._backend.adapter_version,
            reason=draft.reason,
            latency_s=self._clock.monotonic() - draft.began,
            local_text=draft.local_text,
            cloud_text=draft.cloud_text,
            model=self._backend.model.name,
            cloud_model=draft.completion.model if draft.completion else "",
            cloud_tokens=usage.input_tokens + usage.output_tokens if usage else 0,
            charged_uusd=draft.completion.charged_uusd if draft.completion else 0,
            created_at=draft.began_at,
            finish=finish_of(told) or ("length" if cut and last is not None and last.finish is FinishReason.LENGTH else "stop"),
            prompt_tokens=draft.prompt_tokens,
            completion_tokens=sum(len(response.token_ids) for response in draft.responses),
            mode=draft.mode,
            help_bias=draft.sampling.help_bias,
            task=draft.task,
            target_rate=quota.target_rate,
            prompt=draft.request.messages[-1].content,
            turns=sum(message.role != "system" for message in draft.request.messages),
            call_key=draft.call_key,
            asked=draft.asked,
            call_state=draft.call_state,
            local_latency_s=draft.local_s,
            cloud_latency_s=draft.cloud_s,
            first_token_s=draft.first_token_s,
            quota=quota.to_json(),
            openai_json=told,
        )


def _tell(dial: HelpDial, draft: _Draft, setting: Setting | None) -> None:
    """Tell the dial of a local answer; without a setting asking was impossible."""
    response = draft.responses[-1] if draft.responses else None
    if response is None:
        return
    if setting is None:
        dial.seen(response.help_log_odds, response.adapter_version)
    else:
        dial.answered(setting, draft.asked, response.help_log_odds, response.adapter_version)


def agreed_mode(asked: Mode | None, own: Mode) -> Mode:
    """The mode of one answer. The more restrictive side wins, except that cloud-only is a demand that only a switch-off refuses."""
    if asked is None or asked == "cloud-only":
        return asked or own
    return min(asked, own, key=_MOST_RESTRICTIVE_FIRST.index)


def local_messages(messages: Sequence[Message], prompt_form: str) -> tuple[Message, ...]:
    """What the SLM reads: the last question alone for "compact" models, else the conversation under the system prompt."""
    if prompt_form == "compact":
        return (messages[-1],)
    own = "\n\n".join(message.content for message in messages if message.role == "system")
    system = f"{SYSTEM_PROMPT}\n\n{own}" if own else SYSTEM_PROMPT
    return (Message("system", system), *(message for message in messages if message.role != "system"))


def conversation_for_the_cloud(messages: Sequence[Message], prompt_form: str) -> tuple[Message, ...]:
    """What the cloud LLM reads: the last question alone for "compact" ones, else the conversation as it came."""
    return (messages[-1],) if prompt_form == "compact" else tuple(messages)


def cut_answer(text: str) -> str:
    """What a person may read of a response that was cut off: its answer as far as it came, "" inside the think part; no tags."""
    if (answer := last_boxed(text) or answer_part(text)) is not None:
        return answer
    return _CUT_TAG.sub("", _THINK_PART.sub("", text)).strip()


def _why_not(error: CoordinatorError) -> str:
    if isinstance(error, BudgetExhausted):
        return f"the budget is used up ({error}); answered on this device"
    if isinstance(error, InvalidRequest):
        return f"the coordinator cannot take it ({error}); answered on this device"
    if isinstance(error, Withheld):
        return f"nothing was sent ({error}); answered on this device"
    return f"the cloud cannot be reached ({error}); answered on this device"
