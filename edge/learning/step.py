"""One learning step of DA-GRPO (Algorithm 1), and what a restart finishes of one that was cut.

Crash safety: up to the checkpoint nothing but idempotent calls has happened, so the step is simply made again with the same seeds and
call keys. From the checkpoint on, its manifest holds all that is needed to report and commit, which `finish` does (again).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal, NamedTuple

from edge.budget.pace import Pace
from edge.core.errors import StateError
from edge.core.formatting import counted
from edge.core.types import TrainingGroup
from edge.dagrpo.advantages import has_signal
from edge.dagrpo.costs import CallCost
from edge.dagrpo.dual import EXPLORED_RATE, solved_help_bias
from edge.inference.backend import CountingBackend, InferenceBackend
from edge.learning.adapters import ServingAdapter
from edge.learning.checkpoints import Checkpoint, StepManifest
from edge.learning.collapse import CollapseMemory, Watched
from edge.learning.components import AgentComponents, AgentSettings
from edge.learning.curriculum import StepPlan
from edge.learning.imitation import GivenAnswers
from edge.learning.methods import StepTerms
from edge.learning.promotion import Judgement, PromotionGate
from edge.learning.rollout import Batch, ResponseOutcome, Rollout, ScoredGroup, step_units
from edge.learning.step_event import StepResult, ask_slopes, help_record, step_event
from edge.learning.step_reporter import ClosedStep, StepReporter
from edge.state.events import (
    AdapterSwapped,
    AnchorsJudged,
    GateJudged,
    Notice,
    StepFinished,
    StepPart,
    StepProgress,
    StepSeconds,
)
from edge.state.folder import COLLAPSE_MEMORY
from edge.state.rows import Commit, HelpRecord, Lineage, Position, WentBackRow, version_name
from edge.training.floor import StepMeasure
from edge.training.learner import CountingLearner, Learner


@dataclass(slots=True)
class LearningStep:
    """Makes steps one after the other."""

    components: AgentComponents
    settings: AgentSettings
    adapter: ServingAdapter
    """What answers people."""
    rollout: Rollout
    """Its engine samples for the learner; without a gate it is the one that answers people, and every step's adapter is active."""
    given: GivenAnswers
    learner: Callable[[], Learner]
    """Called in every step, because going back to the bare model begins with another learner."""
    reporter: StepReporter
    gate: PromotionGate | None
    pace: Pace | None
    """With it, λ acts on what calls cost, and τ is what the budget leaves."""
    interruptible: bool = field(default=True, init=False)
    """Cancelling now loses nothing but work that can be made again."""
    was_refused: bool = field(default=False, init=False)
    was_unanswered: bool = field(default=False, init=False)
    known_before: tuple[str, int] = field(default=("", 0), init=False)
    """A source and how many of its given answers were known when that was last reported."""
    was_cut: bool = field(default=False, init=False)
    _phases: StepPhases | None = field(default=None, init=False)
    _measure: Callable[[], StepMeasure | None] = field(init=False)
    """The least time that steps could take on the device is computed from it; asked once."""

    def __post_init__(self) -> None:
        self._measure = cache(self.components.step_measure)

    @property
    def progress(self) -> StepProgress | None:
        """How far the step under way has come; None between steps."""
        return None if self._phases is None else self._phases.progress

    async def run(self, plan: StepPlan, base: int) -> StepFinished:
        """One step that trains the learner on from version `base`, which it holds; committed when this returns."""
        phase = self._phases = StepPhases(plan.step, self.components)
        method, group_size, prompts = self.settings.method, self.settings.rollout.group_size, len(plan.items)
        opened = await self.reporter.open(plan.task, prompts, group_size, self._target_rate(plan))  # its number, λ and τ
        with phase("rollout"):  # sample, ask, compose, verify
            batch = Batch(plan.step, plan.items, opened, plan.stay_here, self._call_cost(), plan.draws)
            responses = prompts * group_size
            phase.report("rollout", 0, responses)
            if self.settings.rollout.guided and self.reporter.must_look(opened):
                look = await self.rollout.log_odds(batch)
                opened = replace(opened, help_bias=solved_help_bias(look.log_odds_N, opened.target_rate, look.weights_N))
                batch = replace(batch, opened=opened)
            async with phase.watched("rollout", sampled_by(self.rollout.backend, responses)) as counted_by_engine:
                shown = (
                    (lambda done: None)
                    if counted_by_engine
                    else lambda done: phase.report("rollout", done * group_size, responses)
                )
                groups = await self.rollout.collect(batch, shown)
            async with phase.watched("given", sampled_by(self.rollout.backend)):
                given = await self.given.batch(plan, groups, self.learner())  # answers to imitate, and to keep
            self._notify(groups, offline=opened.offline)
            known = (plan.source, given.known_by_heart)
            if plan.ends_when_known and known != self.known_before and (given.known or given.demonstrations):
                text = f"{plan.source}: {given.known_by_heart} of {counted(len(plan.by_heart), 'given answer')} known"
                self.components.sink.emit(Notice(text, self.components.clock.now()))
                self.known_before = known
        opened = self.reporter.estimated(opened, ask_slopes(groups))  # where λ is not the coordinator's
        self.interruptible = False
        try:
            terms = StepTerms(plan.step, plan.task, opened.target_rate)
            advantages = method.advantages(groups, dual=opened.step_dual, terms=terms)  # Â = (r - mean r) - λ (c - mean c)
            with phase("update"):
                learner, rate_share = self.learner(), self._collapse_memory(base).rate_share
                training_groups = [one.training_group() for one in advantages]
                learner.scale_steps(rate_share * self._live_share(training_groups))
                async with phase.watched("update", learned_by(learner)):
                    report = await learner.update(training_groups)
                learner.scale_steps(rate_share)
                imitation = None
                if given.demonstrations:
                    async with phase.watched("imitation", learned_by(learner)):
                        imitation = await learner.imitate((*given.demonstrations, *given.repeated), given.kept)
            with phase("save"):
                by_cost = self.pace is not None
                cut = self.rollout.beyond_limit
                result = StepResult(plan, opened, groups, advantages, report, given, imitation, by_cost, cut)
                manifest = self._manifest(result, phase.so_far(self.rollout.cloud_s), base)
                saved = await self.adapter.checkpoints.write(plan.step, learner, manifest)
            return await self.finish(saved, phase)
        finally:
            self.interruptible = True

    async def finish(self, saved: Checkpoint, phase: StepPhases | None = None) -> StepFinished:
        """Report, judge, commit and activate what a checkpoint holds; also of a step that was cut off after its checkpoint.

        Idempotent up to the commit: the coordinator answers a repeated report with its first answer.
        """
        manifest, phase = saved.manifest(), phase or StepPhases(saved.step, self.components)
        self._phases = phase
        state, sink, serving, sampling = self.components.state, self.components.sink, self.adapter.backend, self.rollout.backend
        with phase("close"):
            closed = await self.reporter.close(manifest.opened, manifest.units)  # rate -> the coordinator's new λ
            control = replace(
                manifest.draft.control,
                dual_after=self.reporter.dual_after(manifest.opened, closed, manifest.draft.control.ask_slope),
                offline=closed.waiting_report is not None,
                own_rate=manifest.units.own_rate,
            )
            event = replace(manifest.draft, control=control, at=self.components.clock.now())
        watched = self._collapse_memory(manifest.base).followed_by(event) if self.settings.watches_collapse else None
        collapsed = watched is not None and watched.collapse != ""
        with phase("gate"):
            judgement = None
            if self.gate is not None and manifest.gate_due and manifest.base == state.lineage().latest and not collapsed:
                async with phase.watched("gate", sampled_by(self.rollout.backend)):
                    judgement = await self.gate.judge(saved, event, manifest.base)
        async with self.adapter.switching:
            with phase("swap"):
                before = state.lineage()
                if manifest.base != before.latest:  # somebody went back to another version meanwhile
                    watched = None
                event, lineage = self._commit(phase.timed(event), saved, manifest, closed, judgement, watched)
                self.components.failpoint("committed")
                # where training went back, the next step begins with loading that version
                if lineage.latest == saved.step and sampling.adapter_version != saved.step:
                    await sampling.swap_adapter(saved.adapter)
                if lineage.serving == saved.step:
                    if serving.adapter_version != saved.step:
                        await serving.swap_adapter(saved.adapter)
                    sink.emit(AdapterSwapped(saved.step, saved.adapter.folder))
                elif lineage.serving != before.serving:
                    good = self.adapter.checkpoints.at(lineage.serving)
                    await serving.swap_adapter(good.adapter if good else None)
                    sink.emit(AdapterSwapped(lineage.serving, good.adapter.folder if good else ""))
        needed = {lineage.latest, lineage.serving, manifest.base, state.best_version(), *lineage.kept}
        self.adapter.checkpoints.prune(needed | set(watched.memory.versions if watched else ()))
        event, self._phases = phase.timed(event), None
        sink.emit(event)
        if judgement is not None:
            self._report_judgement(event, lineage, judgement)
        if watched is not None and watched.collapse:
            self._report_collapse(watched, lineage.latest)
        return event

    def _collapse_memory(self, base: int) -> CollapseMemory:
        """What the steps that led to version `base` have left."""
        return CollapseMemory.from_json(self.components.state.meta(COLLAPSE_MEMORY), base, self.settings.learning_rate)

    def _live_share(self, groups: Sequence[TrainingGroup]) -> float:
        """What the learning rate is multiplied by: Adam makes a step with one live group as large as one with eight."""
        scaling = self.settings.live_group_scaling
        if scaling == "off" or (scaling == "auto" and not self.settings.rollout.guided):
            return 1.0
        live = sum(has_signal([sample.advantage for sample in group.samples]) for group in groups)
        return live / len(groups) if live else 1.0

    def _help_records(self, version: int, task: str) -> dict[str, HelpRecord]:
        """Where training goes back to a version: how much the responses it was learned from wished to ask. Of other tasks this is not known
        any more, and it is found out anew."""
        checkpoint, record = self.adapter.checkpoints.at(version), None
        if checkpoint is not None:
            with suppress(StateError):  # a damaged manifest
                manifest = checkpoint.manifest()
                record = manifest.help_record if manifest.opened.task == task else None
        return dict.fromkeys(self.components.state.tasks_with_help_record(), HelpRecord()) | {task: record or HelpRecord()}

    def _target_rate(self, plan: StepPlan) -> float:
        """τ: the plan's, or what the budget leaves; asking is kept from dying out where it leaves nothing."""
        paced = None if self.pace is None else self.pace.rate()
        return plan.target_rate if paced is None else max(EXPLORED_RATE, paced)

    def _call_cost(self) -> CallCost | None:
        """What was known of calls when the last step was committed, so that a step that is made again weighs them the same."""
        if self.pace is None:
            return None
        return next((self.pace.call_cost(last.at) for last in self.components.state.steps(last=1)), None)

    def _manifest(self, result: StepResult, seconds: StepSeconds, base: int) -> StepManifest:
        """All that the rest of the step needs, so that a restart can do it."""
        plan, opened, before = result.plan, result.opened, next(iter(self.components.state.steps(last=1)), None)
        # own steps between those of the phases are judged with the next one of these, whose rate counts
        own_between = plan.own and not plan.phases_done
        by_heart = plan.ends_when_known or (plan.own and not plan.generalises)
        learned = by_heart and result.imitation is not None  # who gave these answers wants to have them
        all_known = plan.ends_when_known and result.given.known_by_heart == len(plan.by_heart)
        position = Position(plan.step, plan.phase, plan.phase_step)
        return StepManifest(
            opened=opened,
            units=step_units(result.groups, with_bias=opened.help_bias is not None, by_cost=result.by_cost),
            position=Position(plan.step, plan.phase + 1, 0) if all_known else position,
            source=plan.source,
            cursor_seed=plan.cursor_seed,
            cursor_after=plan.cursor_after,
            used=tuple(key for place, key in enumerate(plan.used) if place not in result.beyond_limit),
            demonstrated=result.given.shown,
            kept=result.given.found,
            draft=step_event(result, seconds, before, self._measure()),
            base=base,
            gate_due=self.gate is not None and not own_between and self.gate.is_due(plan.step, plan.ends_phase or learned),
            help_record=self.components.state.help_record(plan.task).followed_by(help_record(result.groups)),
        )

    def _commit(
        self,
        event: StepFinished,
        saved: Checkpoint,
        manifest: StepManifest,
        closed: ClosedStep,
        judgement: Judgement | None,
        watched: Watched | None,
    ) -> tuple[StepFinished, Lineage]:
        """In one transaction: the step, and what becomes of its adapter. Somebody may have gone back to another version meanwhile."""
        state, base = self.components.state, manifest.base
        before, collapse, went_back_row = state.lineage(), watched.collapse if watched else "", None
        help_records = {} if manifest.help_record is None else {event.task: manifest.help_record}
        if watched is not None and collapse:
            good = watched.memory.good
            lineage = before.after_collapse(good, serves=self.gate is None)
            help_records = self._help_records(good, event.task)
            if lineage.serving != before.serving:
                went_back_row = WentBackRow(event.at, before.serving, good, "collapse", collapse)
        elif self.gate is None:
            lineage = before.after_step(saved.step, base, "serves")
        else:
            outcome, rules = judgement.outcome if judgement else "waits", self.gate.rules
            lineage = before.after_step(saved.step, base, outcome, max_refusals=rules.max_refusals, keep=rules.keep)
        adapter = replace(event.adapter, base_version=base, serving_version=lineage.serving)
        if collapse:
            adapter = replace(adapter, gate="rolled back", gate_reason=collapse)
        if judgement is not None:
            went_back = judgement.outcome == "refused" and lineage.latest != event.step
            adapter = replace(
                adapter,
                gate="left" if before.latest != base else "rolled back" if went_back else judgement.outcome,
                gate_reason=judgement.reason,
                gate_before=judgement.before,
                gate_after=judgement.after,
                gate_rate=judgement.rate.now,
            )
        event = replace(event, adapter=adapter)
        state.commit_step(
            Commit(
                event=event,
                task_step=manifest.opened.task_step,
                position=manifest.position,
                cursor_source=manifest.source,
                cursor_seed=manifest.cursor_seed,
                cursor=manifest.cursor_after,
                terms=closed.terms,
                waiting_report=closed.waiting_report,
                lineage=lineage,
                help_records=help_records,
                collapse_memory=watched.memory.to_json() if watched else "",
                went_back=went_back_row,
                gate_memory=judgement.memory if judgement else "",
                exams=judgement.exams if judgement else (),
                used=manifest.used,
                demonstrated=manifest.demonstrated,
                kept=manifest.kept,
            )
        )
        return event, lineage

    def _notify(self, groups: Sequence[ScoredGroup], *, offline: bool) -> None:
        """Report the prompts that are left out, and once per run of such steps that the limit of tokens leaves some out, that the budget
        refuses, or that no call is answered (`offline` is reported where it begins)."""
        sink, now, left_out = self.components.sink, self.components.clock.now(), self.rollout.left_out
        if left_out:
            sink.emit(Notice(f"{len(left_out)} prompts are left out: {'; '.join(dict.fromkeys(left_out))}", now))
        cut, most = len(self.rollout.beyond_limit), self.settings.rollout.step_tokens
        if cut and not self.was_cut:
            text = f"{cut} of {counted(cut + len(left_out) + len(groups), 'question')} are left out: those before them took"
            sink.emit(Notice(f"{text} the {most} tokens that a step may sample (learning.step_tokens)", now))
        self.was_cut = bool(cut)
        refused = [group for group in groups if _has(group, ResponseOutcome.REFUSED)]
        if refused and not self.was_refused:
            sink.emit(Notice(refused[0].cloud_reason, now))
        self.was_refused = bool(refused)
        failed = [group.cloud_reason for group in groups if _has(group, ResponseOutcome.MASKED)]
        unanswered = bool(failed) and not offline and not any(_has(group, ResponseOutcome.ASKED) for group in groups)
        if unanswered and not self.was_unanswered:
            calls = counted(len(failed), "call")
            text = (
                f"the cloud answered none of {calls}: {failed[0]}. Learning goes on without it; check the cloud's address and key"
            )
            sink.emit(Notice(text, now))
        self.was_unanswered = unanswered

    def _report_collapse(self, watched: Watched, version: int) -> None:
        rate = self.settings.learning_rate * watched.memory.rate_share
        text = f"learning has collapsed: {watched.collapse}; training goes back to {version_name(version)}, with half the learning rate"
        self.components.sink.emit(Notice(f"{text} ({rate:.2g})", self.components.clock.now()))

    def _report_judgement(self, event: StepFinished, lineage: Lineage, judgement: Judgement) -> None:
        sink, now = self.components.sink, self.components.clock.now()
        rate, adapter = judgement.rate, event.adapter
        sink.emit(
            GateJudged(
                step=event.step,
                verdict=adapter.gate,
                reason=adapter.gate_reason,
                serving_version=lineage.serving,
                refusals=lineage.refusals,
                anchors=tuple(
                    AnchorsJudged(one.source, one.items, one.before, one.after, one.example) for one in judgement.anchors
                ),
                target_rate=rate.target,
                rate=rate.now,
                rate_before=rate.before,
                at=now,
            )
        )
        active = version_name(lineage.serving)
        consequence = {
            "refused": f"{active} stays, training goes on",
            "rolled back": f"too many rejections in a row, training goes back to {active}",
        }.get(adapter.gate)
        if consequence:
            text = f"the adapter of step {event.step} is rejected ({adapter.gate_reason}); {consequence}"
            sink.emit(Notice(text, now))


