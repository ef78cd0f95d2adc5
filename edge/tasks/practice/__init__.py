"""Practice tasks: built-in question families, generated from a seed, exact answers, unlimited supply.

Knows which families there are and how they are grouped. Group 1 is {arith, science}, group 2 is {code, facts}: the two phases between
which forgetting is studied.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

from edge.core.types import Split, TaskItem
from edge.tasks.practice.arith import ARITH
from edge.tasks.practice.code import CODE
from edge.tasks.practice.facts import FACTS
from edge.tasks.practice.family import Family
from edge.tasks.practice.science import SCIENCE

FAMILIES: Mapping[str, Family] = {family.name: family for family in (ARITH, SCIENCE, CODE, FACTS)}
GROUPS: Mapping[str, tuple[str, ...]] = {"group1": ("arith", "science"), "group2": ("code", "facts")}
"""Families learned together. A group is one task: its items carry the group's name as their label, so that one λ and one τ apply."""


def practice_item(family: str, split: Split, level: int, seed: int) -> TaskItem:
    """The item of `seed`; deterministic. Raises ValueError on an unknown family or level."""
    return _family(family).generate(seed, split, level)


def practice_stream(family: str, split: Split, seed: int, weights: Mapping[int, float] | None = None) -> Iterator[TaskItem]:
    """Items of `family` without end, levels drawn by `weights` (None: the family's mix). Raises ValueError on an unknown family."""
    return _family(family).stream(seed, split, weights)


def group_stream(group: str, split: Split, seed: int) -> Iterator[TaskItem]:
    """Items of a group's families without end, each family as often, in random order. Raises ValueError on an unknown group."""
    if group not in GROUPS:
        raise ValueError(f"no group {group!r}; there is: {', '.join(GROUPS)}")
    streams = [practice_stream(family, split, seed) for family in GROUPS[group]]
    rng = random.Random(f"{group}/stream/{split}/{seed}")
    while True:
        for stream in rng.sample(streams, len(streams)):
            yield replace(next(stream), task=group)


def _family(name: str) -> Family:
    if name not in FAMILIES:
        raise ValueError(f"no practice family {name!r}; there is: {', '.join(FAMILIES)}")
    return FAMILIES[name]
