"""The role of a task source, and the one over a finite list of items.

Contract (tests/contracts/test_task_source.py): `train(seed, start)` yields the same items in the same order for the same seed, and
starting at `start` equals skipping the first `start` items, so that a resumed run goes on where it stopped. `test(limit)` is a fixed
list that shares no question with the training stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from edge.core.errors import TaskFileError
from edge.core.rng import stream
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


def listed_items(source: TaskSource) -> ListedItems | None:
    """All items of a source that has a finite list of them, as files and data sets do; None for an endless one."""
    listed = source if isinstance(source, ListedItems) else getattr(source, "items", None)
    return listed if isinstance(listed, ListedItems) else None


class ListedItems:
    """Training items in a seeded order that changes on every pass, held-out items in the given order."""

    def __init__(self, items: Sequence[TaskItem], *, name: str, order_name: str, hint: str) -> None:
        """`order_name` is the name of the random stream that shuffles; `name` and `hint` are for the error about no training item."""
        self.name = name
        self.train_items = tuple(item for item in items if item.split == "train")
        self.test_items = tuple(item for item in items if item.split == "test")
        self._order_name = order_name
        self._hint = hint

    def train(self, seed: int, start: int = 0) -> Iterator[TaskItem]:
        """Endless training stream from position `start`. Raises TaskFileError at once when there is no training item."""
        if not self.train_items:
            raise TaskFileError(f"{self.name}: no training item", hint=self._hint)
        return self._shuffled(seed, start)

    def test(self, limit: int) -> Sequence[TaskItem]:
        """The first `limit` held-out items."""
        return self.test_items[:limit]

    def by_label(self) -> dict[str, ListedItems]:
        """The items of each task label, by label; one may have none to learn from."""
        everything = (*self.train_items, *self.test_items)
        labels = sorted({item.task for item in everything})
        return {
            label: ListedItems(
                [item for item in everything if item.task == label], name=self.name, order_name=self._order_name, hint=self._hint
            )
            for label in labels
        }

    def _shuffled(self, seed: int, start: int) -> Iterator[TaskItem]:
        epoch, skip = divmod(start, len(self.train_items))
        while True:
            order = list(self.train_items)
            stream(seed, self._order_name, epoch).shuffle(order)
            yield from order[skip:]
            epoch, skip = epoch + 1, 0
