"""JSON Lines task files: schema, errors with line numbers, stable order."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from edge.core.errors import TaskFileError, UsageError
from edge.core.types import AnswerKind
from edge.tasks.jsonl import JsonLinesSource
from edge.tasks.registry import open_source


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_items_get_defaults_and_keep_what_is_given(tmp_path: Path) -> None:
    path = write(
        tmp_path / "tasks.jsonl",
        {"question": "2+3?", "answer": 5},
        "",
        {"question": "Pick", "answer": "B", "kind": "choice", "options": ["x", "y"], "task": "qa", "split": "test", "id": "pick"},
    )
    source = open_source(str(path))
    first = next(source.train(0)) if next(iter(source.test(9))).id == "pick" else None
    assert first is not None
    assert (first.answer, first.task, first.max_steps, first.kind) == ("5", "math", 4, AnswerKind.MATH)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not valid JSON"),
        ("[1]", "expected a JSON object"),
        ({"question": "a", "answer": 1, "levle": 3}, "unknown key 'levle'"),
        ({"question": " ", "answer": 1}, '"question" must be'),
        ({"question": "a"}, '"answer" must be'),
        ({"question": "a", "answer": True}, '"answer" must be'),
        ({"question": "a", "answer": 1, "max_steps": 0}, '"max_steps" must be'),
        ({"question": "a", "answer": 1, "level": -1}, '"level" must be'),
        ({"question": "a", "answer": 1, "split": "dev"}, '"split" must be one of'),
        ({"question": "a", "answer": "A", "kind": "choice"}, '"options"'),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(tmp_path: Path, line: object, complaint: str) -> None:
    path = write(tmp_path / "tasks.jsonl", {"question": "ok", "answer": 1}, line)
    with pytest.raises(TaskFileError, match=r"tasks\.jsonl:2: ") as caught:
        open_source(str(path))
    assert complaint in str(caught.value)


def test_an_empty_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    for name, complaint in (("none.jsonl", "no such"), ("binary.jsonl", "cannot be read")):
        with pytest.raises(TaskFileError, match=complaint):
            open_source(str(tmp_path / name))
    with pytest.raises(TaskFileError, match="no task item"):
        open_source(str(write(tmp_path / "empty.jsonl", "", "")))


def test_repeated_questions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="occurs twice"):
        open_source(str(write(tmp_path / "t.jsonl", {"question": "a", "answer": 1}, {"question": "a", "answer": 2})))


def test_an_unknown_family_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown practice family") as caught:
        open_source("practice:nothing")
    assert "arith" in caught.value.hint


def test_each_pass_is_a_seeded_permutation_and_starting_later_skips(tmp_path: Path) -> None:
    lines = [{"question": f"q{n}", "answer": n, "split": "train"} for n in range(7)]
    source = JsonLinesSource(write(tmp_path / "t.jsonl", *lines))
    ids = [item.id for item in itertools.islice(source.train(3), 21)]
    for start in range(0, 21, 7):
        assert len(set(ids[start : start + 7])) == 7
    assert ids[:7] != ids[7:14]
    assert [item.id for item in itertools.islice(source.train(3, start=5), 16)] == ids[5:]
