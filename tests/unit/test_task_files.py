"""JSON Lines task files: schema, errors with line numbers, stable order."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from edge.core.errors import EdgeError, TaskFileError
from edge.core.types import AnswerKind
from edge.dagrpo.demonstrations import demonstration
from edge.tasks.descriptions import examples
from edge.tasks.jsonl import JsonLinesSource, as_record, read_file
from edge.tasks.registry import open_source
from edge.verifiers.by_kind import VerifierByKind


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_items_get_defaults_and_keep_given_values(tmp_path: Path) -> None:
    path = write(
        tmp_path / "tasks.jsonl",
        {"question": "2+3?", "answer": 5},
        "",
        {"question": "Pick", "answer": "B", "kind": "choice", "options": ["x", "y"], "task": "qa", "split": "test", "id": "pick"},
    )
    source = open_source(str(path))
    first = next(source.train(0)) if next(iter(source.test(9))).id == "pick" else None
    assert first is not None
    assert (first.answer, first.task, first.max_steps, first.kind) == ("5", "chat", 4, AnswerKind.MATH)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not valid JSON"),
        ("[1]", "expected a JSON object"),
        ({"question": "a", "answer": 1, "levle": 3}, "unknown key 'levle'"),
        ({"question": " ", "answer": 1}, '"question" must be'),
        ({"question": "a"}, '"answer" must be'),
        ({"question": "a", "answer": True}, '"answer" must be'),
        ('{"question": "a", "answer": ' + "7" * 5000 + "}", "a number of more than 4300 digits"),
        ('{"question": "a\\ud800b", "answer": 1}', "half a character (\\ud800 without"),
        ('{"question": "a", "answer": 1, "\\udc01": 1}', "half a character (\\udc01 without"),
        ('{"question": "a", "answer": NaN}', "must be a number, not nan"),
        ('{"question": "a", "answer": 1e999}', "must be a number, not 1e999"),
        ({"question": "a", "answer": 1, "max_steps": 1001}, '"max_steps" must be a whole number from 1 to 1000'),
        ({"question": "a", "answer": 1, "level": 10**30}, '"level" must be a whole number from 0 to 1000'),
        ({"question": "a", "answer": 1, "split": "dev"}, '"split" must be one of'),
        ({"question": "a", "answer": "A", "kind": "choice"}, '"options"'),
        ({"question": "a", "answer": "A", "kind": "choice", "options": list("abcdefghijklmnopqrstu")}, '"options" with 2 to 20'),
        ({"question": "a", "answer": "A", "kind": "choice", "options": "xy"}, '"options" must be a list'),
        ({"question": "a", "answer": "Z", "kind": "choice", "options": ["x", "y"]}, '"answer" names none of the 2 options'),
        ({"question": "a", "answer": "z" * 999, "kind": "choice", "options": ["x", "y"]}, "... (999 characters)"),
        ({"question": "a", "answer": "A", "kind": "choice", "options": ["x", "x"]}, "\"options\" has 'x' twice"),
        ({"question": "a", "answer": "x", "kind": "choice", "options": ["x", "y", "x "]}, "or more than one ('x')"),
        ({"question": "a", "answer": "A", "options": ["O", "A", "B", "AB"]}, 'write "A) O" or "B) A"'),
        ({"question": "a", "answer": "c", "options": ["C", "D", "K"]}, 'write "C) K" or "A) C"'),
        ({"question": "a\nA. b\nB. a", "answer": "B"}, 'write "B) a" or "A) b"'),
        ({"question": "a", "answer": "\u200b\ufeff "}, '"answer" must be a non-empty text'),
        ('{"question": "a", "answer": 1, "answer": 1}', "the key 'answer' occurs 2 times in one object"),
        ('{"question": "a", "\\u0061nswer": 1, "answer": 2}', "the key 'answer' occurs 2 times"),
        ('{"messages": [{"role": "user", "content": "a", "content": "b"}]}', "the key 'content' occurs 2 times"),
        ('{"question": "a", "kind": "program", "tests": {"inputs": [], "outputs": [], "inputs": []}}', "the key 'inputs'"),
        ({"question": "a", "kind": "program"}, '"answer" must be'),
        ({"question": "a", "kind": "program", "answer": "assert ("}, '"answer" must be Python'),
        ({"question": "a", "kind": "program", "tests": []}, '"tests" must be'),
        ({"question": "a", "kind": "program", "tests": {"inputs": ["1"], "outputs": []}}, 'lists "inputs" and "outputs"'),
        ({"question": "a", "kind": "program", "tests": "assert True", "answer": "assert True"}, 'in place of "answer"'),
        ({"question": "a", "answer": 1, "tests": "assert True"}, 'kind "program"'),
        ({"question": "a", "answer": 1, "preamble": "import math"}, 'kind "program"'),
        ({"question": "a", "answer": 1, "solution": 7}, '"solution" must be a text'),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(tmp_path: Path, line: object, complaint: str) -> None:
    path = write(tmp_path / "tasks.jsonl", {"question": "ok", "answer": 1}, line)
    with pytest.raises(TaskFileError, match=r"tasks\.jsonl:2: ") as caught:
        open_source(str(path))
    assert complaint in str(caught.value)


def test_byte_order_marks_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('\ufeff{"question": "1+1?", "answer": 2}\n\ufeff{"question": "1+2?", "answer": 3}', encoding="utf-8-sig")
    assert [item.question for item in read_file(path).items] == ["1+1?", "1+2?"]
    path.write_text('{"question": "1+1?", "answer": "#### 2"}\n', encoding="utf-8-sig")
    source = open_source(f"gsm8k:{path}")
    assert [item.answer for item in examples(source)] == ["2"]


def test_path_that_cannot_be_a_task_file_is_refused_in_a_short_line_with_the_reason(tmp_path: Path) -> None:
    for name, complaint in (
        (str(tmp_path), "is a folder, not a task file"),
        ("x" * 5000, "(5000 characters): cannot be a task file"),
        (f"gsm8k:{'x' * 5000}", "(5000 characters): cannot be read"),
        ("~nobody-of-this-name/t.jsonl", "no such user's folder"),
        (f"practice:{'x' * 5000}", "unknown practice family"),
        (f"hf:{'x' * 5000}", "not a data set"),
    ):
        with pytest.raises(EdgeError) as caught:
            open_source(name)
        assert complaint in str(caught.value) and caught.value.hint and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "number", ["1.50", "5.0", "1e16", "1E-5", "-0", "-1.0e+7", "123456789012345678", "0.1234567890123456789", "1" * 40]
)
def test_a_number_as_answer_is_the_text_in_the_file(tmp_path: Path, number: str) -> None:
    for line in (
        f'{{"question": "a", "answer": {number}, "level": 7}}',
        f'{{"prompt": "a", "completion": {number}, "level": 7}}',
    ):
        (item,) = read_file(write(tmp_path / "tasks.jsonl", line)).items
        assert (item.answer, item.kind, item.level, type(item.level)) == (number, AnswerKind.MATH, 7, int)
        assert read_file(write(tmp_path / "again.jsonl", as_record(item))).items == (item,)
        assert VerifierByKind().is_correct(item, demonstration(item))


def test_numbers_in_the_tests_of_a_program_stay_numbers(tmp_path: Path) -> None:
    line = '{"question": "a", "kind": "program", "tests": {"inputs": [[1, 2.50]], "outputs": [1e2]}}'
    (item,) = read_file(write(tmp_path / "tasks.jsonl", line)).items
    assert json.loads(item.answer) == {"inputs": [[1, 2.5]], "outputs": [100.0]}


def test_lines_that_say_the_same_count_once(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    lines = [
        '{"question": "a", "answer": 1, "label": "x"}',
        '{"label":"x", "answer": 1, "question": "a"}\r',
        '{"prompt": "a", "completion": "1", "task": "x"}',
        '{"question": "b", "answer": 1}',
        '{"question": "b", "answer": "1", "id": "own"}',
        '\ufeff{"question": "b", "answer": 1}',
    ]
    source = JsonLinesSource(write(path, *lines))
    assert sorted(item.question for item in source.train_items) == ["a", "b", "b"]
    (note,) = source.notes
    assert note.startswith("3 lines")
    for other in ('{"question": "b", "answer": "1.0"}', '{"question": "b", "answer": 1, "level": 2}'):
        with pytest.raises(TaskFileError, match=r":7: the question 'b' occurs twice, first in line 4"):
            read_file(write(path, *lines, other))


def test_programs_have_tests_in_any_form(tmp_path: Path) -> None:
    pairs = {"inputs": ["1\n"], "outputs": ["2\n"]}
    forms = [
        {"tests": "assert f(1) == 2"},
        {"tests": ["assert f(1) == 2", "assert f(2) == 3"]},
        {"tests": pairs},
        {"answer": json.dumps(pairs)},
        {"answer": "def check(f):\n    assert f(1) == 2\ncheck(f)", "preamble": "import math"},
    ]
    lines = [{"question": f"q{n}", "kind": "program", "task": "code", **form} for n, form in enumerate(forms)]
    items = read_file(write(tmp_path / "tasks.jsonl", *lines)).items
    assert [item.answer.splitlines()[0] for item in items[:2]] == ["assert f(1) == 2"] * 2
    assert items[1].answer.endswith("\nassert f(2) == 3")
    assert json.loads(items[2].answer) == json.loads(items[3].answer) == pairs
    assert items[4].preamble == "import math"
    assert {(item.kind, item.max_steps) for item in items} == {(AnswerKind.PROGRAM, 6)}


def test_items_judged_by_a_person_need_no_answer(tmp_path: Path) -> None:
    (item,) = read_file(write(tmp_path / "tasks.jsonl", {"question": "Write a haiku.", "kind": "feedback", "task": "chat"})).items
    assert (item.kind, item.answer) == (AnswerKind.FEEDBACK, "")


def test_line_separators_inside_a_text_do_not_end_the_line(tmp_path: Path) -> None:
    question = "one\u2028two\x85three\x0cfour"
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"question": question, "answer": 1}, ensure_ascii=False) + "\r\n", encoding="utf-8")
    assert [item.question for item in read_file(path).items] == [question]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("none.jsonl", None, "no such task file"),
        ("binary.jsonl", b"\xff\xfe\x00", "cannot be read"),
        ("empty.jsonl", b"\n\n", "no task item"),
        ("twice.jsonl", b'{"question": "a", "answer": 1}\n{"question": "a", "answer": 2}', "occurs twice"),
        ("own.jsonl", b"hello there\n", "own.jsonl:1: not valid JSON"),
        ("notes.txt", b"hello there\n", "notes.txt:1: not valid JSON"),
    ],
)
def test_file_without_items_is_refused_by_name(tmp_path: Path, name: str, content: bytes | None, complaint: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskFileError, match=complaint) as caught:
        open_source(str(tmp_path / name))
    assert "not valid JSON" not in complaint or '{"question"' in caught.value.hint


def test_each_pass_is_a_seeded_permutation_and_starting_later_skips(tmp_path: Path) -> None:
    lines = [{"question": f"q{n}", "answer": n, "split": "train"} for n in range(7)]
    source = JsonLinesSource(write(tmp_path / "t.jsonl", *lines))
    ids = [item.id for item in itertools.islice(source.train(3), 21)]
    for start in range(0, 21, 7):
        assert len(set(ids[start : start + 7])) == 7
    assert ids[:7] != ids[7:14]
    assert [item.id for item in itertools.islice(source.train(3, start=5), 16)] == ids[5:]
