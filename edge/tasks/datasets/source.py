"""A data set as a TaskSource.

The files are found when the source is opened and read when items are first wanted. The data set's own split holds. Where its files hold
only training items, one question in ten is held out by a hash. A training question that is also a test question is dropped, so that no
test item is ever learned from. Held-out items come in a fixed order by hash, because files are often sorted by subject and the first few
hundred items must stand for all of them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from edge.core.errors import TaskFileError
from edge.core.types import Split, TaskItem
from edge.dagrpo.format import check_format
from edge.tasks.datasets.catalogue import DataSet, Draft, Unusable
from edge.tasks.datasets.files import DataFile, data_files, downloaded, read_records
from edge.tasks.source import ListedItems

_ONE_IN = 10


class DataSetSource:
    """A TaskSource over the local files of a data set."""

    def __init__(self, data_set: DataSet, place: Path, name: str) -> None:
        """`name` is how the source was written. Raises TaskFileError when there is no data file."""
        self.data_set = data_set
        self._name = name
        self._files = data_files(place, data_set.subfolders)
        self.left_out: list[str] = []

    @classmethod
    def from_hub(cls, data_set: DataSet, name: str) -> DataSetSource:
        """The data set from the hub or its local cache. Raises TaskFileError when neither has it."""
        return cls(data_set, downloaded(data_set.hub, data_set.config, data_set.hub_splits), name)

    @property
    def name(self) -> str:
        """How the source is written on the command line."""
        return self._name

    def train(self, seed: int, start: int = 0) -> Iterator[TaskItem]:
        """Endless training stream from position `start`. Raises TaskFileError for a bad record, or when there is no training item."""
        return self.items.train(seed, start)

    def test(self, limit: int) -> Sequence[TaskItem]:
        """The first `limit` held-out items in an order that depends on the questions alone. Raises TaskFileError for a bad record."""
        return self.items.test(limit)

    @cached_property
    def items(self) -> ListedItems:
        """All items, read once. `left_out` then lists which records nobody could judge, a line each."""
        self.left_out = []
        drafts = [(draft, file.split) for file in self._files if file.split != "unused" for draft in self._drafts(file)]
        if not drafts:
            raise TaskFileError(f"{self._name}: no usable record in the files")
        has_test = any(split == "test" for _, split in drafts)
        splits = [self._split(draft, split, has_test) for draft, split in drafts]
        held_out = {_plain(draft) for (draft, _), split in zip(drafts, splits, strict=True) if split == "test"}
        items, seen = list[TaskItem](), Counter[str]()
        for (draft, _), split in zip(drafts, splits, strict=True):
            if split == "test" or _plain(draft) not in held_out:
                # The id depends on the content, not on the place in a file; the second of two equal records gets `-2`.
                digest = _digest("\x1f".join((draft.question, *draft.options)))[:16]
                name = f"{self.data_set.name}/{draft.key or (f'{draft.part}/' if draft.part else '') + digest}"
                seen[name] += 1
                items.append(self._item(draft, split, name if seen[name] == 1 else f"{name}-{seen[name]}"))
        items.sort(key=lambda item: _digest(item.id))
        hint = "it has a test split only: use it with edge-agent eval"
        return ListedItems(items, name=self._name, order_name=self.data_set.name, hint=hint)

    def _drafts(self, file: DataFile) -> Iterator[Draft]:
        for record in read_records(file.path, self.data_set.columns):
            try:
                yield self.data_set.draft(record)
            except Unusable as reason:
                self.left_out.append(f"{record.where}: {reason}")

    def _split(self, draft: Draft, file_split: str, has_test: bool) -> Split:
        if file_split == "test" or (file_split == "unknown" and self.data_set.unknown_split == "test"):
            return "test"
        if has_test:
            return "train"
        return "test" if int(_digest(_plain(draft))[:8], 16) % _ONE_IN == 0 else "train"

    def _item(self, draft: Draft, split: Split, name: str) -> TaskItem:
        data_set = self.data_set
        return TaskItem(
            id=name,
            task=data_set.task,
            family=data_set.name,
            level=draft.level,
            split=split,
            question=draft.question,
            answer=draft.answer,
            kind=data_set.kind,
            max_steps=data_set.max_steps,
            options=draft.options,
            solution=draft.solution if draft.solution and check_format(draft.solution, data_set.max_steps).ok else "",
            preamble=draft.preamble,
        )


def _plain(draft: Draft) -> str:
    return " ".join(draft.question.split())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
