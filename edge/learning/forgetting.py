"""What a model keeps of the tasks it learned before: held-out scores by phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, Protocol

from edge.core.clock import Clock
from edge.core.events import EventSink
from edge.dagrpo.metrics import forgetting_rate
from edge.evaluation.evaluate import Candidate, candidates_of
from edge.evaluation.scores import Scores
from edge.learning.curriculum import HeldOut, StepPlan
from edge.state.events import EvalProgress, HeldOutScored, StepFinished


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """The steps of one phase about one source, at least one, in order. `phase` counts from 0; `end` is the number of the last step
    of this source and those that it took turns with."""

    phase: int
    source: str
    task: str
    steps: tuple[StepFinished, ...]
    end: int

    @property
    def first(self) -> int:
        """Number of its first step."""
        return self.steps[0].step

    @property
    def last(self) -> int:
        """Number of its last step so far."""
        return self.steps[-1].step

    @property
    def families(self) -> tuple[str, ...]:
        """The families of questions that occurred, by name."""
        return tuple(sorted({scores.family for step in self.steps for scores in step.scores.families}))

    @property
    def name(self) -> str:
        """For people: `phase 1: group1 (arith, science)`; a family that is called as its task is not repeated."""
        families = ", ".join(family for family in self.families if family != self.task)
        return f"phase {self.phase + 1}: {self.task}" + (f" ({families})" if families else "")


def phase_spans(steps: Sequence[StepFinished]) -> list[PhaseSpan]:
    """Consecutive steps of the same phase, in order; of a phase with several sources those of each."""
    spans = []
    for phase, members in groupby(steps, key=lambda step: step.phase):
        by_source: dict[tuple[str, str], list[StepFinished]] = {}
        for step in members:
            by_source.setdefault((step.source, step.task), []).append(step)
        spans += [PhaseSpan(phase, source, task, tuple(own), own[-1].step) for (source, task), own in by_source.items()]
    for number in reversed(range(len(spans) - 1)):  # sources that take turns end together
        if spans[number + 1].first <= spans[number].end:
            spans[number] = replace(spans[number], end=max(spans[number].end, spans[number + 1].end))
    for number in range(1, len(spans)):
        if spans[number].first <= spans[number - 1].end:
            spans[number] = replace(spans[number], end=spans[number - 1].end)
    return spans


class Examinee(Protocol):
    """An agent that can be asked what its present adapter makes of items."""

    async def examine(self, candidates: Sequence[Candidate], on_item: Callable[[], None]) -> Scores:
        """Scores at temperature 0, without the cloud, of at least one candidate."""
        ...


class RetentionWatch:
    """Scores the held-out items between steps whenever it is time to. Pass `between_steps` to `Agent.learn`."""

    def __init__(
        self,
        examinee: Examinee,
        held_out: Sequence[HeldOut],
        seen: Iterable[HeldOutScored],
        sink: EventSink,
        clock: Clock,
        *,
        run_id: str,
        every: int | None = None,
    ) -> None:
        """`seen` are earlier results of this run; `every`: also after each multiple of this many steps.

        A source without held-out items is left out.
        """
        self._examinee = examinee
        self._exams = [(one, candidates_of((item, 1.0) for item in one.items)) for one in held_out if one.items]
        self._seen = {(result.run_id, result.step, result.source, result.adapter_version) for result in seen}
        self._sink = sink
        self._clock = clock
        self._run_id = run_id
        self._every = every

    async def between_steps(self, plan: StepPlan | None, steps_done: int, adapter_version: int) -> None:
        """`plan` is what comes next, None when all phases are done."""
        phase_boundary = plan is None or plan.phase_step == 1
        if not phase_boundary and not (self._every and steps_done % self._every == 0):
            return
        missing = [exam for exam in self._exams if (self._run_id, steps_done, exam[0].source, adapter_version) not in self._seen]
        done, total = 0, sum(len(candidates) for _, candidates in missing)

        def on_item() -> None:
            nonlocal done
            done += 1
            self._sink.emit(EvalProgress(done, total))

        for held_out, candidates in missing:
            scores = await self._examinee.examine(candidates, on_item)
            result = HeldOutScored(
                run_id=self._run_id,
                step=steps_done,
                source=held_out.source,
                task=held_out.task,
                adapter_version=adapter_version,
                items=scores.items,
                forced_local_accuracy=scores.forced_local_accuracy,
                forced_local_interval=scores.intervals.forced_local_accuracy or (0.0, 1.0),
                kept_accuracy=scores.kept_accuracy,
                coverage=scores.coverage,
                assist_rate=scores.assist_rate,
                at=self._clock.now(),
            )
            self._seen.add((self._run_id, steps_done, held_out.source, adapter_version))
            self._sink.emit(result)


@dataclass(frozen=True, slots=True)
class Forgetting:
    """What became of a phase's task after the switch away from it.

    Accuracies are forced-local: what the weights can do, however willing the model is to ask. `during` is measured after the phase's
    last step, `post` at the last scoring before the source is learned again. None: not measured, or the rate of an accuracy of 0.
    """

    phase: int
    source: str
    task: str
    during_step: int
    post_step: int | None
    during_task_acc: float | None
    post_switch_acc: float | None
    forgetting_rate: float | None
    during_kept_accuracy: float | None
    post_kept_accuracy: float | None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def forgetting_of(steps: Sequence[StepFinished], results: Sequence[HeldOutScored]) -> list[Forgetting]:
    """One entry for each phase that another source followed and whose own source was scored after its last step."""
    spans, entries = phase_spans(steps), []
    for span in spans:
        later = [other for other in spans if other.first > span.end]
        following = [other.source for other in later if other.end == later[0].end]
        until = next((other.first - 1 for other in later if other.source == span.source), later[-1].last if later else 0)
        own = sorted((result for result in results if result.source == span.source), key=lambda result: result.step)
        during = next((result for result in own if result.step == span.end), None)
        if during is None or not later or span.source in following:
            continue
        post = next((result for result in reversed(own) if span.end < result.step <= until), None)
        before, after = during.forced_local_accuracy, post.forced_local_accuracy if post else None
        entries.append(
            Forgetting(
                phase=span.phase,
                source=span.source,
                task=span.task,
                during_step=during.step,
                post_step=post.step if post else None,
                during_task_acc=before,
                post_switch_acc=after,
                forgetting_rate=None if after is None or before == 0.0 else forgetting_rate(before, after),
                during_kept_accuracy=during.kept_accuracy,
                post_kept_accuracy=post.kept_accuracy if post else None,
            )
        )
    return entries
