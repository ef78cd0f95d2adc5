"""Practice tasks: built-in question families, generated from a seed, with exact answers and without end.

A new family is a module here, an entry in FAMILIES and a test (docs/extending.md).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from edge.core.types import Split, TaskItem
from edge.tasks.practice.arith import ARITH
from edge.tasks.practice.code import CODE
from edge.tasks.practice.facts import FACTS
from edge.tasks.practice.family import Family
from edge.tasks.practice.science import SCIENCE

FAMILIES: Mapping[str, Family] = {family.name: family for family in (ARITH, SCIENCE, CODE, FACTS)}
GROUPS: Mapping[str, tuple[str, ...]] = {"group1": ("arith", "science"), "group2": ("code", "facts")}
"""Families learned together; forgetting is studied between the two groups. A group is one task: its items carry the group's name as their
label, so that one λ and one τ apply."""


def group_stream(group: str, split: Split, seed: int) -> Iterator[TaskItem]:
    """Items of a group's families without end, each family as often, in random order. Raises ValueError on an unknown group."""
    if group not in GROUPS:
        raise ValueError(f"no group {group!r}; there is: {', '.join(GROUPS)}")
    streams = [FAMILIES[family].stream(seed, split) for family in GROUPS[group]]
    rng = random.Random(f"{group}/stream/{split}/{seed}")
    while True:
        for stream in rng.sample(streams, len(streams)):
            yield replace(next(stream), task=group)


_TEST_SEED = 20_260


class PracticeSource:
    """A practice family or group, e.g. `practice:arith` or `practice:group1`; unlimited, seeded, train and test disjoint."""

    def __init__(self, family: str) -> None:
        self._family = family

    @property
    def name(self) -> str:
        """How the source is written on the command line."""
        return f"practice:{self._family}"

    def train(self, seed: int, start: int = 0) -> Iterator[TaskItem]:
        """The endless training stream from position `start`."""
        return itertools.islice(self.stream("train", seed), start, None)

    def test(self, limit: int) -> Sequence[TaskItem]:
        """The first `limit` held-out items; the same ones whatever the training seed."""
        return tuple(itertools.islice(self.stream("test", _TEST_SEED), limit))

    def stream(self, split: Split, seed: int) -> Iterator[TaskItem]:
        """Items of a split without end."""
        if self._family in GROUPS:
            return group_stream(self._family, split, seed)
        return FAMILIES[self._family].stream(seed, split)
