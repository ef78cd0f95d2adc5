"""One learning step of DA-GRPO (Algorithm 1), and what a restart finishes of one that was cut.

Crash safety: up to the checkpoint nothing but idempotent calls has happened, so the step is simply made again with the same seeds and
call keys. From the checkpoint on, its manifest holds all that is needed to report and commit, which `finish` does (again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Literal

from edge.core.clock import Clock
from edge.core.events import EventSink
from edge.inference.backend import InferenceBackend
from edge.learning.checkpoints import Checkpoint, Checkpoints, StepManifest
from edge.learning.curriculum import StepPlan
from edge.learning.methods import Method, StepTerms
from edge.learning.promotion import Judgement, PromotionGate
from edge.learning.rollout import Batch, ResponseOutcome, Rollout, ScoredGroup, step_units
from edge.learning.step_reporter import ClosedStep, OpenStep, StepReporter
from edge.learning.summary import summarise
from edge.state.events import AdapterSwapped, AnchorsJudged, GateJudged, Notice, StepFinished, StepProgress, StepSeconds
from edge.state.folder import StateFolder
from edge.state.rows import Commit, Lineage, Position
from edge.training.floor import StepMeasure
from edge.training.learner import Learner, LearnerReport


@dataclass(frozen=True, slots=True)
class StepRoles:
    """Who does what in a step.

    `backend` answers people, `rollout_backend` samples for the learner; without a gate they are one and every step's adapter serves.
    `learner` is called in every step, because going back to the bare model begins with another one. `switching` is held by whoever
    changes which adapter serves. With a `measure` of the device, steps are reported beside the least time they could take.
    """

    backend: InferenceBackend
    rollout_backend: InferenceBackend
    rollout: Rollout
    method: Method
    learner: Callable[[], Learner]
    group_size: int
    reporter: StepReporter
    checkpoints: Checkpoints
    state: StateFolder
    sink: EventSink
    clock: Clock
    switching: asyncio.Lock
    gate: PromotionGate | None = None
    measure: Callable[[], StepMeasure | None] = lambda: None
    failpoint: Callable[[str], None] = lambda name: None


class LearningStep:
    """Makes steps one after the other. `interruptible`: cancelling loses nothing but work that can be made again."""

    def __init__(self, roles: StepRoles) -> None:
        self._roles = roles
        self._was_refused = False
        self.interruptible = True

    async def run(self, plan: StepPlan, base: int) -> StepFinished:
        """One step that trains the learner on from version `base`, which it holds; committed when this returns."""
        roles, phase = self._roles, self._phases(plan.step)
        opened = await roles.reporter.open(plan.task, len(plan.items), roles.group_size, plan.target_rate)
        with phase("rollout"):
            groups = await roles.rollout.collect(Batch.of(plan, opened), self._progress(plan))
            self._notify(groups)
        self.interruptible = False
        try:
            advantages = roles.method.advantages(
                groups, dual=opened.dual, terms=StepTerms(plan.step, plan.task, opened.target_rate)
            )
            with phase("update"):
                learner = roles.learner()
                report = await learner.update([one.training_group() for one in advantages])
            with phase("save"):
                seconds = phase.so_far(roles.rollout.cloud_span.seconds)
                manifest = self._manifest(plan, opened, groups, report, seconds, base)
                saved = await roles.checkpoints.write(plan.step, learner, manifest)
            return await self.finish(saved, phase)
        finally:
            self.interruptible = True

    async def finish(self, saved: Checkpoint, phase: StepPhases | None = None) -> StepFinished:
        """Report, judge, commit and serve what a checkpoint holds; also of a step that was cut behind its checkpoint.

        Idempotent up to the commit: the coordinator answers a repeated report with its first answer.
        """
        roles, manifest, phase = self._roles, saved.manifest(), phase or self._phases(saved.step)
        with phase("close"):
            closed = await roles.reporter.close(manifest.opened, manifest.units)  # rate -> the coordinator's new λ
            control = replace(manifest.draft.control, dual_after=closed.terms.dual, offline=closed.unreported is not None)
            event = replace(manifest.draft, control=control, at=roles.clock.now())
        with phase("gate"):
            judgement = await self._judgement(saved, manifest, event)
        async with roles.switching:
            with phase("commit"):
                lineage = self._lineage_after(saved.step, manifest.base, judgement)
                left = roles.state.lineage().latest != manifest.base
                event = _with_verdict(event, manifest.base, lineage, judgement, left=left)
                roles.state.commit_step(_commit(phase.timed(event), saved, manifest, closed, lineage, judgement))
            with phase("swap"):
                await self._swap(saved, lineage)
        needed = {lineage.latest, lineage.serving, manifest.base, roles.state.best_version(), *lineage.kept}
        roles.checkpoints.prune(needed)
        event = phase.timed(event)
        roles.sink.emit(event)
        if judgement is not None:
            self._report_judgement(event, lineage, judgement)
        return event

    def _manifest(
        self,
        plan: StepPlan,
        opened: OpenStep,
        groups: Sequence[ScoredGroup],
        report: LearnerReport,
        seconds: StepSeconds,
        base: int,
    ) -> StepManifest:
        """All that the rest of the step needs, so that a restart can do it."""
        before = next(iter(self._roles.state.steps(last=1)), None)
        return StepManifest(
            opened=opened,
            units=step_units(groups, with_bias=opened.help_bias is not None),
            position=Position(plan.step, plan.phase, plan.phase_step),
            source=plan.source,
            cursor_seed=plan.cursor_seed,
            cursor_after=plan.cursor_after,
            used=plan.used,
            draft=summarise(plan, opened, groups, report, seconds, before, self._roles.measure()),
            base=base,
            gate_due=self._gate_is_due(plan),
        )

    def _phases(self, step: int) -> StepPhases:
        return StepPhases(step, self._roles.sink, self._roles.clock, self._roles.failpoint)

    def _progress(self, plan: StepPlan) -> Callable[[int], None]:
        return lambda done: self._roles.sink.emit(StepProgress(plan.step, "rollout", done, len(plan.items)))

    def _notify(self, groups: Sequence[ScoredGroup]) -> None:
        """Say which prompts are left out, and once per run of such steps that the budget refuses."""
        sink, now, left_out = self._roles.sink, self._roles.clock.now(), self._roles.rollout.left_out
        if left_out:
            sink.emit(Notice(f"{len(left_out)} prompts are left out: {'; '.join(dict.fromkeys(left_out))}", now))
        refused = [group for group in groups if any(scored.outcome is ResponseOutcome.REFUSED for scored in group.responses)]
        if refused and not self._was_refused:
            sink.emit(Notice(refused[0].cloud_reason, now))
        self._was_refused = bool(refused)

    def _gate_is_due(self, plan: StepPlan) -> bool:
        """Own steps between those of the phases are judged with the next one of these, whose rate counts."""
        gate = self._roles.gate
        if gate is None or (plan.own and not plan.phases_done):
            return False
        return gate.is_due(plan.step, plan.ends_phase)

    async def _judgement(self, saved: Checkpoint, manifest: StepManifest, event: StepFinished) -> Judgement | None:
        gate = self._roles.gate
        if gate is None or not manifest.gate_due or manifest.base != self._roles.state.lineage().latest:
            return None
        return await gate.judge(saved, event, manifest.base)

    def _lineage_after(self, step: int, base: int, judgement: Judgement | None) -> Lineage:
        """What serves and what is trained on from here; somebody may have gone back to another version while the step was made."""
        lineage, gate = self._roles.state.lineage(), self._roles.gate
        if gate is None:
            return lineage.after_step(step, base, "serves")
        outcome = judgement.outcome if judgement else "waits"
        return lineage.after_step(step, base, outcome, max_refusals=gate.rules.max_refusals, keep=gate.rules.keep)

    async def _swap(self, saved: Checkpoint, lineage: Lineage) -> None:
        """The engines follow the lineage. Where training went back, the next step begins with loading that version."""
        roles, step = self._roles, saved.step
        if lineage.latest == step and roles.rollout_backend.adapter_version != step:
            await roles.rollout_backend.swap_adapter(saved.adapter)
        if lineage.serving == step:
            if roles.backend.adapter_version != step:
                await roles.backend.swap_adapter(saved.adapter)
            roles.sink.emit(AdapterSwapped(step, saved.adapter.folder))

    def _report_judgement(self, event: StepFinished, lineage: Lineage, judgement: Judgement) -> None:
        rate, now = judgement.rate, self._roles.clock.now()
        self._roles.sink.emit(
            GateJudged(
                step=event.step,
                verdict=event.adapter.gate,
                reason=event.adapter.gate_reason,
                serving_version=lineage.serving,
                refusals=lineage.refusals,
                anchors=tuple(AnchorsJudged(one.source, one.items, one.before, one.after) for one in judgement.anchors),
                target_rate=rate.target,
                rate=rate.now,
                rate_before=rate.before,
                at=now,
            )
        )
        if event.adapter.gate in _CONSEQUENCE:
            text = f"the adapter of step {event.step} does not serve ({event.adapter.gate_reason}); {_CONSEQUENCE[event.adapter.gate]}"
            self._roles.sink.emit(Notice(text.format(version_name(lineage.serving)), now))


_CONSEQUENCE = {
    "refused": "{} stays, training goes on",
    "rolled back": "too many refusals in a row, training goes back to {}",
}


def version_name(version: int) -> str:
    """How a version is spoken of."""
    return f"adapter {version}" if version else "the bare model"


def _with_verdict(event: StepFinished, base: int, lineage: Lineage, judgement: Judgement | None, *, left: bool) -> StepFinished:
    """The step's event with what became of its adapter; `left`: somebody went back to another version while it was made."""
    adapter = replace(event.adapter, base_version=base, serving_version=lineage.serving)
    if judgement is not None:
        went_back = judgement.outcome == "refused" and lineage.latest != event.step
        verdict = "rolled back" if went_back else judgement.outcome
        adapter = replace(
            adapter,
            gate="left" if left else verdict,
            gate_reason=judgement.reason,
            gate_before=judgement.before,
            gate_after=judgement.after,
            gate_rate=judgement.rate.now,
        )
    return replace(event, adapter=adapter)


