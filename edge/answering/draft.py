"""An answer while it grows, the settings under which it does, and its record."""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from edge.budget.access import CloudAccess
from edge.cloud.hints import Cut
from edge.cloud.place import CloudPlace
from edge.cloud.unconfirmed import UNSETTLED
from edge.core.clock import Clock
from edge.core.events import EventSink
from edge.core.forms import PlainForm, ReasonedForm, ResponseForm
from edge.core.types import DialOverride, FinishReason, LocalResponse, Mode, Sampling, ScoredToken
from edge.inference.backend import InferenceBackend
from edge.inference.channels import readable_answer
from edge.privacy.registry import private_cut
from edge.rpc.client import CloudCompletion
from edge.state.answer_record import AnswerDelta, AnswerRecord, AnswerRequest
from edge.state.events import AnswerFinished, Notice, Source
from edge.state.folder import StateFolder

REASONED_STEPS = 8
"""Step limit of a reasoned answer when none is configured."""


class AnswerTokens:
    """Tokens that wait for their text. Offsets count from the beginning of the answer."""

    def __init__(self) -> None:
        self._waiting: deque[ScoredToken] = deque()
        self._base = 0

    def begin(self, base: int = 0) -> None:
        """A text begins at this offset; what waits belongs to text that was taken back."""
        self._waiting.clear()
        self._base = base

    def add(self, tokens: Sequence[ScoredToken]) -> None:
        """The next tokens, with offsets in the text that `begin` announced."""
        for token in tokens:
            self._waiting.append(replace(token, start=self._base + token.start, end=self._base + token.end))

    def until(self, shown: int) -> tuple[ScoredToken, ...]:
        """The tokens that end in the first `shown` characters, each once."""
        out = []
        while self._waiting and self._waiting[0].end <= shown:
            out.append(self._waiting.popleft())
        return tuple(out)


Pieces = AsyncGenerator[AnswerDelta, None]
"""An answer as it is streamed."""


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How people are answered."""

    mode: Mode
    task: str
    temperature: float | None
    """None: 0 on this device, and the cloud LLM's own default there."""
    max_tokens: int
    max_steps: int | None
    prompt_form: str
    cloud_prompt_form: str
    max_output_tokens: int
    cloud_deadline_s: float
    model_alias: str = "default"
    switched_off: str = ""
    """Why the cloud may not be asked as long as this process runs; "" when it may."""
    hint_chars: int = 0
    """How much of the local response is sent along with a cloud call; 0: nothing."""
    hint_cut: Cut = private_cut
    cloud: CloudPlace = field(default_factory=CloudPlace)
    """Where the cloud is asked, for error messages."""
    guided: bool = False
    """Local answers are plain turns, reasoned ones on request; else they are free, under the model's system prompt."""
    certainty: float = 0.0
    """How much the certainty of a plain answer counts in the decision to ask (Sampling.certainty)."""

    def temperature_of(self, request: AnswerRequest) -> float | None:
        """The temperature that a request asks for, else the configured one; None where neither is set."""
        return self.temperature if request.temperature is None else request.temperature

    def form_of(self, request: AnswerRequest) -> ResponseForm | None:
        """The form of the local answer; None: it is free."""
        if not self.guided:
            return None
        if request.form is not None or request.beyond.wants:
            return PlainForm()
        return ReasonedForm(self.max_steps or REASONED_STEPS) if request.reasoned else PlainForm(request.options)


@dataclass(slots=True)
class AnswerDraft:
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
    prompt_cached: int = 0
    completion: CloudCompletion | None = None
    tokens: AnswerTokens = field(default_factory=AnswerTokens)
    asked: bool = False
    call_key: str = ""
    call_state: str = ""
    local_s: float = 0.0
    cloud_s: float | None = None
    first_token_s: float | None = None
    might_ask: bool = False
    question_chars: int = 0
    content: str = ""
    """The answer alone, where the request gave its form."""
    calls_json: str = ""
    """What the local model's answer has beyond text, as CloudCompletion carries it."""

    @property
    def form(self) -> str:
        """The form of the local answer, whose log-odds can be compared with those of others in it; "" where it is free."""
        if draft_form := self.sampling.form:
            held = self.request.form is not None or bool(self.request.beyond.wants)
            return "held" if held else "reasoned" if isinstance(draft_form, ReasonedForm) else "plain"
        return ""

    @property
    def overridden(self) -> DialOverride:
        """The decision that the budget dial forced in the last local response, "" where it forced none."""
        return self.responses[-1].overridden if self.responses else ""


