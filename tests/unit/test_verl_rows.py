"""The project's tasks as verl's parquet files. Needs no verl."""

from __future__ import annotations

import errno
from itertools import count, islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from edge.core.errors import TaskFileError, UsageError
from edge.core.types import TaskItem
from edge.tasks.registry import open_source
from tools.integrations.sources import open_mixed
from tools.integrations.verl.prepare import as_row, item_of, main, prepare


def items_in(path: Path) -> list[TaskItem]:
    return [item_of(row["extra_info"]) for row in pq.read_table(path).to_pylist()]


def test_the_files_hold_the_projects_own_training_stream_and_held_out_items(tmp_path):
    assert main(["practice:group1", "--out", str(tmp_path), "--train", "30", "--test", "7", "--seed", "4"]) == 0
    source = open_source("practice:group1")
    assert items_in(tmp_path / "train.parquet") == list(islice(source.train(4), 30))
    assert items_in(tmp_path / "test.parquet") == list(source.test(7))


def test_finite_source_continues_with_another_pass(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(
        "".join(f'{{"question": "{n} + 1?", "answer": {n + 1}, "split": "{"test" if n == 0 else "train"}"}}\n' for n in range(4))
    )
    assert prepare([str(path)], tmp_path / "out", 7, 5, 0, "full") == (7, 1)
    questions = [item.question for item in items_in(tmp_path / "out" / "train.parquet")]
    assert sorted(questions[:3]) == sorted(questions[3:6]) == ["1 + 1?", "2 + 1?", "3 + 1?"]


def test_several_sources_are_mixed_as_on_trl(tmp_path):
    names = [own_tasks(tmp_path / f"{name}.jsonl", name, count) for name, count in (("first", 40), ("small", 20), ("large", 400))]
    prepare(names, tmp_path / "out", 5000, 1, 3, "full")
    items = items_in(tmp_path / "out" / "train.parquet")
    assert items == list(islice(open_mixed("+".join(names)).train(3), 5000))
    shares = [sum(name in item.question for item in items) / 5000 for name in ("first", "small", "large")]
    assert shares == pytest.approx([0.4, 0.2, 0.4], abs=0.04)


def own_tasks(path, name, count):
    lines = [f'{{"question": "{name} {n} + 1?", "answer": {n + 1}, "split": "train"}}\n' for n in range(count)]
    lines.append(f'{{"question": "{name} held out?", "answer": 1, "split": "test"}}\n')
    path.write_text("".join(lines))
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["practice:nothing", "--train", "3"], "unknown practice family"),
        (["missing.jsonl", "--train", "3"], "no such task file"),
        (["practice:arith", "--train", "0"], "--train 0"),
        (["practice:arith", "--train", "3", "--test", "99999999999"], "--test 99999999999"),
    ],
)
def test_unusable_source_is_one_line(tmp_path, capsys, arguments, line):
    assert main([*arguments, "--out", str(tmp_path)]) != 0
    assert line in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["train.parquet", "test.parquet"])
def test_existing_file_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    theirs = tmp_path / name
    theirs.write_text("theirs")
    assert main(["practice:arith", "--train", "3", "--test", "2", "--out", str(tmp_path)]) == 2
    assert f"{theirs} is there already; give another --out, or remove it" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "theirs")]


@pytest.mark.parametrize("fails_at", [5, 9])
def test_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    made = count(1)

    def until_the_disk_is_full(*row: Any) -> dict[str, Any]:
        if next(made) == fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return as_row(*row)

    monkeypatch.setattr("tools.integrations.verl.prepare.as_row", until_the_disk_is_full)
    with pytest.raises(UsageError, match=r"cannot be written \(No space left on device\)"):
        prepare(["practice:arith"], tmp_path, 8, 4, 0, "full")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("extra", [None, {"index": 1}, {"item": "no JSON"}, {"item": '{"kind": "math"}'}])
def test_foreign_rows_are_refused_with_advice(extra):
    with pytest.raises(TaskFileError) as refusal:
        item_of(extra)
    assert "tools.integrations.verl.prepare" in refusal.value.hint
