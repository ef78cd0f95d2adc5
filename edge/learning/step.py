"""One learning step of DA-GRPO over injected roles. Knows the order of things; knows nothing of how any of them is done.

    collect groups -> score -> the method's advantages at the current λ -> learner update -> checkpoint
    -> report, new λ -> (gate) -> commit -> swap

Crash safety: up to the checkpoint nothing but idempotent calls has happened, so the step is simply made again with the same seeds and
call keys. From the checkpoint on, its manifest holds all that is needed to report and commit, which `StepCloser` does (again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge.core.clock import Clock
from edge.core.events import EventSink
from edge.inference.backend import InferenceBackend
from edge.learning.checkpoints import Checkpoint, Checkpoints
from edge.learning.curriculum import StepPlan
from edge.learning.methods import DaGrpo, Method, StepTerms
from edge.learning.promotion import Judgement, PromotionGate
from edge.learning.rollout import Batch, Rollout, ScoredGroup, step_units
from edge.learning.step_reporter import ClosedStep, OpenStep, StepReporter
from edge.learning.summary import StepSetting, summarise
from edge.state.events import AdapterSwapped, AnchorsJudged, GateJudged, Notice, StepFinished, StepProgress, StepSeconds
from edge.state.folder import StateFolder
from edge.state.rows import Commit, Lineage, Outcome, Position, StepUnits, step_from_json
from edge.training.floor import StepMeasure
from edge.training.learner import Learner


@dataclass(frozen=True, slots=True)
class StepRoles:
    """What keeping, reporting and serving a step needs.

    `backend` answers people, `rollouts` the learner; without a gate they are one and every step's adapter serves. `switching` is held by
    whoever changes which adapter serves.
    """

    backend: InferenceBackend
    rollouts: InferenceBackend
    reporter: StepReporter
    checkpoints: Checkpoints
    state: StateFolder
    sink: EventSink
    clock: Clock
    switching: asyncio.Lock
    gate: PromotionGate | None = None
    failpoint: Callable[[str], None] = lambda name: None


class StepCloser:
    """Reports, commits and serves what a checkpoint holds; also what a restart does for a step cut after its checkpoint."""

    def __init__(self, roles: StepRoles) -> None:
        self._roles = roles

    async def finish(self, checkpoint: Checkpoint, watch: StopWatch | None = None) -> StepFinished:
        """Idempotent up to the commit: the coordinator answers a repeated report with its first answer."""
        roles, manifest = self._roles, checkpoint.manifest()
        watch = watch or StopWatch(roles.clock)
        opened, draft = OpenStep(**manifest["opened"]), step_from_json(manifest["draft"])
        roles.sink.emit(StepProgress(checkpoint.step, "close", 0, 1))
        closed = await roles.reporter.close(opened, _units(manifest))
        watch.lap("close")
        roles.failpoint("closed")
        event = replace(draft, dual_after=closed.terms.dual, offline=closed.unreported is not None, at=roles.clock.now())
        base = int(manifest.get("base", checkpoint.step - 1))
        judgement = await self._judgement(checkpoint, event, base, due=bool(manifest.get("gate_due")))
        watch.lap("gate")
        roles.failpoint("judged")
        async with roles.switching:
            left = roles.state.lineage().latest != base
            line = self._line_after(checkpoint.step, base, judgement)
            event = _with_verdict(event, base, line, judgement, left=left)
            roles.state.commit_step(_commit(watch.timed(event), opened, closed, checkpoint, manifest, line, judgement))
            roles.failpoint("committed")
            await self._swap(checkpoint, line)
        watch.lap("swap")
        roles.checkpoints.prune({line.latest, line.serving, base, roles.state.best_version(), *line.kept})
        event = watch.timed(event)
        roles.sink.emit(event)
        if judgement is not None:
            self._tell(event, line, judgement)
        return event

    async def _judgement(self, checkpoint: Checkpoint, event: StepFinished, base: int, *, due: bool) -> Judgement | None:
        gate, line = self._roles.gate, self._roles.state.lineage()
        if gate is None or not due or base != line.latest:
            return None
        return await gate.judge(checkpoint, event, base)

    def _line_after(self, step: int, base: int, judgement: Judgement | None) -> Lineage:
        """What serves and what is trained on from here; somebody may have gone back to another version while the step was made."""
        line, gate = self._roles.state.lineage(), self._roles.gate
        if gate is None:
            return line.after_step(step, base, "serves")
        outcome: Outcome = judgement.outcome if judgement else "waits"
        return line.after_step(step, base, outcome, max_refusals=gate.rules.max_refusals, keep=gate.rules.keep)

    async def _swap(self, checkpoint: Checkpoint, line: Lineage) -> None:
        """The engines use what the line says. Training that went back is loaded where the next step begins."""
        roles, step = self._roles, checkpoint.step
        if line.latest == step and roles.rollouts.adapter_version != step:
            await roles.rollouts.swap_adapter(checkpoint.adapter)
        if line.serving == step:
            if roles.backend.adapter_version != step:
                await roles.backend.swap_adapter(checkpoint.adapter)
            roles.sink.emit(AdapterSwapped(step, checkpoint.adapter.folder))

    def _tell(self, event: StepFinished, line: Lineage, judgement: Judgement) -> None:
        anchors = tuple(AnchorsJudged(score.source, score.items, score.before, score.after) for score in judgement.anchors)
        rate, now = judgement.rate, self._roles.clock.now()
        self._roles.sink.emit(
            GateJudged(
                event.step,
                event.gate,
                event.gate_reason,
                line.serving,
                line.refusals,
                anchors,
                rate.target,
                rate.now,
                rate.before,
                now,
            )
        )
        if event.gate in _SAID:
            text = f"the adapter of step {event.step} does not serve ({event.gate_reason}); {_SAID[event.gate]}"
            self._roles.sink.emit(Notice(text.format(version_name(line.serving)), now))


_SAID = {"refused": "{} stays, training goes on", "rolled back": "too many refusals in a row, training goes back to {}"}


def version_name(version: int) -> str:
    """How a version is spoken of."""
    return f"adapter {version}" if version else "the bare model"


def _with_verdict(event: StepFinished, base: int, line: Lineage, judgement: Judgement | None, *, left: bool) -> StepFinished:
    """The step's event with what became of its adapter; `left`: somebody went back to another version while it was made."""
    event = replace(event, base_version=base, serving_version=line.serving)
    if judgement is None:
        return event
    went_back = judgement.outcome == "refused" and line.latest != event.step
    verdict = "rolled back" if went_back else judgement.outcome
    return replace(
        event,
        gate="left" if left else verdict,
        gate_reason=judgement.reason,
        gate_before=judgement.before,
        gate_after=judgement.after,
        gate_rate=judgement.rate.now,
    )