_UNREADABLE = "no answer can be read from the response; ask again"
_CUT_OFF = "cut off before an answer; allow more tokens"
_FINISHES = frozenset({"stop", "length", "tool_calls", "content_filter"})


def finish_of(openai_json: str) -> str:
    """Why a cloud completion ended, in OpenAI's words; "" where it is missing or another word."""
    reason = json.loads(openai_json).get("finish_reason") if openai_json else None
    return reason if isinstance(reason, str) and reason in _FINISHES else ""


class AnswerRecorder:
    """Makes records of drafts, and keeps the finished ones."""

    def __init__(self, backend: InferenceBackend, state: StateFolder, access: CloudAccess, sink: EventSink, clock: Clock) -> None:
        self._backend = backend
        self._state = state
        self._access = access
        self._sink = sink
        self._clock = clock
        self.answers = 0

    def keep(self, draft: AnswerDraft) -> AnswerRecord:
        """Keep the record of a finished answer, with all that has changed by it, and emit it. Where it cannot be written, the
        record's reason reports that: the answer is given all the same, and its cost is asked for when there is room again."""
        record, access = self.record(draft), self._access

        def in_the_same_transaction() -> None:
            """The dial that counted it, the budget, and the end of its call."""
            access.dials.save(access.dials.of(draft.task))
            access.quotas.save(draft.task)
            if draft.call_key and draft.call_state != UNSETTLED:
                access.unconfirmed.confirm(draft.call_key)

        try:
            self._state.put_request(record.id, record.created_at, record.to_json(), in_the_same_transaction)
        except sqlite3.Error as error:
            failure = f"not recorded, the state folder cannot be written ({error})"
            self._sink.emit(Notice(f"answer {record.id} is {failure}; make room on the disk", self._clock.now()))
            record = replace(record, reason=f"{record.reason}; {failure}")
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

    def record(self, draft: AnswerDraft) -> AnswerRecord:
        """What is known of an answer now."""
        quota = self._access.quotas.now(draft.task, self._backend.adapter_version)
        first = draft.responses[0] if draft.responses else None
        last = draft.responses[-1] if draft.responses else None
        usage = draft.completion.usage if draft.completion else None
        openai_json = draft.completion.openai_json if draft.completion and draft.source == "cloud" else draft.calls_json
        shown = draft.cloud_text if draft.source == "cloud" else draft.text
        ended = last.finish if last is not None and draft.source != "cloud" else None
        finish = finish_of(openai_json) or ("length" if ended is FinishReason.LENGTH else "stop")
        plain = isinstance(draft.sampling.form, PlainForm)
        final, reason = draft.content or readable_answer(shown, plain=plain), draft.reason
        if not final and finish != "tool_calls" and ended is not FinishReason.STOP:
            reason += f"; {_CUT_OFF if finish == 'length' else _UNREADABLE}"
            reason += "" if draft.source == "cloud" else ", or ask the cloud"
        return AnswerRecord(
            id=draft.id,
            source=draft.source,
            text=draft.text,
            final=final,
            help_log_odds=first.help_log_odds if first else None,
            dual=quota.dual,
            calls_left=quota.calls_left,
            tokens_left=quota.tokens_left,
            spend_left_uusd=quota.spend_left_uusd,
            adapter_version=last.adapter_version if last else self._backend.adapter_version,
            reason=reason,
            latency_s=self._clock.monotonic() - draft.began,
            local_text=draft.local_text,
            cloud_text=draft.cloud_text,
            model=self._backend.model.name,
            cloud_model=draft.completion.model if draft.completion else "",
            cloud_tokens=usage.input_tokens + usage.output_tokens if usage else 0,
            charged_uusd=draft.completion.charged_uusd if draft.completion and not draft.completion.cached else 0,
            created_at=draft.began_at,
            finish=finish,
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
            openai_json=openai_json,
            cached=draft.completion is not None and draft.completion.cached,
            might_ask=draft.might_ask,
            cloud_output_tokens=usage.output_tokens if usage else 0,
            question_chars=draft.question_chars,
            held=draft.request.form is not None or bool(draft.request.beyond.wants),
            form=draft.form,
            doubt=first.doubt if first else None,
            stop=last.stop if last and draft.source != "cloud" and last.stop in draft.request.wishes.stops else "",
            prompt_cached=draft.prompt_cached,
        )
