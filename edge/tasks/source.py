"""The role of a task source. Knows that items come in a fixed order under a seed; knows nothing of where they come from.

Contract (tests/contracts/test_task_source.py): `train(seed, start)` yields the same items in the same order for the same seed, and
starting at `start` equals skipping the first `start` items, so that a resumed run goes on where it stopped. `test(limit)` is a fixed
list that shares no question with the training stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from edge.core.types import TaskItem


class TaskSource(Protocol):
    """Where questions come from."""

    @property
    def name(self) -> str:
        """How the source is written on the command line, e.g. `practice:arith`."""
        ...

    def train(self, seed: int, start: int = 0) -> Iterator[TaskItem]:
        """The endless training stream from position `start`."""
        ...

    def test(self, limit: int) -> Sequence[TaskItem]:
        """At most `limit` held-out items, always the same ones."""
        ...
