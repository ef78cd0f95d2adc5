"""Learning from one's own use: verdicts on answers and watched task files take turns with the phases. Knows which items are there, how
often each was learned from and whose turn it is; knows nothing of how a step is made.

Items of one label make a source: `mine:LABEL` of own questions, `watched:LABEL` of task files. Of every ten steps `share` go to them, one
source after the other, as long as any has an item that was learned from fewer than `passes` times; then the phases have all steps until
something new comes. Which items a step takes depends only on the committed state, the folder and the seed, so a step that is made again
takes the same ones.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from edge.agent.feedback import FeedbackBook
from edge.agent.mine import SOURCE, WATCHED, OwnItem, own_items
from edge.agent.state import StateFolder
from edge.agent.step import StepPlan
from edge.agent.watched import WatchedFolder
from edge.core.errors import CoordinatorError, EdgeError, PermissionDenied
from edge.core.rng import derive_seed
from edge.core.types import TaskItem

_HELD_OUT_OF, _HELD_OUT_FROM = 5, 10
"""Where there are ten own questions of a label or more, one in five is held out to be examined on. Task files say themselves what is."""


@dataclass(frozen=True, slots=True)
class OwnUseRules:
    """`share`: of all steps; `passes`: how often an item is learned from; `target_rate`: τ of labels that nothing else says it for."""

    feedback: bool = True
    agreement: bool = False
    share: float = 0.25
    passes: int = 4
    target_rate: float = 0.3


@dataclass(frozen=True, slots=True)
class OwnSource:
    """The items of one label: `train` to learn from, `held_out` to be examined on."""

    name: str
    task: str
    train: tuple[OwnItem, ...]
    held_out: tuple[OwnItem, ...]


class OwnUse:
    """The sources of one's own use, and the steps that are theirs."""

    def __init__(
        self,
        state: StateFolder,
        rules: OwnUseRules,
        folder: WatchedFolder | None,
        seed: int,
        prompts_per_step: int,
        rate_of: Callable[[str], float | None] = lambda task: None,
    ) -> None:
        """`rate_of`: the τ that the phases hold a label to, None where they do not know it."""
        self._state = state
        self.rules = rules
        self._folder = folder
        self._seed = seed
        self._prompts = prompts_per_step
        self._rate_of = rate_of
        self._book = FeedbackBook(state)
        self._sorted_out: tuple[tuple[OwnItem, ...], set[str], list[OwnSource]] = ((), set(), [])
        self.left_out: set[str] = set()
        """Labels that the coordinator does not let this device work on."""

    async def sources(self) -> list[OwnSource]:
        """What there is now, by name."""
        if self._folder is not None:
            await self._folder.look()
        return self._sources()

    async def fresh(self) -> int:
        """How many items are there to be learned from; none where own use has no share of the steps."""
        sources, uses = await self.sources(), self._uses()
        if self.rules.share <= 0.0:
            return 0
        return sum(uses.get(one.key, 0) < self.rules.passes for source in sources for one in source.train)

    async def next_step(self, plan: StepPlan | None) -> StepPlan | None:
        """The step that comes instead of the phases' `plan` (None: they are done), or that plan."""
        position = self._state.position()
        step, share = position.steps_done + 1, self.rules.share if plan is not None else 1.0
        turn = math.floor(step * share + 1e-9)
        if turn == math.floor((step - 1) * share + 1e-9) or self.rules.share <= 0.0:
            return self._counted(plan)
        sources, uses = await self.sources(), self._uses()
        ready = await asyncio.to_thread(self._ready, sources, uses)
        if not ready:
            return self._counted(plan)
        source, left = ready[turn % len(ready)]
        chosen = left[: self._prompts]
        return StepPlan(
            step=step,
            steps_planned=self._planned(plan, 1),
            phase=position.phase,
            phase_step=position.phase_step,
            source=source.name,
            task=source.task,
            target_rate=self._target_rate(source.task),
            items=tuple(one.item for one in chosen),
            cursor_seed=self._seed,
            cursor_after=self._state.cursor(source.name, self._seed) + len(chosen),
            ends_phase=plan is None and self._passes_left(ready, uses) == len(chosen),
            own=True,
            phases_done=plan is None,
            stay_here=frozenset(one.item.id for one in chosen if not one.sent),
            used=tuple(one.key for one in chosen),
        )

    def anchors(self, source: str, limit: int) -> tuple[TaskItem, ...] | None:
        """A uniform sample of at most `limit` items that stand for a source as they were when it was last looked at, by the seed; None
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
                database.execute("REPLACE INTO item_uses VALUES (?, ?, ?)", (item, self.rules.passes, plan.step))

    def problems(self) -> Mapping[str, str]:
        """Task files that are left out, and why."""
        return self._folder.problems if self._folder else {}

    def _sources(self) -> list[OwnSource]:
        mine = own_items(self._book, feedback=self.rules.feedback, agreement=self.rules.agreement)
        return [*self._by_label(SOURCE, mine), *self._watched_sources()]

    def _watched_sources(self) -> list[OwnSource]:
        """Sorted out anew only when files or labels have changed."""
        items = self._folder.items if self._folder else ()
        if self._sorted_out[0] is not items or self._sorted_out[1] != self.left_out:
            self._sorted_out = (items, set(self.left_out), self._by_label(WATCHED, items))
        return self._sorted_out[2]

    def _ready(self, sources: Sequence[OwnSource], uses: Mapping[str, int]) -> list[tuple[OwnSource, list[OwnItem]]]:
        """The sources that have items with passes left, with these."""
        return [(source, left) for source in sources if (left := self._left(source, uses))]

    def _by_label(self, kind: str, items: Iterable[OwnItem]) -> list[OwnSource]:
        labels: dict[str, list[OwnItem]] = {}
        for one in items:
            if one.item.task not in self.left_out:
                labels.setdefault(one.item.task, []).append(one)
        return [_source(f"{kind}:{task}", task, labels[task], hold_out=kind == SOURCE) for task in sorted(labels)]

    def _left(self, source: OwnSource, uses: Mapping[str, int]) -> list[OwnItem]:
        """Items with passes left: the least used first, drawn anew for each pass."""
        left = [(uses.get(one.key, 0), one) for one in source.train]
        order = [(used, derive_seed(self._seed, "own", one.key, used), one) for used, one in left if used < self.rules.passes]
        return [one for _, _, one in sorted(order, key=lambda entry: entry[:2])]

    def _passes_left(self, ready: Sequence[tuple[OwnSource, Sequence[OwnItem]]], uses: Mapping[str, int]) -> int:
        """How often anything is still to be learned from: the step that uses the last of it up is judged."""
        return sum(self.rules.passes - uses.get(one.key, 0) for _, left in ready for one in left)

    def _uses(self) -> dict[str, int]:
        return dict(self._state.database.execute("SELECT item, uses FROM item_uses").fetchall())

    def _counted(self, plan: StepPlan | None) -> StepPlan | None:
        return None if plan is None else replace(plan, steps_planned=self._planned(plan))

    def _planned(self, plan: StepPlan | None, more: int = 0) -> int | None:
        """The phases' steps and one's own; None where the phases are without end or done."""
        return None if plan is None or plan.steps_planned is None else plan.steps_planned + self._own_steps() + more

    def _own_steps(self) -> int:
        query = (
            "SELECT count(*) FROM steps WHERE json_extract(event, '$.source') GLOB ? OR json_extract(event, '$.source') GLOB ?"
        )
        return int(self._state.database.execute(query, (f"{SOURCE}:*", f"{WATCHED}:*")).fetchone()[0])

    def _target_rate(self, task: str) -> float:
        phases, known = self._rate_of(task), self._state.terms(task)
        return phases if phases is not None else known.target_rate if known else self.rules.target_rate


def is_about_the_device(error: EdgeError) -> bool:
    """Whether a refusal is of this device, and not of a question or its label."""
    return isinstance(error, PermissionDenied) and error.reason != PermissionDenied.reason


def _source(name: str, task: str, items: Sequence[OwnItem], *, hold_out: bool) -> OwnSource:
    some_held_out = hold_out and len(items) >= _HELD_OUT_FROM

    def held(item: TaskItem) -> bool:
        return item.split == "test" or (some_held_out and derive_seed(0, "held out", item.id) % _HELD_OUT_OF == 0)

    train = tuple(one for one in items if not held(one.item))
    kept = tuple(replace(one, item=replace(one.item, split="test")) for one in items if held(one.item))
    return OwnSource(name, task, train, kept)
