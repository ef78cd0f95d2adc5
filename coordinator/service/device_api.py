"""The DeviceService's handlers: request message -> response message, without sockets, gRPC contexts or databases.

Every handler raises typed CoordinatorErrors; a transport (server.py, the simulator) translates them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial

from coordinator.calls.admission import Turnstile, draining
from coordinator.calls.batch import ManyAtOnce
from coordinator.calls.broker import Broker
from coordinator.calls.flights import Progress
from coordinator.config import ServiceConfig
from coordinator.control.devices import MAX_VERSION_CHARS, Fleet
from coordinator.control.steps import StepController
from coordinator.service.budget_watch import BudgetNotifier, versions
from coordinator.service.metrics import ItemMeter
from edge.core.errors import CoordinatorError, CoordinatorUnavailable, InvalidRequest
from edge.rpc import codec
from edge.rpc.client import BudgetSnapshot, CallReply, CloudCompletion, Registration, StepUnits
from edge.rpc.v1 import budget_pb2, call_pb2, device_pb2, step_pb2

log = logging.getLogger(__name__)
MAX_TASKS_PER_REGISTRATION = 256
MAX_KEY_ECHOED = 200


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, how long it waits (None: it did not say) and which tasks it may use (None: every task)."""

    device: str
    deadline_s: float | None = None
    tasks: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class DeviceApi:
    """The DeviceService without its transport. `requests` counts what works towards an answer, each item of a batch too."""

    broker: Broker
    controller: StepController
    fleet: Fleet
    limits: device_pb2.ServiceLimits
    notifier: BudgetNotifier = field(default_factory=BudgetNotifier)
    requests: Turnstile = field(default_factory=partial(Turnstile, "requests run", 4096))
    service: ServiceConfig = field(default_factory=ServiceConfig)
    items: ItemMeter | None = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def stop_admitting(self) -> None:
        """Refuse new steps and registrations, end batches and watches (DRAINING); reports, recovery and budgets are still answered."""
        self._stopping.set()
        self.notifier.stop()

    async def register_device(
        self, request: device_pb2.RegisterDeviceRequest, caller: Caller
    ) -> device_pb2.RegisterDeviceResponse:
        """Register a device; returns the terms of its tasks."""
        self._require_admitting()
        if request.protocol_version != codec.PROTOCOL_VERSION:
            raise InvalidRequest(
                f"this coordinator speaks protocol {codec.PROTOCOL_VERSION}, the device {request.protocol_version}",
                hint="update the older of the two",
            )
        if len(request.tasks) > MAX_TASKS_PER_REGISTRATION:
            raise InvalidRequest(f"a device registers at most {MAX_TASKS_PER_REGISTRATION} tasks at once")
        if not (len(request.agent_version) <= MAX_VERSION_CHARS and request.agent_version.isprintable()):
            raise InvalidRequest(f"agent_version is at most {MAX_VERSION_CHARS} printable characters")
        self.fleet.admit(caller.device)
        terms = tuple([await self.controller.current(caller.device, task) for task in request.tasks])
        await self.fleet.register(caller.device, request.agent_version, tuple(request.tasks))
        response = codec.encode_registration(Registration(caller.device, codec.PROTOCOL_VERSION, terms))
        response.limits.CopyFrom(self.limits)
        return response

    async def open_step(self, request: step_pb2.OpenStepRequest, caller: Caller) -> step_pb2.OpenStepResponse:
        """Open a step: λ, τ and its call credit."""
        self._require_admitting()
        self.fleet.admit(caller.device)
        wished = request.target_rate if request.HasField("target_rate") else None
        opened = await self.controller.open_step(
            caller.device, request.task, request.step, request.planned_prompts, request.group_size, wished
        )
        return codec.to_message(step_pb2.OpenStepResponse, opened)

    async def complete(self, request: call_pb2.CompleteRequest, caller: Caller) -> call_pb2.CompleteResponse:
        """Ask the cloud once."""
        self.fleet.admit(caller.device)
        return codec.encode_completion(await self.broker.complete(caller.device, codec.decode_call(request), caller.deadline_s))

    async def stream_complete(
        self, request: call_pb2.StreamCompleteRequest, caller: Caller
    ) -> AsyncIterator[call_pb2.StreamCompleteResponse]:
        """Ask the cloud once and stream the answer: started, deltas, finished. What the deltas lack is sent before `finished`."""
        self.fleet.admit(caller.device)
        call, progress = codec.decode_call(request.call), Progress()
        answer = asyncio.create_task(self.broker.complete(caller.device, call, caller.deadline_s, progress))
        answer.add_done_callback(lambda _: progress.over())
        sent = ""
        try:
            while (piece := await progress.pieces.get()) is not None:
                sent += piece
                yield _delta(piece) if piece else _started(call.call_key)
            finished = codec.encode_completion(await answer)
        finally:
            answer.cancel()
        if rest := finished.completion.text.removeprefix(sent):
            yield _delta(rest)
        yield call_pb2.StreamCompleteResponse(finished=finished)

    async def complete_batch(
        self, items: AsyncIterator[call_pb2.CompleteBatchRequest | CoordinatorError], caller: Caller
    ) -> AsyncIterator[call_pb2.CompleteBatchResponse]:
        """Ask the cloud for each item as it comes. One that cannot be read, or that its caller may not ask, is answered like any bad one.

        At a drain no more items are read, those that were are answered, and the stream ends with DRAINING.
        """
        self._require_admitting()
        time = asyncio.get_running_loop().time
        end = None if caller.deadline_s is None else time() + caller.deadline_s

        async def answer(item: call_pb2.CompleteBatchRequest | CoordinatorError) -> call_pb2.CompleteBatchResponse:
            began = time()
            try:
                reply = await self._answer_item(item, caller.device, end)
            except Exception as error:
                log.error("an item of a batch failed", exc_info=error)
                reply = _failed_item(item)
            if self.items is not None:
                self.items.ended(caller.device, time() - began, reply)
            return reply

        async for reply in ManyAtOnce(answer, _failed_item, self.service.batch_items).replies(items, self._stopping):
            yield reply
        self._require_admitting()

    async def _answer_item(
        self, item: call_pb2.CompleteBatchRequest | CoordinatorError, device: str, end: float | None
    ) -> call_pb2.CompleteBatchResponse:
        key = _key_of(item)
        if isinstance(item, CoordinatorError):
            return codec.encode_reply(CallReply(key, item))
        try:
            return codec.encode_reply(CallReply(key, await self._complete_item(item, device, end)))
        except CoordinatorError as error:
            return codec.encode_reply(CallReply(key, error))

    async def _complete_item(self, item: call_pb2.CompleteBatchRequest, device: str, end: float | None) -> CloudCompletion:
        deadline_s = _item_deadline_s(item, end)
        with self.requests.passage(device):
            self.fleet.admit(device)
            try:
                if deadline_s is None:
                    return await self.broker.complete(device, codec.decode_call(item.call), None)
                async with asyncio.timeout(deadline_s):
                    return await self.broker.complete(device, codec.decode_call(item.call), deadline_s)
            except TimeoutError as error:
                raise CoordinatorUnavailable("the item's deadline is over", reason="DEADLINE_EXCEEDED") from error

    async def get_call(self, request: call_pb2.GetCallRequest, caller: Caller) -> call_pb2.GetCallResponse:
        """The stored answer of an earlier call."""
        self.fleet.admit(caller.device)
        stored = await self.broker.get_call(caller.device, request.call_key, request.fingerprint, caller.tasks)
        reply = codec.encode_completion(stored)
        budget = reply.budget if reply.HasField("budget") else None
        return call_pb2.GetCallResponse(completion=reply.completion, budget=budget)

    async def cancel_call(self, request: call_pb2.CancelCallRequest, caller: Caller) -> call_pb2.CancelCallResponse:
        """Stop waiting for a call; what it cost stays charged."""
        self.fleet.admit(caller.device)
        return codec.encode_cancelled(await self.broker.cancel_call(caller.device, request.call_key, caller.tasks))

    async def close_step(self, request: step_pb2.CloseStepRequest, caller: Caller) -> step_pb2.CloseStepResponse:
        """Report a step and move λ exactly once."""
        self.fleet.admit(caller.device)
        own_rate = request.own_rate if request.HasField("own_rate") else None
        units = StepUnits(request.total_units, request.help_units, request.uncalled_units, own_rate)
        closed = await self.controller.close_step(caller.device, request.task, request.step, units)
        return codec.to_message(step_pb2.CloseStepResponse, closed)

    async def get_budget(self, request: budget_pb2.GetBudgetRequest, caller: Caller) -> budget_pb2.GetBudgetResponse:
        """The budget of the caller for one task."""
        self.fleet.admit(caller.device)
        budget = await self.broker.budget(caller.device, request.task)
        return budget_pb2.GetBudgetResponse(budget=codec.to_message(budget_pb2.BudgetSnapshot, budget))

    async def watch_budget(
        self, request: budget_pb2.WatchBudgetRequest, caller: Caller
    ) -> AsyncIterator[budget_pb2.WatchBudgetResponse]:
        """The budget, then each new version, newest only; ends with DRAINING at a drain."""
        task, version = request.task, 0

        async def read() -> BudgetSnapshot:
            self.fleet.admit(caller.device)
            return await self.broker.budget(caller.device, task)

        async for budget in versions(self.notifier, caller.device, task, read, self.service.watch_heartbeat_s):
            if budget is None:
                yield budget_pb2.WatchBudgetResponse(heartbeat=budget_pb2.BudgetHeartbeat(version=version))
            else:
                version = budget.version
                yield budget_pb2.WatchBudgetResponse(budget=codec.to_message(budget_pb2.BudgetSnapshot, budget))

    def _require_admitting(self) -> None:
        if self._stopping.is_set():
            raise draining()