def _commit(
    event: StepFinished,
    saved: Checkpoint,
    manifest: StepManifest,
    closed: ClosedStep,
    lineage: Lineage,
    judgement: Judgement | None,
) -> Commit:
    return Commit(
        event=event,
        task_step=manifest.opened.task_step,
        position=manifest.position,
        cursor_source=manifest.source,
        cursor_seed=manifest.cursor_seed,
        cursor=manifest.cursor_after,
        terms=closed.terms,
        adapter_folder=saved.adapter.folder,
        unreported=closed.unreported,
        line=lineage,
        gate_memory=judgement.memory if judgement else "",
        exams=judgement.exams if judgement else (),
        used=manifest.used,
    )


Phase = Literal["rollout", "update", "save", "close", "gate", "commit", "swap"]
_FAILPOINTS: Mapping[str, str] = {
    "rollout": "collected",
    "update": "updated",
    "save": "checkpointed",
    "close": "closed",
    "gate": "judged",
    "commit": "committed",
}
"""The named place behind each phase (edge.core.failpoint)."""


class StepPhases:
    """The bookkeeping of one step: `with phase("update"): ...` keeps its seconds, shows progress and passes its failpoint."""

    def __init__(self, step: int, sink: EventSink, clock: Clock, failpoint: Callable[[str], None]) -> None:
        self._step = step
        self._sink = sink
        self._clock = clock
        self._failpoint = failpoint
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: Phase) -> Iterator[None]:
        """While this is held, the phase runs; one that fails has neither seconds nor a failpoint."""
        if phase == "update" or phase == "close":
            self._sink.emit(StepProgress(self._step, phase, 0, 1))
        began = self._clock.monotonic()
        yield
        if phase in _FAILPOINTS:
            self._failpoint(_FAILPOINTS[phase])
        self._seconds[phase] = self._clock.monotonic() - began

    def so_far(self, cloud_s: float) -> StepSeconds:
        """The phases up to the update; those not reached are 0."""
        return StepSeconds(self._seconds.get("rollout", 0.0), cloud_s, self._seconds.get("update", 0.0), 0.0, 0.0, 0.0)

    def timed(self, event: StepFinished) -> StepFinished:
        """The event with the seconds of now; a finished cut step keeps those of before its end."""
        known = {name: seconds for name, seconds in self._seconds.items() if name != "commit"}
        if "commit" in self._seconds:
            known["swap"] = known.get("swap", 0.0) + self._seconds["commit"]
        parts = StepSeconds(**{**asdict(event.time.seconds_by_part), **known})
        total = parts.rollout + parts.update + parts.save + parts.close + parts.swap + parts.gate
        times_floor = total / event.time.floor_s if event.time.floor_s else None
        return replace(event, time=replace(event.time, seconds_by_part=parts, seconds=total, times_floor=times_floor))
