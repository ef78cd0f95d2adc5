"""Several task sources as one: `math+arc-easy+arc-challenge`.

The paper's groups are such mixtures. Each item comes from a random source, in proportion to their training items, but none counts for more
than the first: `taco+mmlu` takes as many of either, as the paper sub-samples the larger one to the other's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice

from edge.core.errors import UsageError
from edge.core.formatting import shown
from edge.core.rng import stream
from edge.core.types import TaskItem
from edge.tasks.registry import open_source
from edge.tasks.source import TaskSource

PLUS = "+"


def open_mixed(name: str, opened: Callable[[str], TaskSource] = open_source) -> TaskSource:
    """The source called `name`, or the mixture of those that `+` joins. Raises UsageError, TaskFileError."""
    parts = name.split(PLUS)
    if len(parts) == 1:
        return opened(name)
    if not all(part.strip() for part in parts):
        raise UsageError(f"{shown(name)}: a source is missing before or after a +", hint="write them as math+arc-easy")
    return MixedSource(name, [opened(part.strip()) for part in parts])


class MixedSource:
    """A TaskSource over others. Unlimited ones have equal weights, or that of the first where it has a size."""

    def __init__(self, name: str, sources: Sequence[TaskSource]) -> None:
        self._name = name
        self._sources = tuple(sources)

    @property
    def name(self) -> str:
        """How the mixture is written."""
        return self._name

    def train(self, seed: int, start: int = 0) -> Iterator[TaskItem]:
        """The mixture's stream from position `start`; each source continues in its own order."""
        sizes = [_size(source) for source in self._sources]
        first = sizes[0] or max((size for size in sizes if size), default=1)
        weights = [min(size or first, first) for size in sizes]
        streams, drawn = [source.train(seed, 0) for source in self._sources], stream(seed, "mixture", self._name)
        return islice((next(drawn.choices(streams, weights)[0]) for _ in count()), start, None)

    def test(self, limit: int) -> Sequence[TaskItem]:
        """At most `limit` held-out items, in turn from each source."""
        share = -(-limit // len(self._sources))
        columns = [source.test(share) for source in self._sources]
        rows = [item for row in range(share) for column in columns for item in column[row : row + 1]]
        return tuple(rows[:limit])


def _size(source: TaskSource) -> int | None:
    """How many training items a source has; None for an unlimited one."""
    items = getattr(source, "items", None) or source
    listed = getattr(items, "train_items", None)
    return None if listed is None else len(listed)
