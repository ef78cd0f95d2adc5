"""Learning from one's own use: steps on rated questions and on watched task files, between the steps of the phases."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from edge.config.schema import LearningConfig, UseConfig
from edge.core.answer_key import plain_words
from edge.core.errors import CoordinatorError, EdgeError
from edge.core.rng import derive_seed
from edge.core.types import TaskItem
from edge.learning.curriculum import StepPlan
from edge.learning.own_items import MINE, OwnItem, own_items
from edge.learning.watched_folder import WatchedFolder
from edge.state.feedback import FeedbackBook
from edge.state.folder import StateFolder
from edge.tasks.jsonl import FEWEST_TO_HOLD_OUT

WATCHED = "watched"
_HELD_OUT_OF = 10
"""One in this many of one's own questions is held out for examinations, where a label has FEWEST_TO_HOLD_OUT. Task files state theirs."""
MOST_SHOWN, MOST_REHEARSED = 8, 8


def is_own_use(source: str) -> bool:
    """Whether a step's source is one's own use and not a phase's."""
    return source.startswith((f"{MINE}:", f"{WATCHED}:"))


@dataclass(frozen=True, slots=True)
class OwnSource:
    """The items of one label: `train` to learn from, `held_out` to be examined on."""

    name: str
    task: str
    train: tuple[OwnItem, ...]
    held_out: tuple[OwnItem, ...]


@dataclass(frozen=True, slots=True)
class Through:
    """A source that has had all its steps: how many questions it has, and those that never became right."""

    source: str
    questions: int
    not_learned: tuple[str, ...]


