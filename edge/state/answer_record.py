"""What a person asks and what is kept of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge.core.types import NO_WISHES, ONLY_TEXT, AnswerForm, BeyondText, Message, Mode, SamplingWishes, ScoredToken, ToolUse

if TYPE_CHECKING:
    from edge.state.events import Source


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """One question with its conversation, whose last message is the user's. None leaves a choice to the agent's settings.

    `task` is the label whose budget, dial and price apply. `id`: the record's id ("": a new one is made). `beyond`: tools and the like.
    `wishes` are for local text. `no_cloud`: why whoever asks keeps this one from the cloud, whatever the mode ("": they do not). `form` is
    what the content must have; `tools` is how a local model calls those of `beyond` (None: it cannot).
    """

    messages: tuple[Message, ...]
    mode: Mode | None = None
    id: str = ""
    task: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    beyond: BeyondText = ONLY_TEXT
    wishes: SamplingWishes = NO_WISHES
    no_cloud: str = ""
    form: AnswerForm | None = None
    tools: ToolUse | None = None
    reasoned: bool = False
    """The local answer is to be reasoned, where plain ones are usual."""
    options: tuple[str, ...] = ()
    """A plain local answer is one of these; (): any."""


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """What `edge-agent why ID` explains.

    text: all that was streamed, think part included. final: the answer part for a person (last boxed or answer tags stripped).
    source: local, cloud, or local-fallback (asked, but could not or might not; continued locally). reason: why, in one line.
    help_log_odds (nats) at the first decision, None when none was reached. dual λ and `*_left` as last reported by the coordinator, None
    when unknown or unlimited. latency_s from the request to the last token. local_text is y^θ, cloud_text y^c. finish: stop or length, or
    as the cloud LLM ended (tool_calls, content_filter). openai_json: what its completion had beyond text, with its calls of tools.
    cloud_tokens are those that the cloud billed for its answer, cloud_output_tokens the part that it wrote.
    prompt_tokens counts what the local model read first, 0 when it was not asked. task and target_rate: the label and its dial's τ (None:
    the model decided alone). prompt: the last message as it was asked. call_key: under which the coordinator's ledger has the call.
    turns: messages of the conversation, the last one included; a question among others may not be one by itself.
    asked: the model asked for help, or in prefer-local its answer was unusable. call_state: "" no call, completed, refused, failed,
    unsettled (its end is not known yet), or what it turned out to be later: refunded, in_doubt, never_arrived. local_latency_s: seconds of
    local generation; cloud_latency_s: seconds of the cloud call, None without one; first_token_s: until the first text was shown. quota:
    what might still be asked when the answer was finished, see edge/budget/quota.py. cached: the cloud's answer had been paid for before.
    question_chars: characters that a cloud call for it sends, or would have sent.
    might_ask: the model was free to ask; False where the cloud was paused or off, or only the cloud could follow what was wanted.
    held: the request gave a form or tools, which no training question has.
    """

    id: str
    source: Source
    text: str
    final: str
    help_log_odds: float | None
    dual: float | None
    calls_left: int | None
    tokens_left: int | None
    spend_left_uusd: int | None
    adapter_version: int
    reason: str
    latency_s: float
    local_text: str
    cloud_text: str
    model: str = ""
    cloud_model: str = ""
    cloud_tokens: int = 0
    charged_uusd: int = 0
    created_at: float = 0.0
    finish: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    mode: str = "auto"
    help_bias: float = 0.0
    task: str = ""
    target_rate: float | None = None
    prompt: str = ""
    call_key: str = ""
    turns: int = 1
    openai_json: str = ""
    asked: bool = False
    call_state: str = ""
    local_latency_s: float = 0.0
    cloud_latency_s: float | None = None
    first_token_s: float | None = None
    quota: Mapping[str, Any] | None = None
    cached: bool = False
    might_ask: bool = True
    cloud_output_tokens: int = 0
    question_chars: int = 0
    held: bool = False
    form: str = ""
    """Of the local answer: reasoned, plain, held (to what the request gave), or "" where it was free."""
    doubt: float | None = None
    """a·u: what of help_log_odds is the model's doubt in its answer (nats); None where that had no part in the decision."""
    stop: str = ""
    """The stop string of the request that ended the local answer, "" where none did."""
    prompt_cached: int = 0
    """How many of prompt_tokens an earlier conversation had read."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class TaskStanding:
    """What holds for a task before its next answer: the adapter that serves, λ, the dial's τ, and what is left as last reported."""

    task: str = ""
    adapter_version: int = 0
    dual: float | None = None
    target_rate: float | None = None
    calls_left: int | None = None
    tokens_left: int | None = None
    spend_left_uusd: int | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """A piece of streamed text; the last one carries the record. `source` is where the piece comes from.

    `tokens` are the local ones that end in it, where `AnswerRequest.wishes` asked for them, with offsets in the streamed text.
    `verbatim`: it is content in the form that was asked for, in which tags are text.
    """

    text: str
    source: Source = "local"
    record: AnswerRecord | None = None
    tokens: tuple[ScoredToken, ...] = ()
    verbatim: bool = False
