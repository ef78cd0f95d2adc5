"""The one way out of the device: never-send rules, redaction, leak test, entry on disk, sending, and restoring what comes back.

Everything that is sent goes through `EgressClient`, one method a request, each in the order redact, write down, send. What a rule forbids,
what the leak test finds, what is too long to be checked and what cannot be written down raises Withheld, and nothing is sent. The label of
a task and a model's alias are names that both sides have agreed upon: they are sent as they are or not at all.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from google.protobuf.message import Message as WireMessage

from edge.cloud.sent import EgressRequest, SentKind, SentLog
from edge.core.concurrency import closing
from edge.core.errors import CoordinatorUnavailable, InvalidRequest, Withheld
from edge.core.formatting import counted
from edge.core.types import Message
from edge.privacy.registry import PrivacyRegistry, Redacted
from edge.rpc import codec
from edge.rpc.client import (
    BudgetSnapshot,
    CancelledCall,
    CloudCall,
    CloudCompletion,
    CloudDelta,
    CoordinatorClient,
    Registration,
    StepClosed,
    StepOpened,
    StepUnits,
)
from edge.rpc.v1 import budget_pb2, call_pb2

EVALUATION = "eval:"
"""What the prompt ids of an evaluation begin with."""
_RULES_HINT = "edge-agent config show privacy, with the same --config and --set, lists the rules"
_LABELS = frozenset({"call_key", "task", "model_alias"})
_MOST_REMEMBERED = 4096
_LONG_CHARS = 4_000
"""From here on a check takes some milliseconds."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """A call as it may be sent, and its entry."""

    call: CloudCall
    request: EgressRequest
    redacted: Redacted


class EgressClient:
    """`CoordinatorClient` around another one; everything that is sent goes through it."""

    def __init__(self, client: CoordinatorClient, registry: PrivacyRegistry, log: SentLog) -> None:
        self._client = client
        self._registry = registry
        self._log = log
        self._remembered: OrderedDict[str, Redacted] = OrderedDict()

    async def register(self, agent_version: str, tasks: Sequence[str]) -> Registration:
        """Announce this device."""
        self._refuse_labels(tasks)
        payload = codec.encode_register(agent_version, tasks).SerializeToString()
        with self._written_down(EgressRequest("registration", "the agent starts", "RegisterDevice", payload)):
            return await self._client.register(agent_version, tasks)

    async def open_step(self, task: str, step: int, planned_prompts: int, group_size: int, target_rate: float) -> StepOpened:
        """Open a learning step."""
        self._refuse_labels([task])
        payload = codec.encode_open_step(task, step, planned_prompts, group_size, target_rate).SerializeToString()
        with self._written_down(EgressRequest("step report", f"step {step + 1} of task {task} begins", "OpenStep", payload)):
            return await self._client.open_step(task, step, planned_prompts, group_size, target_rate)

    async def close_step(self, task: str, step: int, units: StepUnits) -> StepClosed:
        """Report a step and move λ."""
        self._refuse_labels([task])
        payload = codec.encode_close_step(task, step, units).SerializeToString()
        with self._written_down(EgressRequest("step report", f"step {step + 1} of task {task} is done", "CloseStep", payload)):
            return await self._client.close_step(task, step, units)

    async def complete(self, call: CloudCall, deadline_s: float) -> CloudCompletion:
        """Ask the cloud once. Raises Withheld when the call may not be sent."""
        checked = await self._checked(call, "Complete")  # rules, redaction, leak test
        with self._written_down(checked.request):  # on disk
            completion = await self._client.complete(checked.call, deadline_s)  # sent
        return _restored(completion, checked.redacted)

    async def stream_complete(self, call: CloudCall, deadline_s: float) -> AsyncIterator[CloudDelta]:
        """Ask the cloud once and stream its answer. Raises Withheld when the call may not be sent."""
        checked = await self._checked(call, "StreamComplete")
        restoring = checked.redacted.restoring()
        with self._written_down(checked.request):
            async with closing(self._client.stream_complete(checked.call, deadline_s)) as deltas:
                async for delta in deltas:
                    text = restoring.feed(delta.text)
                    if delta.completion is not None:
                        yield CloudDelta(text + restoring.rest(), _restored(delta.completion, checked.redacted))
                    elif text:
                        yield CloudDelta(text)

    async def get_call(self, call_key: str) -> CloudCompletion:
        """The stored result of an earlier call."""
        self._write_inquiry("GetCall", call_pb2.GetCallRequest(call_key=call_key))
        completion = await self._client.get_call(call_key)
        remembered = self._remembered.get(call_key)
        return completion if remembered is None else _restored(completion, remembered)

    async def cancel_call(self, call_key: str) -> CancelledCall:
        """Stop waiting for a call."""
        self._write_inquiry("CancelCall", call_pb2.CancelCallRequest(call_key=call_key))
        return await self._client.cancel_call(call_key)

    async def get_budget(self, task: str) -> BudgetSnapshot:
        """The current budget of this device for one task."""
        self._refuse_labels([task])
        self._write_inquiry("GetBudget", budget_pb2.GetBudgetRequest(task=task))
        return await self._client.get_budget(task)

    async def watch_budget(self, task: str) -> AsyncIterator[BudgetSnapshot]:
        """The budget, then each new version."""
        self._refuse_labels([task])
        self._write_inquiry("WatchBudget", budget_pb2.WatchBudgetRequest(task=task))
        async with closing(self._client.watch_budget(task)) as budgets:
            async for budget in budgets:
                yield budget

    async def aclose(self) -> None:
        """Write what is still counted and close the connection."""
        self._log.flush()
        await self._client.aclose()

    async def _checked(self, call: CloudCall, method: str) -> _Checked:
        """A call ready to be sent; a long conversation is checked on a thread, so that others are served meanwhile."""
        if _chars_of(call) < _LONG_CHARS:
            return self._check(call, method)
        return await asyncio.to_thread(self._check, call, method)

    def _check(self, call: CloudCall, method: str) -> _Checked:
        """Rules, redaction, leak test. Raises Withheld, or InvalidRequest for what is no JSON."""
        self._refuse_labels([call.task, call.model_alias])
        if _chars_of(call) > self._registry.most_chars:
            raise Withheld(
                f"it is too long to be checked for private data: {_chars_of(call):,} characters of at most {self._registry.most_chars:,}",
                hint="send less of the conversation at once, or shorter documents",
            )
        texts = [message.content for message in call.messages]
        rule = self._registry.broken_rule([*texts, call.prompt_id], call.openai_json)
        if rule:
            raise Withheld(f"never-send rule {rule} forbids it", hint=_RULES_HINT)
        try:
            redacted = self._registry.redacted(texts, call.openai_json)
        except ValueError as error:
            raise InvalidRequest(f"openai_json cannot be read: {error}") from error
        prompt_id = call.prompt_id
        if self._registry.leaks([prompt_id], "", redacted.originals):  # such as a name in a file of tasks
            prompt_id = f"digest:{hashlib.blake2b(prompt_id.encode(), digest_size=16).hexdigest()}"
        messages = tuple(Message(message.role, text) for message, text in zip(call.messages, redacted.texts, strict=True))
        sent = replace(call, messages=messages, prompt_id=prompt_id, openai_json=redacted.json)
        message = codec.encode_call(sent)
        self._refuse_leaks(message, redacted)
        if redacted.originals:
            self._remembered[call.call_key] = redacted
            self._remembered.move_to_end(call.call_key)
            while len(self._remembered) > _MOST_REMEMBERED:
                self._remembered.popitem(last=False)
        kind, why = kind_of(call)
        answer_id = call.prompt_id if kind == "answering" else ""
        payload = message.SerializeToString()
        request = EgressRequest(kind, why, method, payload, answer_id, call.call_key, redacted.replaced)
        return _Checked(sent, request, redacted)

    def _refuse_labels(self, labels: Sequence[str]) -> None:
        """The label of a task cannot be replaced, since both sides count by it. Raises Withheld for one with something private in it."""
        if rule := self._registry.broken_rule(labels):
            raise Withheld(f"never-send rule {rule} forbids the task's name", hint="give the task another name")
        if kinds := self._registry.kinds_in_names(labels):
            raise Withheld(f"the task's name holds a {', a '.join(sorted(kinds))}", hint="give the task another name")

    def _refuse_leaks(self, message: WireMessage, redacted: Redacted) -> None:
        """The leak test, on every text of the message that is about to be sent, whatever fields it has. Raises Withheld."""
        texts = list(_texts_in(message))
        plain = [text for name, text in texts if name != "openai_json"]
        json = next((text for name, text in texts if name == "openai_json"), "")
        leaks = self._registry.leaks(plain, json, redacted.originals)
        if leaks:
            raise Withheld(f"the leak test found {', '.join(sorted(leaks))} in the redacted request")

    @contextmanager
    def _written_down(self, request: EgressRequest) -> Iterator[None]:
        """The request is written down, on disk, before the block sends it; noted when it could not be sent after all."""
        number = self._log.write(request)
        try:
            yield
        except CoordinatorUnavailable as error:
            if error.reason == "UNREACHABLE":
                self._log.not_delivered(number, "the coordinator could not be reached; nothing left")
            raise

    def _write_inquiry(self, method: str, message: WireMessage) -> None:
        """Write down a request without content of anybody's."""
        why = "the budget or a call's state is asked for"
        self._log.write_inquiry(EgressRequest("inquiry", why, method, message.SerializeToString()))


def _chars_of(call: CloudCall) -> int:
    return len(call.openai_json) + sum(len(message.content) for message in call.messages)


def kind_of(call: CloudCall) -> tuple[SentKind, str]:
    """What a call is for, and why it is made as far as the call itself shows."""
    if call.step >= 0:
        return "learning", f"step {call.step + 1} of task {call.task}: {counted(call.help_units, 'response')} asked for help"
    if call.prompt_id.startswith(EVALUATION):
        return "evaluation", f"an item of {call.task} is measured"
    return "answering", "the cloud was asked for an answer"


def _restored(completion: CloudCompletion, redacted: Redacted) -> CloudCompletion:
    if not redacted.originals:
        return completion
    text = redacted.restored(completion.text)
    return replace(completion, text=text, openai_json=redacted.restored_json(completion.openai_json))


def _texts_in(message: WireMessage) -> Iterator[tuple[str, str]]:
    """Every text of a message with its field's name, those of messages inside it too; agreed names are left out."""
    for field, value in message.ListFields():
        for one in value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]:
            if isinstance(one, WireMessage):
                yield from _texts_in(one)
            elif isinstance(one, str) and field.name not in _LABELS:
                yield field.name, one
