"""The one seam through which anything leaves the device.

Knows the order rules -> redaction -> leak test -> entry on disk -> sending -> restoring; knows nothing of what is private or how entries
are kept. What a rule forbids, what the leak test finds, what is too long to be looked through and what cannot be written down raises
Withheld, and nothing is sent. The label of a task and a model's alias are names that both sides have agreed upon: they leave as they are
or not at all.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from google.protobuf.message import Message as WireMessage

from edge.cloud.sent import Departure, SentKind, SentLog
from edge.core.concurrency import closing
from edge.core.errors import CoordinatorError, CoordinatorUnavailable, InvalidRequest, Withheld
from edge.core.types import Message
from edge.privacy.registry import Redacted, Registry
from edge.rpc import codec
from edge.rpc.client import (
    BudgetSnapshot,
    CallReply,
    CancelledCall,
    CloudCall,
    CloudCompletion,
    CloudDelta,
    CoordinatorClient,
    Registration,
    StepClosed,
    StepOpened,
)
from edge.rpc.v1 import budget_pb2, call_pb2

EVALUATION = "eval:"
"""What the prompt ids of an evaluation begin with."""
_RULES_HINT = "edge-agent config show privacy, with the same --config and --set, tells the rules"
_LABELS = frozenset({"call_key", "task", "model_alias"})
_MOST_REMEMBERED = 4096
_MOST_AHEAD = 256
_LONG_CHARS = 4_000
"""What takes some milliseconds to look through."""


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A call as it may leave, its entry, and the way back."""

    call: CloudCall
    departure: Departure
    redacted: Redacted

    def back(self, completion: CloudCompletion) -> CloudCompletion:
        return _restored(completion, self.redacted)


