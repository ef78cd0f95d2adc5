"""The built-in practice tasks as a TaskSource. Knows how to number an endless stream; knows nothing of how questions are made."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from edge.core.types import TaskItem
from edge.tasks.practice import practice_stream

_TEST_SEED = 20_260


class PracticeSource:
    """One practice family, e.g. `practice:arith`; unlimited, seeded, train and test disjoint."""

    def __init__(self, family: str) -> None:
        self._family = family

    @property
    def name(self) -> str:
        """How the source is written on the command line."""
        return f"practice:{self._family}"

    def train(self, seed: int, start: int = 0) -> Iterator[TaskItem]:
        """The endless training stream from position `start`."""
        return itertools.islice(practice_stream(self._family, "train", seed), start, None)

    def test(self, limit: int) -> Sequence[TaskItem]:
        """The first `limit` held-out items; the same ones whatever the training seed."""
        return tuple(itertools.islice(practice_stream(self._family, "test", _TEST_SEED), limit))
