"""A scenario made smaller for as long as it still violates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shrunk(Generic[S]):
    """The smallest scenario found, after so many tries; `exhausted`: no smaller one that was thought of violates any more."""

    scenario: S
    tries: int
    exhausted: bool


def shrink(
    scenario: S,
    smaller: Callable[[S], Iterator[S]],
    violates: Callable[[S], bool],
    most_tries: int,
    tell: Callable[[int], None] = lambda tries: None,
) -> Shrunk[S]:
    """Take the first smaller scenario that violates, and again from there, until none does or `most_tries` are over."""
    tries = 0
    waiting = smaller(scenario)
    while (candidate := next(waiting, None)) is not None:
        if tries == most_tries:
            return Shrunk(scenario, tries, exhausted=False)
        tries += 1
        tell(tries)
        if violates(candidate):
            scenario, waiting = candidate, smaller(candidate)
    return Shrunk(scenario, tries, exhausted=True)


def without_some(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """A sequence without all, without each half, each quarter, and so on to each single one."""
    size = len(items)
    while size:
        for start in range(0, len(items), size):
            yield (*items[:start], *items[start + size :])
        size //= 2


def less(number: int, least: int) -> Iterator[int]:
    """Smaller numbers, the least one first."""
    yield from dict.fromkeys(each for each in (least, number // 2, number - 1) if least <= each < number)
