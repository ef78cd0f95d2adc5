"""The built-in practice tasks as a TaskSource. Knows how to number an endless stream; knows nothing of how questions are made."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from edge.core.types import Split, TaskItem
from edge.tasks.practice import GROUPS, group_stream, practice_stream

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
        return itertools.islice(self._stream("train", seed), start, None)

    def test(self, limit: int) -> Sequence[TaskItem]:
        """The first `limit` held-out items; the same ones whatever the training seed."""
        return tuple(itertools.islice(self._stream("test", _TEST_SEED), limit))

    def _stream(self, split: Split, seed: int) -> Iterator[TaskItem]:
        return (group_stream if self._family in GROUPS else practice_stream)(self._family, split, seed)
