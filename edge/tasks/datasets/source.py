"""A data set as a TaskSource: its files, downloaded from the Hugging Face hub or found locally, and their records one by one.

Files are JSON Lines (one object a line), JSON (a list of objects, or one object), both also gzipped, and parquet (needs pyarrow). Every
data set of the hub has a branch of parquet files laid out as CONFIG/SPLIT/NNNN.parquet, whatever its own files look like; no code of a
data set is ever run. What was downloaded once is found again without a network.

The files are found when the source is opened and read when items are first wanted. The data set's own split holds. Where its files hold
only training items, one question in ten is held out by a hash. A training question that is also a test question is dropped, so that no
test item is ever learned from. Held-out items come in a fixed order by hash, because files are often sorted by subject and the first few
hundred items must represent all of them.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Literal

from edge.core.errors import TaskFileError
from edge.core.formatting import shown
from edge.core.install import install_extra
from edge.core.types import Split, TaskItem
from edge.dagrpo.format import check_format
from edge.tasks.datasets.catalogue import DataSet, ItemDraft, Unusable
from edge.tasks.record import Record, parsed_json
from edge.tasks.source import ListedItems

_ONE_IN = 10
FileSplit = Literal["train", "test", "unused", "unknown"]
_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
_WORDS: dict[str, FileSplit] = {
    "train": "train",
    "test": "test",
    "validation": "unused",
    "valid": "unused",
    "val": "unused",
    "dev": "unused",
}
_WORD = re.compile(rf"(?<![a-z])({'|'.join(_WORDS)})(?![a-z])", re.IGNORECASE)
_ROWS_AT_ONCE = 256
_WANTED = "give the data set's folder, or one of its files"


class DataSetSource:
    """A TaskSource over the local files of a data set."""

    def __init__(self, data_set: DataSet, place: Path, name: str) -> None:
        """`name` is how the source was written. Raises TaskFileError when there is no data file."""
        self.data_set = data_set
        self._name = name
        self._files = data_files(place, (data_set.config, *data_set.subfolders))
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

    def _drafts(self, file: DataFile) -> Iterator[ItemDraft]:
        for record in read_records(file.path, self.data_set.columns):
            try:
                yield self.data_set.draft(record)
            except Unusable as reason:
                self.left_out.append(f"{record.where}: {reason}")

    def _split(self, draft: ItemDraft, file_split: str, has_test: bool) -> Split:
        if file_split == "test" or (file_split == "unknown" and self.data_set.unknown_split == "test"):
            return "test"
        if has_test:
            return "train"
        return "test" if int(_digest(_plain(draft))[:8], 16) % _ONE_IN == 0 else "train"

    def _item(self, draft: ItemDraft, split: Split, name: str) -> TaskItem:
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


def _plain(draft: ItemDraft) -> str:
    return " ".join(draft.question.split())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file with the split that its name or folder gives."""

    path: Path
    split: FileSplit


def data_files(place: Path, subfolders: Sequence[str] = ()) -> list[DataFile]:
    """The data files of a folder (all levels, sorted), or the one file. Raises TaskFileError when there is none.

    Where the folder has one of `subfolders`, only the first such one is read. A split is the word train, test, validation, valid,
    val or dev in the file's name, else in the nearest folder's below `place`.
    """
    try:
        is_file, is_folder = place.is_file(), place.is_dir()
    except OSError as error:
        raise TaskFileError(f"{shown(str(place))}: cannot be read ({error.strerror})", hint=_WANTED) from error
    if is_file:
        if not place.name.endswith(_SUFFIXES):
            raise TaskFileError(f"{place}: not a data file", hint=f"known endings: {', '.join(_SUFFIXES)}")
        return [DataFile(place, _split_of(place.name))]
    if not is_folder:
        raise TaskFileError(f"{shown(str(place))}: no such file or folder", hint=_WANTED)
    folder = next((place / name for name in subfolders if (place / name).is_dir()), place)
    paths = sorted(path for path in folder.rglob("*") if path.name.endswith(_SUFFIXES) and path.is_file())
    files = [DataFile(path, _split_below(path, folder)) for path in paths if path.name != "dataset_infos.json"]
    if not files:
        raise TaskFileError(f"{folder}: no data file in this folder", hint=f"known endings: {', '.join(_SUFFIXES)}")
    return files


def read_records(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    """The records of one file in order; of a parquet file only `columns`. Raises TaskFileError naming file and line or row."""
    try:
        if path.name.endswith(".parquet"):
            yield from _parquet_records(path, columns)
        elif path.name.removesuffix(".gz").endswith(".jsonl"):
            yield from _line_records(path)
        else:
            yield from _json_records(path)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TaskFileError(f"{path}: cannot be read ({error})") from error


def _split_below(path: Path, folder: Path) -> FileSplit:
    for name in (path.name, *reversed(path.relative_to(folder).parent.parts)):
        if (split := _split_of(name)) != "unknown":
            return split
    return _WORDS.get(folder.name.lower(), "unknown")


def _split_of(name: str) -> FileSplit:
    found = _WORD.search(name)
    return _WORDS[found[1].lower()] if found else "unknown"


def _opened(path: Path) -> IO[str]:
    """As text; a byte order mark at the beginning is passed over."""
    return gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig")


def _line_records(path: Path) -> Iterator[Record]:
    with _opened(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{path}:{number}"
                yield Record.of(parsed_json(line, where), where)


def _json_records(path: Path) -> Iterator[Record]:
    with _opened(path) as file:
        value = parsed_json(file.read(), str(path))
    rows = value if isinstance(value, list) else [value]
    for number, row in enumerate(rows):
        where = f"{path}: row {number}"
        yield Record.of(row, where)


def _parquet_records(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise TaskFileError(
            f"{path}: reading parquet needs the package pyarrow, which is not installed",
            hint=f"run {install_extra('lab')}, or give the data set as JSON Lines",
        ) from error
    try:
        with ParquetFile(path) as file:
            present = [column for column in columns if column in file.schema_arrow.names]
            number = 0
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=present):
                for row in batch.to_pylist():
                    yield Record.of(row, f"{path}: row {number}")
                    number += 1
    except ArrowException as error:
        raise TaskFileError(f"{path}: not a readable parquet file ({error})") from error


PARQUET_BRANCH = "refs/convert/parquet"
_LOCAL_COPY = "connect once, or give a local copy as NAME:PATH"


def downloaded(repo: str, config: str, splits: tuple[str, ...]) -> Path:
    """The local folder of a data set's parquet files, downloaded if need be. Raises TaskFileError when it cannot be had."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
    except ModuleNotFoundError as error:
        raise TaskFileError(
            f"{repo}: loading from the hub needs the package huggingface-hub, which is not installed",
            hint=f"run {install_extra('lab')}, or give a local folder",
        ) from error
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    patterns = [f"{config}/{split}/*.parquet" for split in splits]
    try:
        folder = snapshot_download(repo, repo_type="dataset", revision=PARQUET_BRANCH, allow_patterns=patterns)
    except RepositoryNotFoundError as error:
        raise TaskFileError(f"{repo}: the hub has no such data set, or it needs a login", hint="check the name") from error
    except LocalEntryNotFoundError as error:
        raise TaskFileError(
            f"{repo}: the hub cannot be reached and the data set is not in the local cache", hint=_LOCAL_COPY
        ) from error
    except (
        Exception
    ) as error:  # whatever the library's HTTP client raises in the middle of a download; a local copy helps against all
        raise TaskFileError(f"{repo}: the download from the hub failed ({type(error).__name__})", hint=_LOCAL_COPY) from error
    return Path(folder) / config
