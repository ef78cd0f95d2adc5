"""Judging a step's adapter before it is promoted.

Anchors are a few items of every source learned so far, stored with the state so that a later change of phases or files does not change
them. They are answered at temperature 0 with asking made impossible, without the cloud: what the weights can do. A candidate is compared,
source by source, with the best of the adapters that led to the one in use, not with that one alone: many small falls would add up. All that
is remembered is committed with the step.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Literal

from edge.config.schema import GateConfig
from edge.core.errors import AdapterError
from edge.core.types import AdapterRef, TaskItem
from edge.dagrpo.advantages import mean
from edge.evaluation.evaluate import Candidate, candidates_of
from edge.learning.checkpoints import Checkpoint, Checkpoints
from edge.learning.own_use import is_own_use
from edge.state.events import StepFinished
from edge.state.folder import GATE_MEMORY, StateFolder
from edge.state.rows import Exam as ExamResult
from edge.state.rows import ExamAnswer, Lineage
from edge.training.promotion_rules import AnchorScore, RateScore, refusal_of, together

_MOST_SOURCES = 32
_LOOKED_BACK = 8
"""How many steps of other sources there may be between two of one source."""
Exam = Callable[[AdapterRef | None, Sequence[Candidate]], Awaitable[Mapping[str, ExamAnswer]]]
"""What an adapter makes of candidates, by their keys. Raises AdapterError."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the gate remembers between judgements: anchors by source, of each what the best adapter so far got right, and the rates by task
    of the adapter in use (`version`)."""

    version: int = 0
    anchors: Mapping[str, tuple[TaskItem, ...]] = field(default_factory=dict)
    right: Mapping[str, bool] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)

    def of_serving(self, version: int) -> Memory:
        """The same; the anchors alone where another adapter serves than the one promoted last: then its results are the best so far."""
        return self if self.version == version else Memory(version, self.anchors)

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | None) -> Memory:
        """From what `to_json` made; empty without it."""
        fields: dict[str, Any] = json.loads(text) if text else {}
        anchors: dict[str, tuple[TaskItem, ...]] = {}
        for source, items in fields.pop("anchors", {}).items():
            anchors[source] = tuple(map(TaskItem.from_dict, items))
        return cls(**fields, anchors=anchors)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of it. `reason` is "" when the adapter is promoted."""

    outcome: Literal["promoted", "refused"]
    reason: str
    anchors: tuple[AnchorScore, ...]
    rate: RateScore
    memory: str
    exams: tuple[ExamResult, ...] = ()

    @property
    def before(self) -> float | None:
        """Share of all anchors right before, each source with its best adapter so far."""
        return together(self.anchors).before if self.anchors else None

    @property
    def after(self) -> float | None:
        """Share of all anchors right with the candidate."""
        return together(self.anchors).after if self.anchors else None


