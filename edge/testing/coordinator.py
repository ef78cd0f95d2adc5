"""A coordinator in memory, for tests and for trying an agent without a service.

It keeps the promises of edge/rpc/client.py: idempotent keys, one charge per prompt group, steps in order, λ moved exactly once by
`proportional_integral_step`, limits that cannot be exceeded. Failures are programmed: `fail_next("complete", error)` raises that error
at the next call of the method, before anything happened; `lose_next_reply()` does the work and then loses the answer.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from edge.core.errors import (
    BudgetExhausted,
    CoordinatorError,
    CoordinatorUnavailable,
    InvalidRequest,
    KeyReused,
    NotFound,
    StepMismatch,
)
from edge.core.types import TokenUsage
from edge.dagrpo.dual import DualState, ProportionalIntegral, proportional_integral_step
from edge.rpc.client import (
    BudgetSnapshot,
    CallProgress,
    CancelledCall,
    CloudCall,
    CloudCompletion,
    CloudDelta,
    Registration,
    StepClosed,
    StepOpened,
    StepUnits,
    TaskTerms,
)
from edge.rpc.openai_fields import completion_json, openai_fields

MOST_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """An answer that is more than its text. `beyond_text`: JSON text of an object with `tool_calls`, or ""."""

    text: str = ""
    finish_reason: str = "stop"
    beyond_text: str = ""


Answer = Callable[[CloudCall], str | ScriptedReply]


@dataclass(frozen=True, slots=True)
class ScriptedTerms:
    """What the scripted coordinator holds every task to; credit κ None means no step limit. Prices in micro-USD per call.

    `dual_scope` is task or global: one λ for each task, or one for all.
    """

    target_rate: float = 0.3
    dual_init: float = 0.5
    dual_lr: float = 0.01
    step_credit_kappa: float | None = 2.0
    calls_limit: int | None = None
    price_uusd_per_call: int = 100
    dual_scope: str = "task"
    dual_proportional: float = 0.0
    dual_window: int = 1
    dual_ceiling: float = math.inf

    @property
    def rule(self) -> ProportionalIntegral:
        """How λ moves."""
        return ProportionalIntegral(self.dual_lr, self.dual_proportional, self.dual_window, self.dual_ceiling)


@dataclass(slots=True)
class _Dual:
    """A λ and what it holds of the last reports; under scope global that of every task."""

    state: DualState

    @property
    def value(self) -> float:
        return self.state.dual


@dataclass(slots=True)
class _TaskState:
    dual: _Dual
    target_rate: float
    next_step: int = 0
    opened: StepOpened | None = None
    closed: StepClosed | None = None
    reported: tuple[int, int] = (0, 0)
    step_calls: int = 0


class ScriptedCoordinatorClient:
    """A CoordinatorClient that answers from a function (by default with the last user message, boxed). `calls` lists what was billed.

    The function gives a text, or a ScriptedReply to call tools.
    """

    def __init__(
        self, answer: Answer | None = None, *, terms: ScriptedTerms | None = None, device_id: str = "local", delay_s: float = 0.0
    ) -> None:
        self._answer = answer or _echo
        self._terms = terms or ScriptedTerms()
        self._device_id = device_id
        self._delay_s = delay_s
        self._tasks: dict[str, _TaskState] = {}
        self._duals: dict[str, _Dual] = {}
        self._results: dict[str, tuple[CloudCall, CloudCompletion]] = {}
        self._groups: dict[tuple[str, int, str], str] = {}
        self._failures: dict[str, deque[CoordinatorError]] = defaultdict(deque)
        self._lost_replies = 0
        self._lock = asyncio.Lock()
        self._version = 0
        self._changed = asyncio.Event()
        self.calls: list[CloudCall] = []
        self.closed = False

    def fail_next(self, method: str, error: CoordinatorError, times: int = 1) -> None:
        """Raise `error` at the next `times` calls of `method` (such as "complete"); nothing happens at those calls."""
        self._failures[method].extend([error] * times)

    def lose_next_reply(self) -> None:
        """Do the next `complete` but lose its answer (CONNECTION_LOST); get_call finds it."""
        self._lost_replies += 1

    async def register(self, agent_version: str, tasks: Sequence[str]) -> Registration:
        """Announce the device."""
        self._fail_if_scripted("register")
        terms = tuple(
            TaskTerms(name, task.target_rate, task.dual.value, task.next_step) for name in tasks for task in [self._task(name)]
        )
        return Registration(self._device_id, 1, terms)

    async def open_step(self, task: str, step: int, planned_prompts: int, group_size: int, target_rate: float) -> StepOpened:
        """Open a step, or return it as it was opened."""
        self._fail_if_scripted("open_step")
        if not (math.isfinite(target_rate) and 0.0 <= target_rate <= 1.0):
            raise InvalidRequest(f"target_rate {target_rate} is outside [0, 1]")
        state = self._task(task)
        if state.opened is not None and state.opened.step == step:
            return state.opened
        if step != state.next_step or state.opened is not None:
            raise _mismatch(state, step)
        state.target_rate, state.step_calls = target_rate, 0
        state.opened = StepOpened(task, step, state.dual.value, target_rate, self._credit(target_rate, planned_prompts))
        return state.opened

    async def complete(self, call: CloudCall, deadline_s: float) -> CloudCompletion:
        """Answer once per prompt group; the same key again gives the same answer."""
        self._fail_if_scripted("complete")
        async with self._lock:
            completion = await self._complete_locked(call, deadline_s)
        if self._lost_replies:
            self._lost_replies -= 1
            raise CoordinatorUnavailable("the scripted reply was lost", reason="CONNECTION_LOST")
        return completion

    async def stream_complete(self, call: CloudCall, deadline_s: float) -> AsyncIterator[CloudDelta]:
        """The answer in two pieces."""
        self._fail_if_scripted("stream_complete")
        completion = await self.complete(call, deadline_s)
        middle = len(completion.text) // 2
        for piece in (completion.text[:middle], completion.text[middle:]):
            yield CloudDelta(piece)
        yield CloudDelta("", completion)

    async def cancel_call(self, call_key: str) -> CancelledCall:
        """A call that is answered stays so; the scripted coordinator knows no other."""
        self._fail_if_scripted("cancel_call")
        completion = await self.get_call(call_key)
        return CancelledCall(call_key, CallProgress.COMPLETED, completion.charged_uusd)

    async def watch_budget(self, task: str) -> AsyncIterator[BudgetSnapshot]:
        """The budget now, then each new version."""
        self._fail_if_scripted("watch_budget")
        state, last = self._task(task), None
        while not self.closed:
            if (newest := self._snapshot(state)) != last:
                last = newest
                yield newest
            else:
                self._changed = asyncio.Event() if self._changed.is_set() else self._changed
                await self._changed.wait()

    async def get_call(self, call_key: str) -> CloudCompletion:
        """The stored result."""
        self._fail_if_scripted("get_call")
        if call_key not in self._results:
            raise NotFound(f"no call has the key {call_key!r}")
        return self._results[call_key][1]

    async def close_step(self, task: str, step: int, units: StepUnits) -> StepClosed:
        """Move λ once."""
        self._fail_if_scripted("close_step")
        state = self._task(task)
        if state.closed is not None and state.closed.step == step:
            return _repeated(state, (units.total, units.help))
        if state.opened is None or state.opened.step != step:
            raise _mismatch(state, step)
        if not 0 <= units.uncalled <= units.help <= units.total or units.total == 0:
            raise InvalidRequest(f"{units.uncalled} of {units.help} of {units.total} units cannot be")
        return self._close(state, state.opened, units)

    async def get_budget(self, task: str) -> BudgetSnapshot:
        """The budget so far."""
        self._fail_if_scripted("get_budget")
        return self._snapshot(self._task(task))

    async def aclose(self) -> None:
        """Mark closed."""
        self.closed = True
        self._changed.set()

    async def _complete_locked(self, call: CloudCall, deadline_s: float) -> CloudCompletion:
        if call.call_key in self._results:
            first, completion = self._results[call.call_key]
            if first != call:
                raise KeyReused(f"the key {call.call_key!r} came with other content")
            return completion
        state = self._checked(call)
        group = (call.task, call.step, call.prompt_id if call.step >= 0 else call.call_key)
        if group in self._groups:
            earlier = self._results[self._groups[group]][1]
            return self._store(call, replace(earlier, call_key=call.call_key, charged_uusd=0, cached=True))
        self._check_limits(call, state)
        await self._wait(deadline_s)
        return self._bill(call, state, group)

    def _checked(self, call: CloudCall) -> _TaskState:
        state = self._task(call.task)
        if not (call.call_key and call.prompt_id and call.messages) or call.max_output_tokens < 1:
            raise InvalidRequest("a call needs a key, a prompt id, messages and max_output_tokens")
        openai_fields(call.openai_json)
        if call.step >= 0 and (state.opened is None or state.opened.step != call.step):
            raise _mismatch(state, call.step)
        return state

    def _check_limits(self, call: CloudCall, state: _TaskState) -> None:
        limit = self._terms.calls_limit
        if limit is not None and len(self.calls) >= limit:
            raise BudgetExhausted("the device's calls are used up", metadata={"budget": "device", "unit": "calls"})
        credit = state.opened.call_credit if state.opened is not None and call.step >= 0 else None
        if credit is not None and state.step_calls >= credit:
            raise BudgetExhausted("the step's call credit is used up", metadata={"budget": "step", "unit": "calls"})

    async def _wait(self, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.sleep(self._delay_s)
        except TimeoutError as error:
            raise CoordinatorUnavailable("the deadline is over", reason="DEADLINE_EXCEEDED") from error

    def _bill(self, call: CloudCall, state: _TaskState, group: tuple[str, int, str]) -> CloudCompletion:
        answer = self._answer(call)
        reply = ScriptedReply(answer) if isinstance(answer, str) else answer
        words = sum(len(message.content.split()) for message in call.messages)
        usage = TokenUsage(words, min(call.max_output_tokens, len(reply.text.split())))
        self.calls.append(call)
        self._next_version()
        state.step_calls += call.step >= 0
        self._groups[group] = call.call_key
        price = self._terms.price_uusd_per_call
        beyond_text = completion_json(reply.finish_reason, reply.beyond_text)
        budget = self._snapshot(state)
        return self._store(call, CloudCompletion(call.call_key, reply.text, usage, price, False, "scripted", budget, beyond_text))

    def _store(self, call: CloudCall, completion: CloudCompletion) -> CloudCompletion:
        self._results[call.call_key] = (call, completion)
        return completion

    def _close(self, state: _TaskState, opened: StepOpened, units: StepUnits) -> StepClosed:
        rate = units.help / units.total
        before = state.dual.state
        acts_on = rate if units.own_rate is None else units.own_rate
        state.dual.state = proportional_integral_step(before, acts_on, opened.target_rate, self._terms.rule)
        state.closed = StepClosed(opened.task, opened.step, before.dual, state.dual.value, rate)
        state.reported = (units.total, units.help)
        state.next_step, state.opened = opened.step + 1, None
        self._next_version()
        return state.closed

    def _snapshot(self, state: _TaskState) -> BudgetSnapshot:
        spent = len(self.calls) * self._terms.price_uusd_per_call
        return BudgetSnapshot(
            self._version, state.dual.value, state.target_rate, len(self.calls), self._terms.calls_limit, 0, None, spent, None
        )

    def _task(self, name: str) -> _TaskState:
        if not name:
            raise InvalidRequest("the task has no name")
        key = "" if self._terms.dual_scope == "global" else name
        dual = self._duals.setdefault(key, _Dual(DualState(self._terms.dual_init)))
        return self._tasks.setdefault(name, _TaskState(dual, self._terms.target_rate))

    def _credit(self, target_rate: float, planned_prompts: int) -> int | None:
        kappa = self._terms.step_credit_kappa
        return None if kappa is None else math.ceil(kappa * target_rate * planned_prompts)

    def _next_version(self) -> None:
        self._version += 1
        self._changed.set()

    def _fail_if_scripted(self, method: str) -> None:
        if self._failures[method]:
            raise self._failures[method].popleft()


def _echo(call: CloudCall) -> str:
    return f"\\boxed{{{call.messages[-1].content}}}"


def _repeated(state: _TaskState, reported: tuple[int, int]) -> StepClosed:
    assert state.closed is not None
    if state.reported != reported:
        raise KeyReused(f"step {state.closed.step} was closed with other numbers")
    return state.closed


def _mismatch(state: _TaskState, step: int) -> StepMismatch:
    expected = state.opened.step if state.opened is not None else state.next_step
    return StepMismatch(f"step {step} is not the expected {expected}", metadata={"expected_step": str(expected)})