class OwnUse:
    """The sources of one's own use, and the steps that are theirs.

    A step that shows known answers is no pass: the item comes again until it was right in `use.passes` steps, or its answer was shown
    MOST_SHOWN times as often.
    """

    def __init__(
        self,
        state: StateFolder,
        use: UseConfig,
        learning: LearningConfig,
        folder: WatchedFolder | None,
        rate_of: Callable[[str], float | None] = lambda task: None,
    ) -> None:
        """`rate_of`: the τ that the phases hold a label to, None where they do not know it."""
        self._state = state
        self.use = use
        self._demonstrates = learning.imitation.demonstrations != "none"
        self._folder = folder
        self._seed = learning.seed
        self._prompts = learning.prompts_per_step
        self._rate_of = rate_of
        self._book = FeedbackBook(state)
        self._sorted_out: tuple[tuple[OwnItem, ...], set[str], list[OwnSource]] = ((), set(), [])
        self.left_out: set[str] = set()
        """Labels that the coordinator does not let this device work on."""

    async def sources(self) -> list[OwnSource]:
        """What there is now, by name."""
        if self._folder is not None:
            await self._folder.check()
        return self._sources()

    async def fresh(self) -> int:
        """How many items are there to be learned from; none where own use has no share of the steps."""
        sources, (uses, _) = await self.sources(), self._uses()
        if self.use.share <= 0.0:
            return 0
        return sum(uses.get(one.key, 0) < self.use.passes for source in sources for one in source.train)

    async def through(self) -> list[Through]:
        """The sources of which every question was learned from as often as it may be; where these are all, their sum under the name ""."""
        sources, (uses, given_up) = await self.sources(), self._uses()
        if self.use.share <= 0.0:
            return []
        with_questions = [source for source in sources if source.train]
        through = [
            Through(source.name, len(source.train), tuple(one.item.question for one in source.train if one.key in given_up))
            for source in with_questions
            if all(uses.get(one.key, 0) >= self.use.passes for one in source.train)
        ]
        if through and len(through) == len(with_questions):
            not_learned = tuple(question for one in through for question in one.not_learned)
            through.append(Through("", sum(one.questions for one in through), not_learned))
        return through

    async def next_step(self, plan: StepPlan | None, by_heart: Sequence[TaskItem] = ()) -> StepPlan | None:
        """The step that comes instead of the phases' `plan` (None: they are done), or that plan. `by_heart`: what the phases before taught
        by heart, which a step of one's own keeps up.

        A person's correction takes the place of the answer that a phase gives to the same question.

        The number of planned steps is that of the phases and one's own; None where the phases are without end or done.
        """
        position, planned = self._state.position(), None
        if plan is not None:
            planned = None if plan.steps_planned is None else plan.steps_planned + self._own_steps()
            plan = replace(plan, steps_planned=planned)
        if self.use.share <= 0.0:
            return plan
        step, share = position.steps_done + 1, self.use.share if plan is not None else 1.0
        turn, turn_before = math.floor(step * share + 1e-9), math.floor((step - 1) * share + 1e-9)
        sources, (uses, _) = await self.sources(), self._uses()
        corrections = {plain_words(one.item.question): one.item for each in sources for one in each.train if one.corrects}
        rehearsed = self._rehearsed(sources, uses, step)

        def as_corrected(items: Iterable[TaskItem]) -> tuple[TaskItem, ...]:
            found = ((item, corrections.get(plain_words(item.question))) for item in items)
            return tuple(
                item if correction is None else replace(correction, id=item.id, task=item.task) for item, correction in found
            )

        ready = await asyncio.to_thread(self._ready, sources, uses) if turn > turn_before else []
        if not ready:
            return plan and replace(
                plan,
                items=as_corrected(plan.items),
                by_heart=as_corrected(plan.by_heart),
                rehearsed=_of_other_questions(rehearsed, (*plan.items, *plan.by_heart)),
            )
        source, left = ready[turn % len(ready)]
        chosen = left[: self._prompts]
        passes_left = sum(self.use.passes - uses.get(one.key, 0) for _, items in ready for one in items)
        phase_rate, known = self._rate_of(source.task), self._state.terms(source.task)
        items = tuple(one.item for one in chosen)
        return StepPlan(
            step=step,
            steps_planned=None if planned is None else planned + 1,
            phase=position.phase,
            phase_step=position.phase_step,
            source=source.name,
            task=source.task,
            target_rate=phase_rate if phase_rate is not None else known.target_rate if known else self.use.target_rate,
            items=items,
            cursor_seed=self._seed,
            cursor_after=self._state.cursor(source.name, self._seed) + len(chosen),
            ends_phase=plan is None and passes_left == len(chosen),  # the step that uses the last of it up is judged
            own=True,
            phases_done=plan is None,
            stay_here=frozenset(one.item.id for one in chosen if not one.sent),
            used=tuple(one.key for one in chosen),
            demonstrates=self._demonstrates,
            generalises=bool(source.held_out),
            rehearsed=_of_other_questions((*rehearsed, *_of_other_questions(as_corrected(by_heart), rehearsed)), items),
        )

    def anchors(self, source: str, limit: int) -> tuple[TaskItem, ...] | None:
        """A uniform sample of at most `limit` items that represent a source as it was when last checked, by the seed; None
        where there was no such source any more.

        Each item has a number drawn by its content, and the smallest are the sample: when items come and go, the others stay in it.
        """
        found = next((one for one in self._sources() if one.name == source), None)
        if found is None:
            return None
        drawn = heapq.nsmallest(limit, found.held_out or found.train, key=lambda one: derive_seed(self._seed, "anchor", one.key))
        return tuple(one.item for one in drawn)

    def leave_out(self, plan: StepPlan, error: EdgeError) -> None:
        """Learn no more from the items of a step that cannot be made; a label that may not be worked on goes as a whole until a restart."""
        if isinstance(error, CoordinatorError):
            self.left_out.add(plan.task)
            return
        with self._state.database as database:
            for item in plan.used:
                database.execute("REPLACE INTO item_uses VALUES (?, ?, ?)", (item, self.use.passes, plan.step))
                database.execute("DELETE FROM demonstrated WHERE item = ?", (item,))

    def _sources(self) -> list[OwnSource]:
        """Those of the watched files are made again only when files or labels have changed."""
        mine = own_items(self._book, feedback=self.use.feedback, agreement=self.use.agreement)
        items = self._folder.items if self._folder else ()
        if self._sorted_out[0] is not items or self._sorted_out[1] != self.left_out:
            self._sorted_out = (items, set(self.left_out), self._by_label(WATCHED, items))
        return [*self._by_label(MINE, mine), *self._sorted_out[2]]

    def _rehearsed(self, sources: Sequence[OwnSource], uses: Mapping[str, int], step: int) -> tuple[TaskItem, ...]:
        """Some of what has been learned by heart, others at each step; nothing of a label that teaches a rule."""
        if not self._demonstrates:
            return ()
        learned = [one for source in sources if not source.held_out for one in source.train if one.key in uses]
        drawn = heapq.nsmallest(MOST_REHEARSED, learned, key=lambda one: derive_seed(self._seed, "rehearsed", one.key, step))
        return tuple(one.item for one in drawn)

    def _ready(self, sources: Sequence[OwnSource], uses: Mapping[str, int]) -> list[tuple[OwnSource, list[OwnItem]]]:
        """The sources that have items with passes left, with these: the least used first, drawn again for each pass."""
        ready = []
        for source in sources:
            left = [(used, one) for one in source.train if (used := uses.get(one.key, 0)) < self.use.passes]
            drawn = sorted(left, key=lambda entry: (entry[0], derive_seed(self._seed, "own", entry[1].key, entry[0])))
            if drawn:
                ready.append((source, [one for _, one in drawn]))
        return ready

    def _by_label(self, kind: str, items: Iterable[OwnItem]) -> list[OwnSource]:
        labels: dict[str, list[OwnItem]] = {}
        for one in items:
            if one.item.task not in self.left_out:
                labels.setdefault(one.item.task, []).append(one)
        sources = []
        for task in sorted(labels):
            some_held_out, train, held_out = kind == MINE and len(labels[task]) >= FEWEST_TO_HOLD_OUT, [], []
            for one in labels[task]:
                drawn = some_held_out and derive_seed(0, "held out", one.item.id) % _HELD_OUT_OF == 0
                if one.item.split == "test" or drawn:
                    held_out.append(replace(one, item=replace(one.item, split="test")))
                else:
                    train.append(one)
            sources.append(OwnSource(f"{kind}:{task}", task, tuple(train), tuple(held_out)))
        return sources

    def _uses(self) -> tuple[dict[str, int], set[str]]:
        """Passes by item: the steps in which its answer had not to be shown. One whose answer was shown as often as it may be, and that was
        hardly ever right, is given up and has them all; these are the second part."""
        query = "SELECT item, uses, coalesce(times, 0) FROM item_uses LEFT JOIN demonstrated USING (item)"
        passes, uses, given_up = self.use.passes, dict[str, int](), set[str]()
        for item, steps, times in self._state.database.execute(query):
            uses[item] = steps - times
            if times >= MOST_SHOWN * passes and steps - times < passes:
                uses[item] = steps
                given_up.add(item)
        return uses, given_up

    def _own_steps(self) -> int:
        query = (
            "SELECT count(*) FROM steps WHERE json_extract(event, '$.source') GLOB ? OR json_extract(event, '$.source') GLOB ?"
        )
        return int(self._state.database.execute(query, (f"{MINE}:*", f"{WATCHED}:*")).fetchone()[0])


def _of_other_questions(items: Iterable[TaskItem], than: Sequence[TaskItem]) -> tuple[TaskItem, ...]:
    """Those that ask something else: nothing is learned with two answers in one step."""
    asked = {plain_words(item.question) for item in than}
    return tuple(item for item in items if plain_words(item.question) not in asked)