def _has(group: ScoredGroup, outcome: ResponseOutcome) -> bool:
    return any(scored.outcome is outcome for scored in group.responses)


Phase = Literal["rollout", "update", "save", "close", "gate", "swap"]
_FAILPOINTS: Mapping[str, str] = {
    "rollout": "collected",
    "update": "updated",
    "save": "checkpointed",
    "close": "closed",
    "gate": "judged",
}
"""The named place after each phase (edge.core.failpoint)."""


_PROGRESS_S = 1.0


class Done(NamedTuple):
    """How much of how much (0: nobody knows) of a part of a step is done, and the tokens that were sampled in it."""

    done: int
    of: int
    tokens: int = 0


def sampled_by(backend: InferenceBackend, of: int = 0) -> Callable[[], Done] | None:
    """Counts what an engine samples from now on, where it counts."""
    if not isinstance(backend, CountingBackend):
        return None
    before = replace(backend.rollout_counts)

    def done() -> Done:
        now = backend.rollout_counts
        return Done(now.responses - before.responses, of, now.tokens - before.tokens)

    return done


def learned_by(learner: Learner) -> Callable[[], Done] | None:
    """Counts what a learner does, where it counts."""
    return (lambda: Done(*learner.progress)) if isinstance(learner, CountingLearner) else None


