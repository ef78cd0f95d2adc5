"""Opening and closing learning steps at the coordinator; while it is away their reports wait in the state folder.

A report that is refused, as of a task that was taken away from this device, is set aside with one notice, and it is sent again only
when its task is learned again, or learning ends. So it holds up neither the start of the agent nor other tasks.

A batch runs against the one λ that `open` returned. `StepReporter` alone numbers steps: the kept terms have the step that the coordinator
expects, and a new step comes after those whose reports wait. After a mismatch the coordinator's number is taken.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from edge import __version__
from edge.core.clock import Clock
from edge.core.errors import (
    CoordinatorError,
    CoordinatorUnavailable,
    KeyReused,
    NotFound,
    PermissionDenied,
    StepMismatch,
    Withheld,
    is_refused_alone,
)
from edge.core.events import EventSink
from edge.core.formatting import counted
from edge.dagrpo.advantages import mean
from edge.dagrpo.dual import help_bias_step
from edge.rpc.client import CoordinatorClient, StepClosed, StepUnits
from edge.state.events import Notice, ReportsDelivered
from edge.state.folder import StateFolder
from edge.state.rows import Report, StoredTerms

HELP_GAIN_STEPS, LEAST_GAINS = 10, 5
"""Whether asking helps is judged by the gains of the last ten steps, once five of them have one."""


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step under way, and what holds for all of it."""

    task: str
    task_step: int
    """Counts the task's steps at the coordinator."""
    dual: float
    """λ."""
    target_rate: float
    """τ."""
    planned_prompts: int
    group_size: int
    offline: bool
    """The coordinator does not know of it."""
    help_bias: float | None = None
    """b, nats on every decision to ask of the rollouts' policy (None: λ alone holds the rate)."""


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """λ after the step, and the report that the coordinator has not taken, if any."""

    terms: StoredTerms
    waiting_report: Report | None


