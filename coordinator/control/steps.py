"""Learning steps at the coordinator: which τ, λ_0 and rule of λ hold for a step of a task, and which λ it moves (a task's own, or a
shared one: `dual_scope`). Knows tasks and steps; knows nothing of money or of gRPC.

λ itself is kept and moved by the ledger (coordinator.ledger.transitions), in the transaction that closes the step, so that it moves
exactly once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from coordinator import failpoints
from coordinator.config import ANY_TASK, TaskConfig
from coordinator.ledger.accounts import CloseStepRequest, OpenStepRequest, dual_key
from coordinator.ledger.stores.store import LedgerStore
from coordinator.ledger.transitions import check_close, check_open
from edge.core.clock import Clock
from edge.core.errors import InvalidRequest, NotFound
from edge.rpc.client import StepClosed, StepOpened, StepUnits, TaskTerms

MOST_REFUSED_STEPS = 10_000
"""Steps without a report that are known to have met a budget's refusal, of all devices together; the oldest is forgotten first."""
_TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}")


class StepController:
    """Opens and closes learning steps under the configured terms of each task."""

    def __init__(self, store: LedgerStore, tasks: Mapping[str, TaskConfig], clock: Clock) -> None:
        self._store = store
        self._tasks = dict(tasks)
        self._clock = clock
        self._refused_steps: dict[tuple[str, str, int], None] = {}

    def replace_tasks(self, tasks: Mapping[str, TaskConfig]) -> None:
        """Hold later steps and calls to these terms; open steps keep theirs, and a task keeps its λ when its scope changes."""
        self._tasks = dict(tasks)

    def shared_dual_of(self, device: str, task: str) -> str:
        """The key of the λ that this task of this device moves now; "" for one of its own."""
        return dual_key(self.terms_of(task).dual_scope, device, task)

    async def first_dual(self, device: str, task: str) -> float:
        """The λ that a device meets at its first contact with a task: that of the others, where it is shared and has moved already."""
        key = self.shared_dual_of(device, task)
        shared = await self._store.get_shared_dual(key) if key else None
        return self.terms_of(task).dual_init if shared is None else shared.dual

    def note_refusal(self, device: str, task: str, step: int) -> None:
        """A budget refused a call of this step: asking for help without a call is then no discrepancy. Calls outside training, whose step
        is -1, say nothing of one; a report may come late, when the next step was refused, too."""
        if step >= 0:
            self._refused_steps[device, task, step] = None
            if len(self._refused_steps) > MOST_REFUSED_STEPS:  # of steps that nobody reports
                del self._refused_steps[next(iter(self._refused_steps))]

    def terms_of(self, task: str) -> TaskConfig:
        """The configured terms of a label. Raises InvalidRequest on a malformed one, NotFound on an unknown one."""
        if not _is_task_name(task):
            raise InvalidRequest("a task label is 1 to 64 letters, digits or any of . _ : + -")
        terms = self._tasks.get(task) or self._tasks.get(ANY_TASK)
        if terms is None:
            raise NotFound(f"no task is called {task!r}", hint=f"known: {', '.join(sorted(self._tasks))}")
        return terms

    async def current(self, device: str, task: str) -> TaskTerms:
        """τ, λ and the next step of a device's task."""
        terms = self.terms_of(task)
        row = await self._store.get_task(device, task)
        if row is None:
            return TaskTerms(task, terms.rate_at(0, self._clock.now()), await self.first_dual(device, task), 0)
        return TaskTerms(task, row.target_rate, row.dual, row.next_step)

    async def open_step(
        self, device: str, task: str, step: int, planned_prompts: int, group_size: int, target_rate: float | None
    ) -> StepOpened:
        """Open a step. `target_rate` is the device's wish, taken where the task's terms allow. Raises StepMismatch, InvalidRequest."""
        terms, now = self.terms_of(task), self._clock.now()
        request = OpenStepRequest(
            device=device,
            task=task,
            step=step,
            planned_prompts=planned_prompts,
            group_size=group_size,
            target_rate=terms.rate_at(step, now, target_rate),
            rule=terms.dual_rule,
            initial_dual=terms.dual_init,
            credit_factor=terms.step_credit_kappa,
            now=now,
            shared_dual=self.shared_dual_of(device, task),
        )
        check_open(request)  # before a store that is asked for a step that no database can keep
        row = await self._store.open_step(request)
        return StepOpened(task, step, row.dual, row.target_rate, row.call_credit)

    async def close_step(self, device: str, task: str, step: int, units: StepUnits) -> StepClosed:
        """Close a step and move λ; repeated with the same numbers, the first answer. Raises StepMismatch, InvalidRequest, KeyReused."""
        self.terms_of(task)
        refused = (device, task, step) in self._refused_steps
        request = CloseStepRequest(device, task, step, units, self._clock.now(), refused)
        check_close(request)
        failpoints.reach("before_close_step")
        row = await self._store.close_step(request)
        self._refused_steps.pop((device, task, step), None)  # the ledger keeps what it has found, however often it is reported
        failpoints.reach("closed")
        return StepClosed(task, step, row.dual_before, row.dual_after, row.assist_rate, row.discrepancies)


@lru_cache(maxsize=4096)
def _is_task_name(text: str) -> bool:
    return _TASK_NAME.fullmatch(text) is not None
