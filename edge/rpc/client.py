"""The role of a coordinator client, in plain values.

Contract (tests/contracts/test_coordinator_client.py): every method raises a CoordinatorError of edge.core.errors and nothing else;
`complete` is idempotent by `call_key`; `open_step` by (task, step); `close_step` applies the dual update exactly once and a repeated
call returns the first answer. Retries (only of UNAVAILABLE and of RATE_LIMITED after its delay, with the same key) happen inside, within
`deadline_s`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from edge.core.types import Message, TokenUsage


@dataclass(frozen=True, slots=True)
class TaskTerms:
    """What a task label is held to: target_rate τ in [0, 1], dual λ, and the next step the coordinator expects."""

    task: str
    target_rate: float
    dual: float
    next_step: int


@dataclass(frozen=True, slots=True)
class Registration:
    """Answer to RegisterDevice."""

    device_id: str
    protocol_version: int
    tasks: tuple[TaskTerms, ...]


@dataclass(frozen=True, slots=True)
class StepOpened:
    """Answer to OpenStep: λ and τ for the whole step, and how many cloud calls it may make (None: no step limit)."""

    task: str
    step: int
    dual: float
    target_rate: float
    call_credit: int | None


@dataclass(frozen=True, slots=True)
class StepUnits:
    """The responses of a step."""

    total: int
    help: int
    """Validly asked."""
    uncalled: int = 0
    """Of `help`, in groups that the cloud was not called for."""
    own_rate: float | None = None
    """What λ acts on in place of help / total: the share that would have asked without the help bias, by cost where λ acts on cost.
    None: there was no bias, and λ acts on calls."""


@dataclass(frozen=True, slots=True)
class StepClosed:
    """Answer to CloseStep: λ before and after, Ĵ_c as the coordinator computed it, and what did not add up."""

    task: str
    step: int
    dual_before: float
    dual_after: float
    assist_rate: float
    discrepancies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BudgetSnapshot:
    """One version of a device's budget. Limits are None where there is none; spend in micro-USD.

    `*_period`: the period of the calendar (UTC) that a limit holds for (edge.core.periods); "" where there is no limit.
    """

    version: int
    dual: float
    target_rate: float
    calls: int
    calls_limit: int | None
    tokens: int
    tokens_limit: int | None
    spend_uusd: int
    spend_limit_uusd: int | None
    calls_period: str = ""
    tokens_period: str = ""
    spend_period: str = ""


def question_chars(messages: Sequence[Message]) -> int:
    """The characters that a call sends: by them its cost is expected."""
    return sum(len(message.content) for message in messages)


@dataclass(frozen=True, slots=True)
class CloudCall:
    """One request for a cloud completion."""

    call_key: str
    task: str
    step: int
    """-1: outside training (serving)."""
    prompt_id: str
    help_units: int
    """Responses of the group that asked."""
    messages: tuple[Message, ...]
    max_output_tokens: int
    model_alias: str = "default"
    temperature: float | None = None
    """None: the cloud LLM's own."""
    openai_json: str = ""
    """What of OpenAI's request `messages` cannot carry, see openai_fields; its own `messages`, where there are any, are sent instead.
    An upstream that cannot take it answers InvalidRequest, before anything is held."""


@dataclass(frozen=True, slots=True)
class CloudCompletion:
    """The cloud LLM's answer."""

    call_key: str
    text: str
    usage: TokenUsage
    charged_uusd: int
    """Micro-USD."""
    cached: bool
    """Answered from the cache without a new charge."""
    model: str
    budget: BudgetSnapshot | None = None
    openai_json: str = ""
    """Why it ended and, where the cloud LLM calls tools, its calls, see openai_fields."""


@dataclass(frozen=True, slots=True)
class CloudDelta:
    """A piece of a streamed completion; the last one carries the whole completion."""

    text: str
    completion: CloudCompletion | None = None


class CallProgress(StrEnum):
    """The state of a call. DROPPED: it waited for its turn and is gone, uncharged; RUNNING: sent, it will be settled by itself."""

    DROPPED = "dropped"
    RUNNING = "running"
    COMPLETED = "completed"
    REFUNDED = "refunded"
    FAILED = "failed"
    IN_DOUBT = "in_doubt"


@dataclass(frozen=True, slots=True)
class CancelledCall:
    """Answer to CancelCall: what became of the call, and what it has cost so far in micro-USD (cancelling takes nothing back)."""

    call_key: str
    progress: CallProgress
    charged_uusd: int


class CoordinatorClient(Protocol):
    """The agent's view of the coordinator."""

    async def register(self, agent_version: str, tasks: Sequence[str]) -> Registration:
        """Announce this device; returns the task terms of each label."""
        ...

    async def open_step(self, task: str, step: int, planned_prompts: int, group_size: int, target_rate: float) -> StepOpened:
        """Open a learning step. `target_rate` is the phase's τ, applied by a coordinator that lets the device set it."""
        ...

    async def complete(self, call: CloudCall, deadline_s: float) -> CloudCompletion:
        """Ask the cloud once."""
        ...

    def stream_complete(self, call: CloudCall, deadline_s: float) -> AsyncIterator[CloudDelta]:
        """Ask the cloud once and stream its answer."""
        ...

    async def get_call(self, call_key: str) -> CloudCompletion:
        """The stored result of an earlier call; never starts work."""
        ...

    async def cancel_call(self, call_key: str) -> CancelledCall:
        """Stop waiting for a call; who waits gets CallCancelled. Raises NotFound."""
        ...

    async def close_step(self, task: str, step: int, units: StepUnits) -> StepClosed:
        """Report a step and move λ, which acts on `own_rate` where there is one, else on help / total."""
        ...

    async def get_budget(self, task: str) -> BudgetSnapshot:
        """The current budget of this device for one task."""
        ...

    def watch_budget(self, task: str) -> AsyncIterator[BudgetSnapshot]:
        """The budget now, then each new version, the newest only, until closed or refused; connections that break are made again."""
        ...

    async def aclose(self) -> None:
        """Close the connection. Safe to call twice."""
        ...


_compact_json = json.JSONEncoder(separators=(",", ":")).encode


def fingerprint(call: CloudCall) -> str:
    """A digest of a call's content: all but its key, and but the number of responses that wait for it (a group made again after a
    crash on other hardware may count differently, and must still get the answer it paid for)."""
    turns = [[message.role, message.content] for message in call.messages]
    content = [call.task, call.step, call.prompt_id, call.model_alias, turns, call.max_output_tokens]
    return digest([*content, *sampling_part(call)])


def sampling_part(call: CloudCall) -> list[str | None]:
    """What temperature and OpenAI's fields add to a digest: no temperature is another question than any; no fields add nothing."""
    return [hex_of(call.temperature), *([call.openai_json] if call.openai_json else [])]


def hex_of(temperature: float | None) -> str | None:
    """A temperature in a digest."""
    return None if temperature is None else temperature.hex()


def digest(value: list[object]) -> str:
    """SHA-256 of the value as compact JSON, in hexadecimal."""
    return hashlib.sha256(_compact_json(value).encode("ascii")).hexdigest()
