"""`python -m tools.integrations.verl.prepare SOURCE...`: the project's task sources as verl's parquet files. The rows of train.parquet are
a training stream in the order in which the project's own loop would take it, as many as the run has steps x prompts; so verl must not
shuffle them. Several sources are mixed as the TRL side's `a+b`: in proportion to their sizes, none more often than the first. test.parquet
holds the first held-out items of every source. Both appear when both are complete; existing files are kept.

verl reads `prompt` (messages), `data_source`, `reward_model` and `extra_info`; the item itself is JSON in `extra_info.item`, so that the
reward workers judge by the same item as the project's own loop. `extra_info.index` is the row's number in its file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from edge.cli.exits import ending
from edge.core.errors import TaskFileError, UsageError
from edge.core.files import replacing
from edge.core.types import TaskItem
from edge.dagrpo.prompts import prompt_messages
from edge.tasks.registry import open_source
from edge.tasks.source import TaskSource
from tools.integrations.sources import PLUS, MixedSource

_ROWS_PER_WRITE = 4096
_HINT = "make the data with python -m tools.integrations.verl.prepare"
MOST_TRAIN_ROWS = 10_000_000
MOST_TEST_ROWS = 20_000
"""Of each source: they are held in memory, and a validation answers all of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and write both files; 1 or 2 with one line where it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m tools.integrations.verl.prepare", description=__doc__)
    parser.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="as in --tasks of edge-agent: practice:group1, math:FOLDER, a .jsonl file"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for train.parquet and test.parquet")
    parser.add_argument(
        "--train", type=int, required=True, metavar="ROWS", help="steps x prompts per step, e.g. 840 x 128 = 107520"
    )
    parser.add_argument("--test", type=int, default=500, metavar="ROWS", help="held-out rows of each source (default: 500)")
    parser.add_argument("--seed", type=int, default=0, help="of the training stream (default: 0)")
    parser.add_argument("--prompt-form", choices=("full", "compact"), default="full", help="compact: for the bundled models")
    options = parser.parse_args(arguments)

    def play() -> int:
        out = options.out
        train, test = prepare(options.sources, out, options.train, options.test, options.seed, options.prompt_form)
        print(f"wrote {out / 'train.parquet'} ({train} rows) and {out / 'test.parquet'} ({test} rows)")
        return 0

    return ending(play)


def prepare(names: Sequence[str], out: Path, train: int, test: int, seed: int, prompt_form: str) -> tuple[int, int]:
    """Write both files; returns the numbers of their rows. Raises UsageError and TaskFileError, and leaves the folder unchanged then."""
    _require_rows("--train", train, MOST_TRAIN_ROWS)
    _require_rows("--test", test, MOST_TEST_ROWS)
    files = [out / "train.parquet", out / "test.parquet"]
    _require_free(files)
    sources = [open_source(name) for name in names]
    held_out = [item for source in sources for item in source.test(test)]
    if not held_out:
        raise UsageError(
            f"{', '.join(names)}: no held-out items", hint="verl needs some to validate on; see edge-agent tasks show"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        with replacing(files[0]) as train_draft, replacing(files[1]) as test_draft:
            written = _write(train_draft, islice(mixed(names, sources, seed), train), prompt_form)
            return written, _write(test_draft, iter(held_out), prompt_form)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written ({error.strerror})", hint="give a folder that you may write to") from error


def as_row(item: TaskItem, index: int, prompt_form: str = "full") -> dict[str, Any]:
    """A row for verl. `prompt_form` as in edge.dagrpo.prompts: "full" for any instruct model, "compact" for the bundled ones."""
    return {
        "data_source": item.family,
        "prompt": [{"role": message.role, "content": message.content} for message in prompt_messages(item, prompt_form)],
        "ability": item.task,
        "reward_model": {"style": "rule", "ground_truth": item.answer},
        "extra_info": {"index": index, "split": item.split, "item": json.dumps(asdict(item), ensure_ascii=False)},
    }


def item_of(extra_info: object) -> TaskItem:
    """The item of a row's `extra_info`. Raises TaskFileError for a row that was not made by `as_row`."""
    text = extra_info.get("item") if isinstance(extra_info, Mapping) else None
    if not isinstance(text, str):
        raise TaskFileError("a row of the data has no extra_info.item", hint=_HINT)
    try:
        return TaskItem.from_dict(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TaskFileError(f"extra_info.item of a row cannot be read ({error})", hint=_HINT) from error


def mixed(names: Sequence[str], sources: Sequence[TaskSource], seed: int) -> Iterator[TaskItem]:
    """The sources' training streams as one without end; a single one as it is."""
    return (sources[0] if len(sources) == 1 else MixedSource(PLUS.join(names), sources)).train(seed)


def _require_rows(option: str, rows: int, most: int) -> None:
    if not 1 <= rows <= most:
        raise UsageError(f"{option} {rows} must lie between 1 and {most}")


def _require_free(files: Sequence[Path]) -> None:
    there = [str(file) for file in files if os.path.lexists(file)]
    if there:
        raise UsageError(f"{there[0]} is there already", hint="give another --out, or remove it")


def _write(path: Path, items: Iterator[TaskItem], prompt_form: str) -> int:
    """Rows in portions; how many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    written = 0
    with pq.ParquetWriter(path, _schema()) as writer:
        while portion := [
            as_row(item, written + number, prompt_form) for number, item in enumerate(islice(items, _ROWS_PER_WRITE))
        ]:
            writer.write_table(pa.Table.from_pylist(portion, _schema()))
            written += len(portion)
    return written


def _schema() -> Any:
    import pyarrow as pa

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    reward = pa.struct([("style", pa.string()), ("ground_truth", pa.string())])
    extra = pa.struct([("index", pa.int64()), ("split", pa.string()), ("item", pa.string())])
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", reward),
            ("extra_info", extra),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