def _started(call_key: str) -> call_pb2.StreamCompleteResponse:
    return call_pb2.StreamCompleteResponse(started=call_pb2.CallStarted(call_key=call_key))


def _delta(text: str) -> call_pb2.StreamCompleteResponse:
    return call_pb2.StreamCompleteResponse(delta=text)


def _key_of(item: call_pb2.CompleteBatchRequest | CoordinatorError) -> str:
    key = item.metadata.get("call_key", "") if isinstance(item, CoordinatorError) else item.call.call_key
    return key[:MAX_KEY_ECHOED]


def _failed_item(item: call_pb2.CompleteBatchRequest | CoordinatorError) -> call_pb2.CompleteBatchResponse:
    """The reply to an item whose answering broke; what broke is in the log."""
    error = CoordinatorError("internal error; the coordinator's log has the details")
    return codec.encode_reply(CallReply(_key_of(item), error))


def _item_deadline_s(item: call_pb2.CompleteBatchRequest, end: float | None) -> float | None:
    """Seconds an item has: its own time-out within what is left of the stream's deadline; None when there is neither."""
    own_s = max(0.0, item.timeout.ToNanoseconds() / 1e9) if item.HasField("timeout") else None
    if end is None:
        return own_s
    left_s = max(0.0, end - asyncio.get_running_loop().time())
    return left_s if own_s is None else min(own_s, left_s)