class LearningStep:
    """Makes steps one after the other. `interruptible` tells when cancelling loses nothing but work that can be made again."""

    def __init__(
        self,
        roles: StepRoles,
        rollout: Rollout,
        learner: Callable[[], Learner],
        group_size: int,
        method: Method | None = None,
        measure: StepMeasure | None = None,
    ) -> None:
        """`learner` is asked in every step, because going back to the bare model begins with another one.

        `method` None: DA-GRPO. With a `measure` of the device, steps are told beside the least time they could take.
        """
        self._roles = roles
        self._rollout = rollout
        self._learner = learner
        self._group_size = group_size
        self._method: Method = method or DaGrpo()
        self._measure = measure
        self._closer = StepCloser(roles)
        self._was_refused = False
        self.interruptible = True

    async def run(self, plan: StepPlan, base: int) -> StepFinished:
        """One step that trains the learner on from version `base`, which it holds; committed when this returns."""
        watch = StopWatch(self._roles.clock)
        opened = await self._roles.reporter.open(plan.task, len(plan.items), self._group_size, plan.target_rate)
        groups = await self._rollout.collect(_batch(plan, opened), self._on_group(plan))
        watch.lap("rollout")
        self._tell_left_out()
        self._tell_refused(groups)
        self._roles.failpoint("collected")
        self.interruptible = False
        try:
            checkpoint = await self._improve(plan, opened, groups, base, watch)
            return await self._closer.finish(checkpoint, watch)
        finally:
            self.interruptible = True

    async def _improve(
        self, plan: StepPlan, opened: OpenStep, groups: Sequence[ScoredGroup], base: int, watch: StopWatch
    ) -> Checkpoint:
        """Advantages at the step's λ, one update, and everything that follows from it on disk."""
        self._roles.sink.emit(StepProgress(plan.step, "update", 0, 1))
        learner = self._learner()
        report = await learner.update(self._method.training_groups(groups, _terms(plan, opened)))
        watch.lap("update")
        self._roles.failpoint("updated")
        setting = _setting(plan, opened, self._roles.state)
        seconds = watch.seconds(self._rollout.cloud_span.seconds)
        draft = summarise(groups, report, setting, seconds, self._measure)
        manifest = _manifest(plan, opened, groups, draft) | {"base": base, "gate_due": self._gate_is_due(plan)}
        checkpoint = await self._roles.checkpoints.write(plan.step, learner, manifest)
        watch.lap("save")
        self._roles.failpoint("checkpointed")
        return checkpoint

    def _gate_is_due(self, plan: StepPlan) -> bool:
        """Own steps between those of the phases are judged with the next one of these, whose rate counts."""
        gate = self._roles.gate
        if gate is None or (plan.own and not plan.phases_done):
            return False
        return gate.is_due(plan.step, plan.ends_phase)

    def _tell_left_out(self) -> None:
        if self._rollout.left_out:
            reasons = "; ".join(dict.fromkeys(self._rollout.left_out))
            text = f"{len(self._rollout.left_out)} prompts are left out: {reasons}"
            self._roles.sink.emit(Notice(text, self._roles.clock.now()))

    def _tell_refused(self, groups: Sequence[ScoredGroup]) -> None:
        """Once per run of steps with refusals."""
        refused = [group for group in groups if any(scored.refused for scored in group.responses)]
        if refused and not self._was_refused:
            self._roles.sink.emit(Notice(refused[0].cloud_reason, self._roles.clock.now()))
        self._was_refused = bool(refused)

    def _on_group(self, plan: StepPlan) -> Callable[[int], None]:
        return lambda done: self._roles.sink.emit(StepProgress(plan.step, "rollout", done, len(plan.items)))


