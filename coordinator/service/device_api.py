"""The DeviceService's handlers: request message -> response message, without sockets, gRPC contexts or databases.

Every handler raises typed CoordinatorErrors; a transport (server.py, the simulator) translates them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field

from coordinator.calls.admission import draining
from coordinator.calls.broker import Broker
from coordinator.control.devices import MAX_VERSION_CHARS, Fleet
from coordinator.control.steps import StepController
from coordinator.service.budget_watch import BudgetNotifier, versions
from edge.core.errors import InvalidRequest, PermissionDenied
from edge.rpc import codec
from edge.rpc.client import BudgetSnapshot, Registration, StepUnits
from edge.rpc.v1 import budget_pb2, call_pb2, device_pb2, step_pb2

MAX_TASKS_PER_REGISTRATION = 256


@dataclass(frozen=True, slots=True)
class DeviceCaller:
    """Who calls."""

    device: str
    deadline_s: float | None = None
    """How long it waits; None: no deadline."""
    tasks: frozenset[str] | None = None
    """Those it may use; None: every task."""


@dataclass(frozen=True, slots=True)
class DeviceApi:
    """The DeviceService without its transport."""

    broker: Broker
    controller: StepController
    fleet: Fleet
    limits: device_pb2.ServiceLimits
    notifier: BudgetNotifier = field(default_factory=BudgetNotifier)
    front_ends: frozenset[str] = frozenset()
    """Devices that name people: they are served where they do, over HTTP, or a person's limit would not hold."""
    heartbeat_s: float = 30.0
    """A watched budget sends a heartbeat after this time without a change."""
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def stop_admitting(self) -> None:
        """Refuse new steps and registrations, end watches (DRAINING); reports, recovery and budgets are still answered."""
        self._stopping.set()
        self.notifier.stop()

    async def register_device(
        self, request: device_pb2.RegisterDeviceRequest, caller: DeviceCaller
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
        self._admit(caller)
        terms = tuple([await self.controller.current(caller.device, task) for task in request.tasks])
        await self.fleet.register(caller.device, request.agent_version, tuple(request.tasks))
        response = codec.encode_registration(Registration(caller.device, codec.PROTOCOL_VERSION, terms))
        response.limits.CopyFrom(self.limits)
        return response

    async def open_step(self, request: step_pb2.OpenStepRequest, caller: DeviceCaller) -> step_pb2.OpenStepResponse:
        """Open a step: λ, τ and its call credit."""
        self._require_admitting()
        self._admit(caller)
        wished = request.target_rate if request.HasField("target_rate") else None
        opened = await self.controller.open_step(
            caller.device, request.task, request.step, request.planned_prompts, request.group_size, wished
        )
        return codec.to_message(step_pb2.OpenStepResponse, opened)

    async def complete(self, request: call_pb2.CompleteRequest, caller: DeviceCaller) -> call_pb2.CompleteResponse:
        """Ask the cloud once."""
        self._admit(caller)
        return codec.encode_completion(await self.broker.complete(caller.device, codec.decode_call(request), caller.deadline_s))

    async def stream_complete(
        self, request: call_pb2.StreamCompleteRequest, caller: DeviceCaller
    ) -> AsyncIterator[call_pb2.StreamCompleteResponse]:
        """Ask the cloud once and stream the answer: started, deltas, finished. What the deltas lack is sent before `finished`."""
        self._admit(caller)
        call = codec.decode_call(request.call)
        async with aclosing(self.broker.stream(caller.device, call, caller.deadline_s)) as pieces:
            async for piece in pieces:
                if isinstance(piece, str):
                    yield _delta(piece) if piece else _started(call.call_key)
                else:
                    yield call_pb2.StreamCompleteResponse(finished=codec.encode_completion(piece))

    async def get_call(self, request: call_pb2.GetCallRequest, caller: DeviceCaller) -> call_pb2.GetCallResponse:
        """The stored answer of an earlier call."""
        self._admit(caller)
        stored = await self.broker.get_call(caller.device, request.call_key, request.fingerprint, caller.tasks)
        reply = codec.encode_completion(stored)
        budget = reply.budget if reply.HasField("budget") else None
        return call_pb2.GetCallResponse(completion=reply.completion, budget=budget)

    async def cancel_call(self, request: call_pb2.CancelCallRequest, caller: DeviceCaller) -> call_pb2.CancelCallResponse:
        """Stop waiting for a call; what it cost stays charged."""
        self._admit(caller)
        return codec.encode_cancelled(await self.broker.cancel_call(caller.device, request.call_key, caller.tasks))

    async def close_step(self, request: step_pb2.CloseStepRequest, caller: DeviceCaller) -> step_pb2.CloseStepResponse:
        """Report a step and move λ exactly once."""
        self._admit(caller)
        own_rate = request.own_rate if request.HasField("own_rate") else None
        units = StepUnits(request.total_units, request.help_units, request.uncalled_units, own_rate)
        closed = await self.controller.close_step(caller.device, request.task, request.step, units)
        return codec.to_message(step_pb2.CloseStepResponse, closed)

    async def get_budget(self, request: budget_pb2.GetBudgetRequest, caller: DeviceCaller) -> budget_pb2.GetBudgetResponse:
        """The budget of the caller for one task."""
        self._admit(caller)
        budget = await self.broker.budget(caller.device, request.task)
        return budget_pb2.GetBudgetResponse(budget=codec.to_message(budget_pb2.BudgetSnapshot, budget))

    async def watch_budget(
        self, request: budget_pb2.WatchBudgetRequest, caller: DeviceCaller
    ) -> AsyncIterator[budget_pb2.WatchBudgetResponse]:
        """The budget, then each new version, newest only; ends with DRAINING at a drain."""
        task, version = request.task, 0

        async def read() -> BudgetSnapshot:
            self._admit(caller)
            return await self.broker.budget(caller.device, task)

        async for budget in versions(self.notifier, caller.device, task, read, self.heartbeat_s):
            if budget is None:
                yield budget_pb2.WatchBudgetResponse(heartbeat=budget_pb2.BudgetHeartbeat(version=version))
            else:
                version = budget.version
                yield budget_pb2.WatchBudgetResponse(budget=codec.to_message(budget_pb2.BudgetSnapshot, budget))

    def _admit(self, caller: DeviceCaller) -> None:
        """Note that a device called. Raises PermissionDenied."""
        if caller.device in self.front_ends:
            raise PermissionDenied(f"device {caller.device} names people, which it can do at openai_listen alone")
        self.fleet.admit(caller.device)

    def _require_admitting(self) -> None:
        if self._stopping.is_set():
            raise draining()


def _started(call_key: str) -> call_pb2.StreamCompleteResponse:
    return call_pb2.StreamCompleteResponse(started=call_pb2.CallStarted(call_key=call_key))


def _delta(text: str) -> call_pb2.StreamCompleteResponse:
    return call_pb2.StreamCompleteResponse(delta=text)
