"""Opening and closing learning steps at the coordinator; while it is away their reports wait in the state folder.

A report that is refused, as of a task that was taken away from this device, is set aside with one notice, and it is sent again only
when its task is learned again, or learning ends. So it holds up neither the start of the agent nor other tasks.

A batch runs against the one λ that `open` returned. `StepReporter` alone numbers steps: the kept terms have the step that the coordinator
expects, and a new step comes after those whose reports wait. After a mismatch the coordinator's number is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
from edge.dagrpo.dual import HelpBiasRule, estimated_dual, help_bias_step, help_rate, next_help_bias
from edge.rpc.client import CoordinatorClient, StepClosed, StepUnits
from edge.state.events import Notice, ReportsDelivered
from edge.state.folder import StateFolder
from edge.state.rows import Report, StoredTerms

HELP_GAIN_STEPS, LEAST_GAINS = 10, 5
"""Whether asking helps is judged by the gains of the last ten steps, once five of them have one."""
DUAL_STEPS = 8
"""Steps whose groups show what asking gains, where λ is estimated and a step's own groups do not show it."""
EXPECTED_STEPS = 4
"""Steps over whose mean the realised rate is compared with the one that their help bias was expected to bring."""


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step under way, and what holds for all of it."""

    task: str
    task_step: int
    """Counts the task's steps at the coordinator."""
    dual: float
    """λ of the coordinator."""
    target_rate: float
    """τ."""
    planned_prompts: int
    group_size: int
    offline: bool
    """The coordinator does not know of it."""
    help_bias: float | None = None
    """b, nats on every decision to ask of the rollouts' policy (None: λ alone holds the rate)."""
    expected_rate: float | None = None
    """What the rate is expected to be under b (None: the policy's log-odds are not known)."""
    estimated_dual: float | None = None
    """λ by what asking gained, at which the step is learned in place of `dual` (None: it is not estimated, or nothing shows it)."""

    @property
    def step_dual(self) -> float:
        """λ of the step's advantages."""
        return self.dual if self.estimated_dual is None else self.estimated_dual


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """λ after the step, and the report that the coordinator has not taken, if any."""

    terms: StoredTerms
    waiting_report: Report | None


@dataclass(slots=True)
class StepReporter:
    """The device's side of steps and λ.

    While the coordinator is away it is tried again at most every `offline_retry_s`; each try costs a connection time-out.
    `help_bias_rule`: how the rollouts' help bias holds the rate; None: they have none. `estimates_dual`: a step's λ is what asking gained
    in it; the coordinator goes on with its own.
    """

    client: CoordinatorClient
    state: StateFolder
    sink: EventSink
    clock: Clock
    dual_init: float
    offline_retry_s: float = 0.0
    help_bias_rule: HelpBiasRule | None = None
    estimates_dual: bool = False
    away_since: float | None = field(default=None, init=False)

    async def open(self, task: str, planned_prompts: int, group_size: int, target_rate: float) -> OpenStep:
        """Open the task's next step, with the help bias of its rollouts. Raises CoordinatorError as `_open` does."""
        return self._with_help_bias(await self._open(task, planned_prompts, group_size, target_rate))

    async def _open(self, task: str, planned_prompts: int, group_size: int, target_rate: float) -> OpenStep:
        """Deliver what waits, then open the task's next step. Without a coordinator: the last λ, offline.

        Raises CoordinatorError for refusals that are not about reachability or step numbers.
        """
        known = self._after_waiting(self.state.terms(task) or StoredTerms(task, target_rate, self.dual_init, 0))
        plan = OpenStep(task, known.next_step, known.dual, target_rate, planned_prompts, group_size, offline=True)
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

    def estimated(self, step: OpenStep, slopes: Sequence[tuple[float, float]]) -> OpenStep:
        """Where λ is estimated, the step with it: what asking gained in its own groups (`slopes`), else in the task's last steps.

        Of its own groups, so that the common push is out of the step's advantages, not only on average over steps: the help phrase has a
        gradient some fifty times that of an answer, mostly the same for all questions, and b takes back what it does.
        """
        if not self.estimates_dual:
            return step
        own = estimated_dual(slopes)
        before = [one.control.ask_slope for one in self.state.steps_led_here(DUAL_STEPS, step.task)]
        return replace(step, estimated_dual=estimated_dual(before) if own is None else own)

    def dual_after(self, step: OpenStep, closed: ClosedStep, slope: tuple[float, float]) -> float:
        """What asking gained in the last steps, with this one (`slope`)."""
        if step.estimated_dual is None:
            return closed.terms.dual
        before = [one.control.ask_slope for one in self.state.steps_led_here(DUAL_STEPS - 1, step.task)]
        known = estimated_dual([*before, slope])
        return step.estimated_dual if known is None else known

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

    def must_look(self, opened: OpenStep) -> bool:
        """Whether nothing is known yet that a step's help bias could be solved on. A model that was not made for asking may be 30 nats away
        from it, and its first step would be lost."""
        return self.help_bias_rule == "solved" and opened.expected_rate is None

    def _with_help_bias(self, opened: OpenStep) -> OpenStep:
        """The step with b, and what it is expected to bring, from the task's last committed steps."""
        if self.help_bias_rule is None:
            return opened
        controls = [step.control for step in self.state.steps_led_here(HELP_GAIN_STEPS, opened.task)]
        gains = [control.help_gain for control in controls if control.help_gain is not None]
        helps = len(gains) < LEAST_GAINS or mean(gains) > 0.0
        record, last, bias = self.state.help_record(opened.task), controls[-1] if controls else None, 0.0
        if self.help_bias_rule == "solved" and record.log_odds_N:
            missed = [control.expected_rate - control.held_rate for control in controls if control.expected_rate is not None]
            bias = next_help_bias(
                record.log_odds_N,
                opened.target_rate,
                weights_N=record.weights_N,
                fell_short=mean(missed[-EXPECTED_STEPS:]) if missed else 0.0,
                helps=helps,
            )
        elif self.help_bias_rule == "integrated" and last is not None and last.help_bias is not None:
            bias = help_bias_step(last.help_bias, last.held_rate, last.target_rate, helps=helps)
        expected_rate = help_rate(record.log_odds_N, bias, record.weights_N) if record.log_odds_N else None
        return replace(opened, help_bias=bias, expected_rate=expected_rate)

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