@dataclass(slots=True)
class StepReporter:
    """The device's side of steps and λ.

    While the coordinator is away it is tried again at most every `offline_retry_s`; each try costs a connection time-out. `dial_in_loop`:
    rollouts have a help bias that follows the rate (edge.dagrpo.dual.help_bias_step), else none.
    """

    client: CoordinatorClient
    state: StateFolder
    sink: EventSink
    clock: Clock
    dual_init: float
    offline_retry_s: float = 0.0
    dial_in_loop: bool = False
    away_since: float | None = field(default=None, init=False)

    async def open(self, task: str, planned_prompts: int, group_size: int, target_rate: float) -> OpenStep:
        """Deliver what waits, then open the task's next step. Without a coordinator: the last λ, offline.

        Raises CoordinatorError for refusals that are not about reachability or step numbers.
        """
        known = self._after_waiting(self.state.terms(task) or StoredTerms(task, target_rate, self.dual_init, 0))
        plan = OpenStep(
            task,
            known.next_step,
            known.dual,
            target_rate,
            planned_prompts,
            group_size,
            offline=True,
            help_bias=self._help_bias(task),
        )
        if self.away_since is not None and self.clock.monotonic() - self.away_since < self.offline_retry_s:
            return plan
        try:
            refusal = (await self.deliver(task)).get(task)
            if isinstance(refusal, NotFound | PermissionDenied):  # a new step would take the number of one whose report stays
                raise refusal
            known = self.state.terms(task) or await self._first_terms(known)
            try:
                opened = await self.client.open_step(task, known.next_step, planned_prompts, group_size, target_rate)
            except StepMismatch as error:
                if error.expected_step < 0:
                    raise
                self._notice(
                    f"task {task}: the coordinator expects step {error.expected_step}, not {known.next_step}; going on there"
                )
                opened = await self.client.open_step(task, error.expected_step, planned_prompts, group_size, target_rate)
        except CoordinatorUnavailable:
            self.away_since = self.clock.monotonic()
            return plan
        self.away_since = None
        return replace(plan, task_step=opened.step, dual=opened.dual, target_rate=opened.target_rate, offline=False)

    async def close(self, step: OpenStep, units: StepUnits) -> ClosedStep:
        """Report the step; the coordinator moves λ exactly once however often this is repeated.

        Offline or refused: the report waits, and λ stays.
        """
        report = Report(step.task, step.task_step, step.planned_prompts, step.group_size, step.target_rate, units)
        after = StoredTerms(step.task, step.target_rate, step.dual, step.task_step + 1)
        try:
            closed = None if step.offline else await self._closed(report)
        except CoordinatorUnavailable:
            closed = None
        except (StepMismatch, KeyReused) as error:
            return ClosedStep(await self._adopted(after, error), None)
        except CoordinatorError as error:
            if not is_refused_alone(error):
                raise
            self._report_refusals(step.task, 1, str(error))
            return ClosedStep(after, replace(report, refused=str(error)))
        if closed is None:
            expected = self.state.terms(step.task) if step.offline else None
            return ClosedStep(replace(after, next_step=expected.next_step if expected else step.task_step), report)
        for discrepancy in closed.discrepancies:
            self._notice(f"coordinator, step {step.task_step} of {step.task}: {discrepancy}")
        return ClosedStep(replace(after, dual=closed.dual_after), None)

    async def deliver(self, task: str | None = None) -> dict[str, CoordinatorError]:
        """Deliver the reports that wait, in order, and set aside those that are refused. Returns the refusal of each task that had one.

        Those that were refused before are tried for `task` alone (None: for all). Raises CoordinatorUnavailable when the coordinator is
        away; what was delivered stays so.
        """
        delivered: list[str] = []
        held: dict[str, str] = {}  # why a task's reports stay: a later one must not take an earlier one's number
        refusals: dict[str, CoordinatorError] = {}
        newly_refused = Counter[str]()
        try:
            for row, report in self.state.waiting_reports():
                if report.refused and task not in (None, report.task):
                    held[report.task] = report.refused
                if report.task not in held:
                    try:
                        terms = await self._deliver_one(report)
                    except CoordinatorError as error:
                        if not (is_refused_alone(error) or isinstance(error, Withheld)):
                            raise
                        held[report.task], refusals[report.task] = str(error), error
                    else:
                        self.state.delivered(row, terms)
                        delivered.append(report.task)
                        continue
                if not report.refused:
                    self.state.refused(row, held[report.task])
                    newly_refused[report.task] += 1
        finally:
            for name, count in newly_refused.items():
                self._report_refusals(name, count, held[name])
        if delivered:
            known = self.state.terms(delivered[-1])
            dual = known.dual if known else self.dual_init
            self.sink.emit(ReportsDelivered(delivered[-1], len(delivered), dual, self.clock.now()))
        return refusals

    def _help_bias(self, task: str) -> float | None:
        """b of the task's next step, from its last committed one."""
        if not self.dial_in_loop:
            return None
        controls = [step.control for step in self.state.steps(last=HELP_GAIN_STEPS, task=task)]
        if not controls or controls[-1].help_bias is None:
            return 0.0
        gains = [control.help_gain for control in controls if control.help_gain is not None]
        last, helps = controls[-1], len(gains) < LEAST_GAINS or mean(gains) > 0.0
        return help_bias_step(last.help_bias or 0.0, last.held_rate, last.target_rate, helps=helps)

    def _after_waiting(self, known: StoredTerms) -> StoredTerms:
        """The terms with the number of the task's next step here, which comes after those whose reports wait."""
        waiting = [report.task_step for _, report in self.state.waiting_reports() if report.task == known.task]
        return replace(known, next_step=waiting[-1] + 1) if waiting else known

    async def _first_terms(self, unknown: StoredTerms) -> StoredTerms:
        """What the coordinator holds a task to that this state folder does not know yet."""
        registration = await self.client.register(__version__, [unknown.task])
        offered = next((terms for terms in registration.tasks if terms.task == unknown.task), None)
        return unknown if offered is None else replace(unknown, dual=offered.dual, next_step=offered.next_step)

    async def _closed(self, report: Report) -> StepClosed:
        return await self.client.close_step(report.task, report.task_step, report.units)

    async def _deliver_one(self, report: Report) -> StoredTerms | None:
        """The terms after the report, or None when the coordinator has already gone past its step."""
        try:
            opened = await self.client.open_step(
                report.task, report.task_step, report.planned_prompts, report.group_size, report.target_rate
            )
            target_rate = opened.target_rate
        except StepMismatch:
            target_rate = report.target_rate  # closed before with the answer lost, or a gap: closing shows which
        try:
            closed = await self._closed(report)
        except StepMismatch as error:
            if 0 <= error.expected_step < report.task_step:
                return await self._deliver_one(replace(report, task_step=error.expected_step))
            self._notice(
                f"task {report.task}: the report of step {report.task_step} is dropped, the coordinator is at {error.expected_step}"
            )
            return None
        except KeyReused as error:
            return await self._adopted(StoredTerms(report.task, target_rate, 0.0, report.task_step + 1), error)
        return StoredTerms(report.task, target_rate, closed.dual_after, report.task_step + 1)

    async def _adopted(self, terms: StoredTerms, error: CoordinatorError) -> StoredTerms:
        """The coordinator's own view after it rejected a report: its next step and its λ."""
        self._notice(f"task {terms.task}: step {terms.next_step - 1} could not be reported ({error}); taking the coordinator's λ")
        budget = await self.client.get_budget(terms.task)
        expected = error.expected_step if isinstance(error, StepMismatch) else -1
        return replace(terms, dual=budget.dual, next_step=expected if expected >= 0 else terms.next_step)

    def _report_refusals(self, task: str, count: int, why: str) -> None:
        reports = counted(count, "step report")
        self._notice(f"task {task}: the coordinator refuses {reports} ({why}); set aside until the task is learned again")

    def _notice(self, text: str) -> None:
        self.sink.emit(Notice(text=text, at=self.clock.now()))
