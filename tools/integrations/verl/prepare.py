"""`python -m tools.integrations.verl.prepare SOURCE...`: the project's task sources as verl's parquet files.

Knows order, mixture and files; knows nothing of models. The rows of train.parquet are a training stream in the order in which the
project's own loop would take it (several sources: each as often, in random order), as many as the run has steps x prompts; so verl must
not shuffle them. test.parquet holds the first held-out items of every source.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from edge.core.errors import EdgeError, UsageError
from edge.core.rng import stream
from edge.core.types import TaskItem
from edge.tasks.registry import open_source
from edge.tasks.source import TaskSource
from tools.integrations.verl.rows import as_row

_ROWS_PER_WRITE = 4096


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
    try:
        train, test = prepare(options.sources, options.out, options.train, options.test, options.seed, options.prompt_form)
    except EdgeError as error:
        print(f"error: {error}" + (f"; {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code
    print(f"wrote {options.out / 'train.parquet'} ({train} rows) and {options.out / 'test.parquet'} ({test} rows)")
    return 0


def prepare(names: Sequence[str], out: Path, train: int, test: int, seed: int, prompt_form: str) -> tuple[int, int]:
    """Write both files; the numbers of their rows. Raises UsageError and TaskFileError."""
    if train < 1 or test < 1:
        raise UsageError(f"--train {train} and --test {test} must be positive")
    sources = [open_source(name) for name in names]
    held_out = [item for source in sources for item in source.test(test)]
    if not held_out:
        raise UsageError(
            f"{', '.join(names)}: no held-out items", hint="verl needs some to validate on; see edge-agent tasks show"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = _write(out / "train.parquet", islice(mixed(sources, seed), train), prompt_form)
        return written, _write(out / "test.parquet", iter(held_out), prompt_form)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written ({error.strerror})", hint="give a folder that you may write to") from error


def mixed(sources: Sequence[TaskSource], seed: int) -> Iterator[TaskItem]:
    """The sources' training streams without end, each as often, in random order."""
    streams = [source.train(seed) for source in sources]
    rng = stream(seed, "verl-mixture", len(streams))
    while True:
        for one in rng.sample(streams, len(streams)):
            yield next(one)


def _write(path: Path, items: Iterator[TaskItem], prompt_form: str) -> int:
    """Rows in portions, into a file that appears when it is whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    draft, written = path.with_name(f".{path.name}.draft"), 0
    with pq.ParquetWriter(draft, _schema()) as writer:
        while portion := [
            as_row(item, written + number, prompt_form) for number, item in enumerate(islice(items, _ROWS_PER_WRITE))
        ]:
            writer.write_table(pa.Table.from_pylist(portion, _schema()))
            written += len(portion)
    draft.replace(path)
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