def _terms(plan: StepPlan, opened: OpenStep) -> StepTerms:
    return StepTerms(plan.step, plan.task, opened.dual, opened.target_rate)


def _batch(plan: StepPlan, opened: OpenStep) -> Batch:
    return Batch(plan.step, plan.task, opened.task_step, plan.items, opened.offline, plan.stay_here)


def _setting(plan: StepPlan, opened: OpenStep, state: StateFolder) -> StepSetting:
    last = state.steps(last=1)
    return StepSetting(
        step=plan.step,
        steps_planned=plan.steps_planned,
        phase=plan.phase,
        phase_step=plan.phase_step,
        source=plan.source,
        task=plan.task,
        target_rate=opened.target_rate,
        dual=opened.dual,
        calls_before=last[0].total_cloud_calls if last else 0,
        tokens_before=last[0].total_cloud_tokens if last else 0,
        spend_before_uusd=last[0].total_spend_uusd if last else 0,
    )


def _manifest(plan: StepPlan, opened: OpenStep, groups: Sequence[ScoredGroup], draft: StepFinished) -> dict[str, Any]:
    units = step_units(groups)
    return {
        "opened": asdict(opened),
        "total_units": units.total,
        "help_units": units.help,
        "uncalled_units": units.uncalled,
        "position": asdict(Position(plan.step, plan.phase, plan.phase_step)),
        "source": plan.source,
        "cursor_seed": plan.cursor_seed,
        "cursor_after": plan.cursor_after,
        "used": list(plan.used),
        "draft": draft.to_json(),
    }


def _units(manifest: dict[str, Any]) -> StepUnits:
    """The manifest's; checkpoints of older versions called for every group."""
    return StepUnits(manifest["total_units"], manifest["help_units"], manifest.get("uncalled_units", 0))


def _commit(
    event: StepFinished,
    opened: OpenStep,
    closed: ClosedStep,
    checkpoint: Checkpoint,
    manifest: dict[str, Any],
    line: Lineage,
    judgement: Judgement | None,
) -> Commit:
    return Commit(
        event=event,
        task_step=opened.task_step,
        position=Position(**manifest["position"]),
        cursor_source=manifest["source"],
        cursor_seed=manifest["cursor_seed"],
        cursor=manifest["cursor_after"],
        terms=closed.terms,
        adapter_folder=checkpoint.adapter.folder,
        unreported=closed.unreported,
        line=line,
        gate_memory=judgement.memory if judgement else "",
        exams=judgement.exams if judgement else (),
        used=tuple(manifest.get("used", ())),
    )


class StopWatch:
    """Laps of one step, in seconds of the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """End the part that ran since the last lap."""
        now = self._clock.monotonic()
        self._laps[part] = self._laps.get(part, 0.0) + now - self._last
        self._last = now

    def seconds(self, cloud: float) -> StepSeconds:
        """All laps so far; components not reached are 0."""
        components = {name: self._laps.get(name, 0.0) for name in ("rollout", "update", "save", "close", "swap", "gate")}
        return StepSeconds(cloud=cloud, **components)

    def timed(self, event: StepFinished) -> StepFinished:
        """The event with the laps of now; laps it already had and this watch does not know are kept."""
        known = {**asdict(event.seconds_by_part), **self._laps}
        components = StepSeconds(**known)
        total = components.rollout + components.update + components.save + components.close + components.swap + components.gate
        times_floor = total / event.floor_s if event.floor_s else None
        return replace(event, seconds_by_part=components, seconds=total, times_floor=times_floor)