class GuardedClient:
    """`CoordinatorClient` around another one; everything that leaves goes through it."""

    def __init__(self, client: CoordinatorClient, registry: Registry, log: SentLog) -> None:
        self._client = client
        self._registry = registry
        self._log = log
        self._inquiries: dict[tuple[str, bytes], int] = {}
        self._remembered: OrderedDict[str, Redacted] = OrderedDict()

    async def register(self, agent_version: str, tasks: Sequence[str]) -> Registration:
        """Announce this device."""
        self._refuse_labels(tasks)
        message = codec.encode_register(agent_version, tasks)
        with self._entered(Departure("registration", "the agent starts", "RegisterDevice", message.SerializeToString())):
            return await self._client.register(agent_version, tasks)

    async def open_step(self, task: str, step: int, planned_prompts: int, group_size: int, target_rate: float) -> StepOpened:
        """Open a learning step."""
        self._refuse_labels([task])
        message = codec.encode_open_step(task, step, planned_prompts, group_size, target_rate)
        with self._entered(
            Departure("step report", f"step {step + 1} of task {task} begins", "OpenStep", message.SerializeToString())
        ):
            return await self._client.open_step(task, step, planned_prompts, group_size, target_rate)

    async def close_step(self, task: str, step: int, total_units: int, help_units: int, uncalled_units: int = 0) -> StepClosed:
        """Report a step and move λ."""
        self._refuse_labels([task])
        message = codec.encode_close_step(task, step, total_units, help_units, uncalled_units)
        with self._entered(
            Departure("step report", f"step {step + 1} of task {task} is done", "CloseStep", message.SerializeToString())
        ):
            return await self._client.close_step(task, step, total_units, help_units, uncalled_units)

    async def complete(self, call: CloudCall, deadline_s: float) -> CloudCompletion:
        """Ask the cloud once. Raises Withheld when the call may not leave."""
        leaving = await self._checked(call, "Complete")
        with self._entered(leaving.departure):
            return leaving.back(await self._client.complete(leaving.call, deadline_s))

    async def stream_complete(self, call: CloudCall, deadline_s: float) -> AsyncIterator[CloudDelta]:
        """Ask the cloud once and stream its answer. Raises Withheld when the call may not leave."""
        leaving = await self._checked(call, "StreamComplete")
        restoring = leaving.redacted.restoring()
        with self._entered(leaving.departure):
            async with closing(self._client.stream_complete(leaving.call, deadline_s)) as deltas:
                async for delta in deltas:
                    text = restoring.feed(delta.text)
                    if delta.completion is not None:
                        yield CloudDelta(text + restoring.rest(), leaving.back(delta.completion))
                    elif text:
                        yield CloudDelta(text)

    async def complete_batch(self, calls: AsyncIterable[CloudCall], deadline_s: float) -> AsyncIterator[CallReply]:
        """Ask the cloud for many calls. One that may not leave is answered Withheld; entries that come together are written together."""
        batch = _Batch(calls, self._checked, self._log)
        work = asyncio.create_task(batch.run(self._client, deadline_s), name="guarded-batch")
        try:
            while (reply := await batch.replies.get()) is not None:
                yield reply
            await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def get_call(self, call_key: str) -> CloudCompletion:
        """The stored result of an earlier call."""
        with self._inquired("GetCall", call_pb2.GetCallRequest(call_key=call_key)):
            completion = await self._client.get_call(call_key)
        remembered = self._remembered.get(call_key)
        return completion if remembered is None else _restored(completion, remembered)

    async def cancel_call(self, call_key: str) -> CancelledCall:
        """Stop waiting for a call."""
        with self._inquired("CancelCall", call_pb2.CancelCallRequest(call_key=call_key)):
            return await self._client.cancel_call(call_key)

    async def get_budget(self, task: str) -> BudgetSnapshot:
        """The current budget of this device for one task."""
        self._refuse_labels([task])
        with self._inquired("GetBudget", budget_pb2.GetBudgetRequest(task=task)):
            return await self._client.get_budget(task)

    async def watch_budget(self, task: str) -> AsyncIterator[BudgetSnapshot]:
        """The budget, then each new version."""
        self._refuse_labels([task])
        with self._inquired("WatchBudget", budget_pb2.WatchBudgetRequest(task=task)):
            async with closing(self._client.watch_budget(task)) as budgets:
                async for budget in budgets:
                    yield budget

    async def aclose(self) -> None:
        """Write what is still counted and close the connection."""
        self._log.flush()
        await self._client.aclose()

    async def _checked(self, call: CloudCall, method: str) -> _Leaving:
        """The same; a long conversation is looked through on a thread, so that others are served meanwhile."""
        if _chars_of(call) < _LONG_CHARS:
            return self._leaving(call, method)
        return await asyncio.to_thread(self._leaving, call, method)

    def _leaving(self, call: CloudCall, method: str) -> _Leaving:
        """The call as it may leave. Raises Withheld, or InvalidRequest for what is no JSON."""
        self._refuse_labels([call.task, call.model_alias])
        if _chars_of(call) > self._registry.most_chars:
            raise Withheld(
                f"it is too long to be looked through: {_chars_of(call):,} characters of at most {self._registry.most_chars:,}",
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
        sent = self._with(call, redacted)
        message = codec.encode_call(sent)
        self._refuse_leaks(message, redacted)
        self._remember(call.call_key, redacted)
        kind, why = kind_of(call)
        answer_id = call.prompt_id if kind == "answering" else ""
        payload = message.SerializeToString()
        return _Leaving(sent, Departure(kind, why, method, payload, answer_id, call.call_key, redacted.replaced), redacted)

    def _refuse_labels(self, labels: Sequence[str]) -> None:
        """The label of a task cannot be replaced, since both sides count by it. Raises Withheld for one that tells something private."""
        if rule := self._registry.broken_rule(labels):
            raise Withheld(f"never-send rule {rule} forbids the task's name", hint="give the task another name")
        if told := self._registry.told_by_names(labels):
            raise Withheld(f"the task's name tells a {', a '.join(sorted(told))}", hint="give the task another name")

    def _with(self, call: CloudCall, redacted: Redacted) -> CloudCall:
        messages = tuple(Message(message.role, text) for message, text in zip(call.messages, redacted.texts, strict=True))
        return replace(call, messages=messages, prompt_id=self._unnamed(call.prompt_id, redacted), openai_json=redacted.json)

    def _unnamed(self, prompt_id: str, redacted: Redacted) -> str:
        """A prompt's id; one that tells something private, such as a name in a file of tasks, as a digest."""
        if not self._registry.leaks([prompt_id], "", redacted.originals):
            return prompt_id
        return f"digest:{hashlib.blake2b(prompt_id.encode(), digest_size=16).hexdigest()}"

    def _refuse_leaks(self, message: WireMessage, redacted: Redacted) -> None:
        """The leak test, on every text of the message that is about to leave, whatever fields it has. Raises Withheld."""
        texts = list(_texts_in(message))
        plain = [text for name, text in texts if name != "openai_json"]
        json = next((text for name, text in texts if name == "openai_json"), "")
        leaks = self._registry.leaks(plain, json, redacted.originals)
        if leaks:
            raise Withheld(f"the leak test found {', '.join(sorted(leaks))} in the redacted request")

    def _remember(self, call_key: str, redacted: Redacted) -> None:
        if redacted.originals:
            self._remembered[call_key] = redacted
            self._remembered.move_to_end(call_key)
            while len(self._remembered) > _MOST_REMEMBERED:
                self._remembered.popitem(last=False)

    @contextmanager
    def _entered(self, departure: Departure) -> Iterator[None]:
        """Written down before the block sends it; noted when it could not leave after all."""
        numbers = self._log.before_leaving([departure])
        with self._noting_unreached(numbers):
            yield

    @contextmanager
    def _inquired(self, method: str, message: WireMessage) -> Iterator[None]:
        """A request without content of anybody's: one entry for the same bytes, however often they leave."""
        payload = message.SerializeToString()
        known = self._inquiries.get((method, payload))
        if known is None:
            departure = Departure("inquiry", "the budget or a call's state is asked for", method, payload)
            [number] = self._log.before_leaving([departure])
            self._inquiries[method, payload] = number
        else:
            self._log.again(known)
        yield

    @contextmanager
    def _noting_unreached(self, numbers: Sequence[int]) -> Iterator[None]:
        try:
            yield
        except CoordinatorUnavailable as error:
            if error.reason == "UNREACHABLE":
                self._log.not_delivered(numbers, "the coordinator could not be reached; nothing left")
            raise


class _Batch:
    """One batch: what may leave goes to the client, what may not is answered here."""

    def __init__(
        self, calls: AsyncIterable[CloudCall], check: Callable[[CloudCall, str], Awaitable[_Leaving]], log: SentLog
    ) -> None:
        self._calls = calls
        self._check = check
        self._log = log
        self._handed: asyncio.Queue[CloudCall | None] = asyncio.Queue(_MOST_AHEAD)
        self._leaving: dict[str, tuple[_Leaving, int]] = {}
        self.replies: asyncio.Queue[CallReply | None] = asyncio.Queue()

    async def run(self, client: CoordinatorClient, deadline_s: float) -> None:
        """Until every call is answered; then one None. Raises what the batch as a whole met."""
        reading = asyncio.create_task(self._read(), name="guarded-batch-reading")
        try:
            async with closing(client.complete_batch(self._as_they_leave(), deadline_s)) as replies:
                async for reply in replies:
                    self.replies.put_nowait(self._restored(reply))
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            self.replies.put_nowait(None)

    async def _read(self) -> None:
        try:
            async for call in self._calls:
                await self._handed.put(call)
        finally:
            await self._handed.put(None)

    async def _as_they_leave(self) -> AsyncIterator[CloudCall]:
        ended = False
        while not ended:
            calls, ended = await self._together()
            for call in await self._written_down(calls):
                yield call

    async def _together(self) -> tuple[list[CloudCall], bool]:
        """The next call with all that were handed over at the same time, and whether they are the last."""
        handed = [await self._handed.get()]
        await asyncio.sleep(0)
        while not self._handed.empty():
            handed.append(self._handed.get_nowait())
        return [call for call in handed if call is not None], None in handed

    async def _written_down(self, calls: Sequence[CloudCall]) -> list[CloudCall]:
        """Those that may leave, as they leave; the others are answered."""
        checked = [await self._checked(call) for call in calls]
        leaving = [one for one in checked if one is not None]
        if not leaving:
            return []
        try:
            numbers = self._log.before_leaving([one.departure for one in leaving])
        except Withheld as error:
            for one in leaving:
                self.replies.put_nowait(CallReply(one.call.call_key, error))
            return []
        self._leaving.update({one.call.call_key: (one, number) for one, number in zip(leaving, numbers, strict=True)})
        return [one.call for one in leaving]

    async def _checked(self, call: CloudCall) -> _Leaving | None:
        try:
            return await self._check(call, "CompleteBatch")
        except CoordinatorError as error:
            self.replies.put_nowait(CallReply(call.call_key, error))
            return None

    def _restored(self, reply: CallReply) -> CallReply:
        leaving, number = self._leaving[reply.call_key]
        if isinstance(reply.outcome, CoordinatorError):
            if reply.outcome.reason == "UNREACHABLE":
                self._log.not_delivered([number], "the coordinator could not be reached; nothing left")
            return reply
        return CallReply(reply.call_key, leaving.back(reply.outcome))


def _chars_of(call: CloudCall) -> int:
    return len(call.openai_json) + sum(len(message.content) for message in call.messages)


def kind_of(call: CloudCall) -> tuple[SentKind, str]:
    """What a call is for, and why it is made as far as the call itself tells."""
    if call.step >= 0:
        return "learning", f"step {call.step + 1} of task {call.task}: {call.help_units} responses asked for help"
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