@dataclass(slots=True)
class StepPhases:
    """The bookkeeping of one step: `with phase("update"): ...` keeps its seconds, shows progress and passes its failpoint."""

    step: int
    components: AgentComponents
    seconds: dict[str, float] = field(default_factory=dict)
    progress: StepProgress | None = field(default=None, init=False)
    """What was last reported."""

    @contextmanager
    def __call__(self, phase: Phase) -> Iterator[None]:
        """While this is held, the phase runs; one that fails has neither seconds nor a failpoint."""
        if phase == "update" or phase == "close":
            self.report(phase, 0, 1)
        clock = self.components.clock
        began = clock.monotonic()
        yield
        if phase in _FAILPOINTS:
            self.components.failpoint(_FAILPOINTS[phase])
        self.seconds[phase] = clock.monotonic() - began

    def report(self, part: StepPart, done: int, of: int, tokens: int = 0, left_s: float | None = None) -> None:
        """Show how far a part of the step has come."""
        self.progress = StepProgress(self.step, part, done, of, tokens, left_s)
        self.components.sink.emit(self.progress)

    @asynccontextmanager
    async def watched(self, part: StepPart, count: Callable[[], Done] | None) -> AsyncIterator[bool]:
        """While this is held, the part's progress is shown where something counts it; whether something does."""
        if count is None:
            yield False
            return
        watching = asyncio.create_task(self._watch(part, count, self.components.clock.monotonic()))
        try:
            yield True
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self, part: StepPart, count: Callable[[], Done], began: float) -> None:
        """Report each second in which something was done."""
        shown = Done(0, 0)
        while True:
            await asyncio.sleep(_PROGRESS_S)
            if (now := count()) != shown:
                spent, left = self.components.clock.monotonic() - began, now.of - now.done
                self.report(part, now.done, now.of, now.tokens, spent * left / now.done if now.done and left >= 0 else None)
            shown = now

    def so_far(self, cloud_s: float) -> StepSeconds:
        """The phases up to the update; those not reached are 0."""
        return StepSeconds(self.seconds.get("rollout", 0.0), cloud_s, self.seconds.get("update", 0.0), 0.0, 0.0, 0.0)

    def timed(self, event: StepFinished) -> StepFinished:
        """The event with the seconds of now; a finished cut step keeps those of before its end."""
        parts = replace(event.time.seconds_by_part, **self.seconds)
        times_floor = parts.total / event.time.floor_s if event.time.floor_s else None
        return replace(event, time=replace(event.time, seconds_by_part=parts, seconds=parts.total, times_floor=times_floor))
