"""Practice tasks: built-in question families, generated from a seed, exact answers, unlimited supply.

Knows which families exist. Each family is a module with pure functions `generate(seed, split, level)` and
`stream(seed, split, weights)`, and the constants `LEVELS` and `DEFAULT_LEVEL_WEIGHTS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edge.core.types import Split, TaskItem
from edge.tasks.practice import arith

FAMILIES = (arith.FAMILY,)


def practice_item(family: str, split: Split, level: int, seed: int) -> TaskItem:
    """The item of `seed`; deterministic. Raises ValueError on an unknown family or level."""
    _check_family(family)
    return arith.generate(seed, split, level)


def practice_stream(family: str, split: Split, seed: int, weights: Mapping[int, float] | None = None) -> Iterator[TaskItem]:
    """Items of `family` without end, levels drawn by `weights` (None: the family's mix). Raises ValueError on an unknown family."""
    _check_family(family)
    return arith.stream(seed, split, weights)


def _check_family(family: str) -> None:
    if family not in FAMILIES:
        raise ValueError(f"no practice family {family!r}; there is: {', '.join(FAMILIES)}")
