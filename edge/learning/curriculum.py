"""The order of learning: phases, their task streams and the data cursor."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from edge.config.schema import PhaseConfig
from edge.core.errors import TaskFileError
from edge.core.formatting import counted
from edge.core.rng import stream
from edge.core.types import TaskItem
from edge.dagrpo.prompts import TextQuestion
from edge.learning.teaching import LOOKED_BACK, NOTHING_SEEN, Draw, draws, ignorance, seen, variance
from edge.state.folder import StateFolder
from edge.state.reader import PLAN
from edge.state.rows import Position
from edge.tasks.jsonl import FEWEST_TO_HOLD_OUT, JsonLinesSource
from edge.tasks.source import ListedItems, TaskSource, listed_items


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step is about: its place in the phases, its prompts, and the data cursor."""

    step: int
    """Counts from 1."""
    steps_planned: int | None
    phase: int
    phase_step: int
    source: str
    task: str
    target_rate: float
    items: tuple[TaskItem, ...]
    cursor_seed: int
    cursor_after: int
    """The position of the data cursor after the step."""
    ends_phase: bool = False
    own: bool = False
    """A step of one's own use, between those of the phases; the position in the phases does not change."""
    phases_done: bool = False
    """Of such a step: it comes after the last step of the phases."""
    stay_here: frozenset[str] = frozenset()
    """Ids of its items whose questions must not leave this device."""
    used: tuple[str, ...] = ()
    """Keys of its items, whose uses are counted."""
    demonstrates: bool = False
    """Given answers are learned from where few responses are right."""
    generalises: bool = False
    """Some questions of the label are held out: what is learned should hold for questions like these, too."""
    draws: tuple[Draw, ...] = ()
    """How each of its items was drawn, where they are drawn by what they can teach; (): they are the next ones of a stream."""
    ends_when_known: bool = False
    """The phase has nothing but answers that are learned by heart, and ends with the step that finds all of them known."""
    by_heart: tuple[TaskItem, ...] = ()
    """Items of the label whose given answers are all to be known."""
    rehearsed: tuple[TaskItem, ...] = ()
    """Items that were learned by heart before, from other sources; their answers are kept up."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out items of one source, always the same ones, and the label of the task they belong to."""

    source: str
    task: str
    items: tuple[TaskItem, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """What a phase has under one label: a whole source, or the questions of one label in a file that has several.

    `share` of the phase's steps is this part's: 0 where all questions of the label are held out.
    """

    name: str
    task: str
    source: TaskSource
    share: float = 1.0


class Standing(Protocol):
    """How far learning has come; as a StateFolder keeps it."""

    def position(self) -> Position: ...

    def cursor(self, source: str, seed: int) -> int: ...


class Curriculum:
    """Phases over task sources, continued from the state folder's position.

    A file with several labels is learned label by label: each step is about one, with its own λ, and their turns are as many as they have
    questions. Their sources are called FILE#LABEL. A label whose questions are all held out is examined with the others.
    """

    def __init__(
        self,
        phases: Sequence[PhaseConfig],
        open_source: Callable[[str], TaskSource],
        standing: Standing,
        seed: int,
        prompts_per_step: int,
        demonstrates: Callable[[str], bool] = lambda source: False,
        skills: Sequence[str] = (),
        narrowed: Callable[[TaskSource], TaskSource] = lambda source: source,
        drawn_questions: Callable[[str, int], Sequence[tuple[int, str, int, int]]] | None = None,
    ) -> None:
        """Opens every source at once, so that a bad task file shows at the start. `demonstrates`: whether a source's given answers are
        learned from. `skills`: sources that learning must not make worse. `narrowed`: what steps take of a source, or of one label of
        it. `drawn_questions`: what a source's last steps showed of their questions (StateReader), with which those of a file or data set
        are drawn by what they can teach; None: all are a stream. Raises TaskFileError, UsageError."""
        self._phases = tuple(phases)
        self._demonstrates = demonstrates
        opened = {phase.source: open_source(phase.source) for phase in phases}
        phase_parts = [
            [replace(part, source=narrowed(part.source)) for part in _parts(phase, opened[phase.source], seed)]
            for phase in phases
        ]
        self._parts = [[part for part in parts if part.share] for parts in phase_parts]
        self._asked = [source.asked if isinstance(source := opened[phase.source], JsonLinesSource) else None for phase in phases]
        self._named: dict[str, _Part] = {}
        for part in (one for parts in phase_parts for one in parts):
            self._named.setdefault(part.name, part)
        self.skills = {name: opened.get(name) or open_source(name) for name in skills}
        self._also_held_out = {part.name: [one for one in parts if not one.share] for parts in phase_parts for part in parts}
        self._standing = standing
        self._seed = seed
        self._prompts = prompts_per_step
        self._drawn_questions = drawn_questions
        self._streams: dict[str, tuple[int, Iterator[TaskItem]]] = {}

    @property
    def steps_planned(self) -> int | None:
        """Steps over all phases counted from the first; None when the last phase is endless."""
        steps = [phase.steps for phase in self._phases]
        return None if any(count is None for count in steps) else sum(count or 0 for count in steps)

    @property
    def tasks(self) -> list[str]:
        """The task labels, each once, in order."""
        return list(dict.fromkeys(part.task for parts in self._parts for part in parts))

    @property
    def asked(self) -> dict[str, TextQuestion | None]:
        """What is asked about each text of a label, by label; None where the label has questions of its own."""
        return {part.task: asked for parts, asked in zip(self._parts, self._asked, strict=True) for part in parts}

    @property
    def tasks_ahead(self) -> list[str]:
        """The labels of the phases that are not done, each once, in order."""
        ahead = self._parts[self._standing.position().phase :]
        return list(dict.fromkeys(part.task for parts in ahead for part in parts))

    @property
    def phase_count(self) -> int:
        """How many phases there are."""
        return len(self._phases)

    def held_out(self, limit: int) -> list[HeldOut]:
        """At most `limit` held-out items of each phase's source (of each label of one that has several), each source once."""
        return [HeldOut(name, part.task, tuple(part.source.test(limit))) for name, part in self._named.items()]

    def adopt(self, state: StateFolder) -> bool:
        """Compare with the plan the state folder knows; True when it was another one and learning begins at its first phase.

        A plan is the same while the phases up to the current one have the same sources and labels, and ask the same about their texts;
        rates and lengths may change. Before the first step of a phase there is nothing to begin again.
        """
        position = state.position()
        plan = [
            [phase.source, parts[0].task, *([asked.ask, *asked.options] if asked else [])]
            for phase, parts, asked in zip(self._phases, self._parts, self._asked, strict=True)
        ]
        known = json.loads(state.meta(PLAN) or "null")
        state.set_meta(PLAN, json.dumps(plan))
        if (
            known is None
            or (position.phase, position.phase_step) == (0, 0)
            or known[: position.phase + 1] == plan[: position.phase + 1]
        ):
            return False
        state.set_position(replace(position, phase=0, phase_step=0))
        return True

    @property
    def present_task(self) -> str:
        """The label of the phase that learning is in."""
        return self.phase_task(self._standing.position().phase)

    def phase_task(self, phase: int) -> str:
        """The label of a phase, the first one of several (the last phase's past the end)."""
        return self._parts[min(phase, len(self._parts) - 1)][0].task

    def phase_rate(self, phase: int) -> float:
        """τ of a phase (the last one's past the end)."""
        return self._phases[min(phase, len(self._phases) - 1)].target_rate

    def rate_of(self, task: str) -> float | None:
        """τ of the first phase with this label, None where none has it."""
        phases = zip(self._phases, self._parts, strict=True)
        return next((phase.target_rate for phase, parts in phases if task in [part.task for part in parts]), None)

    def phase(self, phase: int) -> PhaseConfig:
        """A phase's configuration."""
        return self._phases[phase]

    def next_step(self) -> StepPlan | None:
        """What comes after the last committed step, or None when all phases are done."""
        position = self._current(self._standing.position())
        if position.phase >= len(self._phases):
            return None
        phase, part = self._phases[position.phase], _whose_turn(self._parts[position.phase], position.phase_step)
        cursor, demonstrates = self._standing.cursor(part.name, self._seed), self._demonstrates(phase.source)
        generalises, by_heart = demonstrates and bool(part.source.test(1)), self._by_heart(position.phase, part)
        count = min(self._prompts, len(by_heart)) or self._prompts  # none comes twice in a step
        step = position.steps_done + 1
        drawn = self._drawn(part, step, demonstrates, generalises)
        return StepPlan(
            step=step,
            steps_planned=self.steps_planned,
            phase=position.phase,
            phase_step=position.phase_step + 1,
            source=part.name,
            task=part.task,
            target_rate=phase.target_rate,
            items=tuple(item for item, _ in drawn) if drawn else self._take(part.name, cursor, count),
            draws=tuple(draw for _, draw in drawn),
            cursor_seed=self._seed,
            cursor_after=cursor + count,
            ends_phase=position.phase_step + 1 == phase.steps,
            demonstrates=demonstrates,
            generalises=generalises,
            ends_when_known=bool(by_heart) and len(self._parts[position.phase]) == 1,
            by_heart=by_heart,
        )

    def learned_by_heart(self) -> tuple[TaskItem, ...]:
        """What was learned by heart in the phases before the current one."""
        done = range(min(self._current(self._standing.position()).phase, len(self._phases)))
        return tuple(item for phase in done for part in self._parts[phase] for item in self._by_heart(phase, part))

    def _by_heart(self, phase: int, part: _Part) -> tuple[TaskItem, ...]:
        """The items of a part whose given answers are all to be known: a file's few, of which none is held out."""
        demonstrates = self._demonstrates(self._phases[phase].source)
        listed = listed_items(part.source) if demonstrates and not part.source.test(1) else None
        return listed.train_items if listed is not None and len(listed.train_items) < FEWEST_TO_HOLD_OUT else ()

    def _drawn(self, part: _Part, step: int, demonstrates: bool, generalises: bool) -> list[tuple[TaskItem, Draw]]:
        """The step's items by what they can teach, always the same for a step; [] where they are those of the stream: an endless source,
        or one with no more questions than a step takes."""
        listed = listed_items(part.source)
        if self._drawn_questions is None or listed is None or len(listed.train_items) <= self._prompts:
            return []
        known = seen(self._drawn_questions(part.name, LOOKED_BACK), step)
        values = [
            # what is shown to a model that does not know it: edge/learning/imitation.py
            (ignorance if demonstrates and not (generalises and item.options) else variance)(known.get(item.id, NOTHING_SEEN))
            for item in listed.train_items
        ]
        chosen = draws(values, self._prompts, stream(self._seed, "teaching", part.name, step))
        return [(listed.train_items[place], draw) for place, draw in chosen]

    def anchors(self, source: str, limit: int) -> dict[str, tuple[TaskItem, ...]]:
        """At most `limit` items that represent a phase's source, always the same: held-out ones, else its first training items; likewise
        for each label of its file that is only held out. Also of a skill.

        {} for a source that no phase has any more.
        """
        if source not in self._named:
            return {source: self._anchors_of(self.skills[source], limit)} if source in self.skills else {}
        parts = dict.fromkeys([self._named[source], *self._also_held_out[source]])
        return {part.name: self._anchors_of(part.source, limit) for part in parts}

    def _anchors_of(self, source: TaskSource, limit: int) -> tuple[TaskItem, ...]:
        return tuple(source.test(limit)) or tuple(itertools.islice(source.train(self._seed, 0), limit))

    def _current(self, position: Position) -> Position:
        """The position moved past finished phases."""
        while position.phase < len(self._phases):
            steps = self._phases[position.phase].steps
            if steps is None or position.phase_step < steps:
                break
            position = replace(position, phase=position.phase + 1, phase_step=0)
        return position

    def _take(self, source: str, cursor: int, count: int) -> tuple[TaskItem, ...]:
        """The next items of a source from `cursor`; a stream that is at that place is continued, else one is opened there."""
        position, stream = self._streams.get(source, (-1, iter(())))
        if position != cursor:
            stream = self._named[source].source.train(self._seed, cursor)
        items = tuple(itertools.islice(stream, count))
        if len(items) < count:
            raise TaskFileError(f"{source}: the training stream ended after {counted(cursor + len(items), 'item')}")
        self._streams[source] = (cursor + count, stream)
        return items


def _parts(phase: PhaseConfig, source: TaskSource, seed: int) -> list[_Part]:
    """The parts of a phase by label; one where the configuration names a label for all of it. Raises TaskFileError."""
    labels = source.by_label() if isinstance(source, ListedItems) and phase.task is None else {}
    whole = sum(len(items.train_items) for items in labels.values())
    if len(labels) > 1 and whole:
        return [_Part(f"{phase.source}#{label}", label, items, len(items.train_items) / whole) for label, items in labels.items()]
    first = None if phase.task else next(iter(source.train(seed, 0)), None)
    if phase.task is None and first is None:
        raise TaskFileError(f"{phase.source}: there are no training items")
    return [_Part(phase.source, phase.task or (first.task if first else ""), source)]


_GOLDEN = (5.0**0.5 - 1.0) / 2.0


def _whose_turn(parts: Sequence[_Part], phase_step: int) -> _Part:
    """The part that the step after `phase_step` is about: each has its share of any number of steps in a row, as evenly as can be."""
    place = (phase_step + 0.5) * _GOLDEN % 1.0
    for part in parts[:-1]:
        place -= part.share
        if place < 0.0:
            return part
    return parts[-1]