@dataclass(slots=True)
class PromotionGate:
    """Judges candidates. Its decisions depend on the state folder, the checkpoint and seeds only, so a repeated one is the same.

    `anchors_of` a phase's source, with those of labels that are only held out, never change. `own_anchors` of one's own use do; None:
    the source is not of one's own use, or is gone. `skills`: sources that are examined though no phase learns them.
    """

    rules: GateConfig
    anchors_of: Callable[[str, int], Mapping[str, tuple[TaskItem, ...]]]
    exam: Exam
    state: StateFolder
    checkpoints: Checkpoints
    own_anchors: Callable[[str, int], tuple[TaskItem, ...] | None] = lambda source, limit: None
    skills: tuple[str, ...] = ()

    def is_due(self, step: int, ends_phase: bool) -> bool:
        """Whether the adapter is judged: a phase ends, or this or an unjudged own step right before it reaches a multiple of `every`."""
        before = step - 1
        while (
            before > 0 and (made := self.state.step_at(before)) is not None and is_own_use(made.source) and not made.adapter.gate
        ):
            before -= 1
        return ends_phase or step // self.rules.every > before // self.rules.every

    async def judge(self, checkpoint: Checkpoint, event: StepFinished, base: int) -> Judgement:
        """Examine the adapter of a step, trained from `base`, before its commit. Leaves the candidate (or nothing) in the engine."""
        lineage = self.state.lineage()
        sources = [step.source for step in self.state.steps(last=_LOOKED_BACK * self.rules.every) if step.step < event.step]
        memory = Memory.from_json(self.state.meta(GATE_MEMORY)).of_serving(lineage.serving)
        memory = self._with_anchors(memory, dict.fromkeys((*self.skills, *sources, event.source)))
        rate = self._rate(event, base, memory)
        examined = await self._examined(memory, lineage)
        if examined is not None:
            memory = replace(memory, right={**memory.right, **_right(examined)})
        candidates = candidates_by_source(memory.anchors)
        exams = results(lineage.serving, candidates, examined or {})
        try:
            answers = await self.exam(checkpoint.adapter, [one for own in candidates.values() for one in own])
        except AdapterError as error:
            return Judgement("refused", str(error), (), rate, memory.to_json(), exams)
        right = _right(answers)
        scores = (
            [] if examined is None else [_score(source, own, memory.right, right) for source, own in candidates.items() if own]
        )
        reason = refusal_of(scores, self.rules.max_drop, dict.fromkeys(self.skills, self.rules.max_skill_drop))
        exams = (*exams, *results(checkpoint.step, candidates, answers))
        if not reason:
            best = dict(memory.right) if scores else right
            for score in scores:
                if score.gained >= score.lost:
                    best |= {one.key: right[one.key] for one in candidates[score.source]}
            memory = Memory(checkpoint.step, memory.anchors, best, {**memory.rates, event.task: rate.now})
        return Judgement("refused" if reason else "promoted", reason, tuple(scores), rate, memory.to_json(), exams)

    def _with_anchors(self, memory: Memory, sources: Iterable[str]) -> Memory:
        """With anchors of these sources, and those of one's own use as they are now; of what is gone they stay as they were."""
        anchors, limit = dict(memory.anchors), self.rules.anchors
        for source in dict.fromkeys((*anchors, *sources)):
            if (fresh := self.own_anchors(source, limit)) is not None:
                anchors[source] = fresh
            else:
                own_limit = self.rules.skill_anchors if source in self.skills else limit
                for name, some in self.anchors_of(source, own_limit).items():
                    if some:
                        anchors.setdefault(name, some)
        newest = dict(list(anchors.items())[-_MOST_SOURCES:])
        wanted = {one.key for own in candidates_by_source(newest).values() for one in own}
        right = {key: right for key, right in memory.right.items() if key in wanted}
        return replace(memory, anchors=newest, right=right)

    async def _examined(self, memory: Memory, lineage: Lineage) -> Mapping[str, ExamAnswer] | None:
        """What the adapter in use makes of the anchors that it was not examined on yet; None when it cannot be loaded (it is no measure
        then)."""
        missing = [one for own in candidates_by_source(memory.anchors).values() for one in own if one.key not in memory.right]
        if not missing:
            return {}
        in_use = self.checkpoints.at(lineage.serving)
        if lineage.serving and in_use is None:
            return None
        try:
            return await self.exam(in_use.adapter if in_use else None, missing)
        except AdapterError:
            return None

    def _rate(self, event: StepFinished, base: int, memory: Memory) -> RateScore:
        """The mean rate of the last steps of this phase that led to the candidate, and the rate when the adapter in use was promoted.

        Where the task is new to the adapter in use, before is the rate of the phase's first step.
        """
        ancestors = islice(self.state.ancestors(base), _LOOKED_BACK * self.rules.rate_window)
        led_here = (step for step in map(self.state.step_at, ancestors) if step is not None)
        same = (step for step in led_here if (step.phase, step.source) == (event.phase, event.source))
        rates = [step.control.held_rate for step in islice(same, self.rules.rate_window - 1)]
        before = memory.rates.get(event.task)
        if before is None:
            before = (self.state.first_step(event.phase, event.source) or event).control.held_rate
        return RateScore(event.control.target_rate, mean([event.control.held_rate, *rates]), before)


def candidates_by_source(anchors: Mapping[str, tuple[TaskItem, ...]]) -> dict[str, list[Candidate]]:
    """What is examined for each source."""
    return {source: candidates_of((item, 1.0) for item in items) for source, items in anchors.items()}


def _score(source: str, own: Sequence[Candidate], before: Mapping[str, bool], after: Mapping[str, bool]) -> AnchorScore:
    """A source's anchors with the best adapter so far, and with the candidate."""
    lost = [one for one in own if before[one.key] and not after[one.key]]
    gained = sum(after[one.key] and not before[one.key] for one in own)
    right = sum(before[one.key] for one in own)
    return AnchorScore(source, len(own), right, len(lost), gained, lost[0].item.question if lost else "")


def results(
    version: int, candidates: Mapping[str, Sequence[Candidate]], answers: Mapping[str, ExamAnswer]
) -> tuple[ExamResult, ...]:
    """What a version made of the candidates that were examined, source by source."""
    by_source = {source: {one.key: answers[one.key] for one in own if one.key in answers} for source, own in candidates.items()}
    return tuple(ExamResult(version, source, candidates[source][0].item.task, own) for source, own in by_source.items() if own)


def _right(answers: Mapping[str, ExamAnswer]) -> dict[str, bool]:
    return {key: answer.right for key, answer in answers.items()}
