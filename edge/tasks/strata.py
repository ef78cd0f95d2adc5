"""Held-out items of every level of every family, as many of each.

For tables level by level (`edge-agent eval --per-level N`). The items of the practice families are those that `python -m tools.nano eval`
takes at its default seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from edge.core.types import TaskItem
from edge.tasks.practice import FAMILIES, GROUPS
from edge.tasks.source import TaskSource

_FIRST_SEED = 1_000_000
_ALL = 1 << 62
_PRACTICE = "practice:"


@dataclass(frozen=True, slots=True)
class Stratum:
    """Items of one level of one family, and its `weight` in the family's default mix (the weights of a family add up to 1)."""

    family: str
    level: int
    weight: float
    items: tuple[TaskItem, ...]


def strata_of(source: TaskSource, per_level: int) -> list[Stratum]:
    """The source's strata with at most `per_level` items each, by family and level.

    A practice family's mix is its default one; any other source mixes as its whole test split does.
    """
    if not source.name.startswith(_PRACTICE):
        return _listed_strata(source.test(_ALL), per_level)
    name = source.name.removeprefix(_PRACTICE)
    if name not in GROUPS:
        return list(_practice_strata(name, per_level))
    return [_labelled(stratum, name) for family in GROUPS[name] for stratum in _practice_strata(family, per_level)]


def _practice_strata(name: str, per_level: int) -> Iterator[Stratum]:
    family = FAMILIES[name]
    whole = sum(family.level_weights.values())
    for level, weight in family.level_weights.items():
        items = tuple(family.generate(_FIRST_SEED + index, "test", level) for index in range(per_level))
        yield Stratum(name, level, weight / whole, items)


def _labelled(stratum: Stratum, task: str) -> Stratum:
    return replace(stratum, items=tuple(replace(item, task=task) for item in stratum.items))


def _listed_strata(items: Sequence[TaskItem], per_level: int) -> list[Stratum]:
    def place(item: TaskItem) -> tuple[str, int]:
        return item.family, item.level

    sizes: dict[str, int] = {}
    for item in items:
        sizes[item.family] = sizes.get(item.family, 0) + 1
    levels = [(key, tuple(members)) for key, members in groupby(sorted(items, key=place), key=place)]
    return [Stratum(family, level, len(members) / sizes[family], members[:per_level]) for (family, level), members in levels]
