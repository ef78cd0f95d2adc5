"""Public data sets: each schema becomes the right item, splits are kept, bad records are named, and only one place uses the hub."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from edge.core.errors import EdgeError, TaskFileError, UsageError
from edge.core.types import AnswerKind, TaskItem
from edge.dagrpo.hyperparameters import STEP_LIMITS
from edge.dagrpo.prompts import user_prompt
from edge.tasks.datasets.catalogue import DATA_SETS, MOST_TESTS_CHARS
from edge.tasks.datasets.source import DataSetSource
from edge.tasks.registry import open_source
from edge.verifiers.by_kind import VerifierByKind
from tests.shared_data import shared_data
from tests.worlds.data_set_files import (
    Rows,
    arc_rows,
    gsm8k_rows,
    hub_folder,
    humaneval_rows,
    math_rows,
    mmlu_rows,
    taco_rows,
    write_jsonl,
    write_parquet,
)

ROWS: dict[str, Callable[[int], Rows]] = {
    "gsm8k": gsm8k_rows,
    "math": math_rows,
    "arc-easy": arc_rows,
    "arc-challenge": arc_rows,
    "taco": taco_rows,
    "mmlu": mmlu_rows,
    "humaneval": humaneval_rows,
}


def opened(name: str) -> DataSetSource:
    source = open_source(name)
    assert isinstance(source, DataSetSource)
    return source


def all_items(name: str) -> list[TaskItem]:
    items = opened(name).items
    return [*items.train_items, *items.test_items]


def one_item(tmp_path: Path, name: str, row: dict[str, Any]) -> TaskItem:
    (item,) = all_items(f"{name}:{write_jsonl(tmp_path / 'one.jsonl', [row])}")
    return item


RECORDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gsm8k": (
        "gsm8k",
        {"question": "q?", "answer": "He has 2*600=<<2*600=1200>>1200.\nDone.\n#### 1,200"},
        {
            "answer": "1200",
            "task": "math",
            "max_steps": 4,
            "solution": "<think>\nStep 1: He has 2*600=1200.\nStep 2: Done.\n</think>\n<answer>\\boxed{1200}</answer>",
        },
    ),
    "math: the last box": (
        "math",
        {"problem": "p", "level": "Level 3", "type": "Algebra", "solution": "\\boxed{1} no: \\boxed{\\frac{1}{2}}"},
        {"answer": "\\frac{1}{2}", "level": 3, "kind": AnswerKind.MATH},
    ),
    "math: no level": (
        "math",
        {"problem": "p", "level": "Level ?", "type": "Algebra", "solution": "so \\fbox{7}"},
        {"answer": "7", "level": 0},
    ),
    "arc: letters": (
        "arc-easy",
        {"id": "M1", "question": "q?", "choices": {"text": ["x", "y", "z"], "label": ["A", "B", "C"]}, "answerKey": "C"},
        {"id": "arc-easy/M1", "answer": "C", "options": ("x", "y", "z"), "level": 1, "task": "qa"},
    ),
    "arc: numbers": (
        "arc-challenge",
        {"id": "M1", "question": "q?", "choices": {"text": ["x", "y", "z"], "label": ["1", "2", "3"]}, "answerKey": "3"},
        {"id": "arc-challenge/M1", "answer": "C", "options": ("x", "y", "z"), "level": 2},
    ),
    "arc: options that are letters": (
        "arc-easy",
        {"id": "M1", "question": "q?", "choices": {"text": ["O", "A", "B"], "label": ["A", "B", "C"]}, "answerKey": "B"},
        {"answer": "B) A", "options": ("O", "A", "B")},
    ),
    "arc: as its authors wrote it": (
        "arc-easy",
        {
            "id": "M1",
            "question": {"stem": "q?", "choices": [{"text": "x", "label": "A"}, {"text": "y", "label": "B"}]},
            "answerKey": "B",
        },
        {"question": "q?", "answer": "B", "options": ("x", "y")},
    ),
    "mmlu: options that are letters": (
        "mmlu",
        {"question": "q?", "subject": "s", "choices": ["b", "a"], "answer": 0},
        {"answer": "A) b", "options": ("b", "a")},
    ),
    "mmlu: an index": (
        "mmlu",
        {"question": "q?", "subject": "s", "choices": ["x", "y"], "answer": 1},
        {"answer": "B", "options": ("x", "y"), "kind": AnswerKind.CHOICE},
    ),
    "mmlu: a letter": ("mmlu", {"question": "q?", "type": "s", "choices": ["x", "y"], "answer": "B"}, {"answer": "B"}),
    "mmlu: the training part": (
        "mmlu",
        {"train": {"question": "q?", "subject": "", "choices": ["x", "y"], "answer": 0}},
        {"answer": "A"},
    ),
}


@pytest.mark.parametrize("form", RECORDS)
def test_published_record_becomes_the_intended_item(tmp_path: Path, form: str) -> None:
    name, row, expected = RECORDS[form]
    item = one_item(tmp_path, name, row)
    assert {field: getattr(item, field) for field in expected} == expected


def test_humaneval_tests_end_in_the_call_and_the_preamble_is_what_the_prompt_gives(tmp_path: Path) -> None:
    item = one_item(tmp_path, "humaneval", dict(humaneval_rows(4)[3]))
    assert item.kind is AnswerKind.PROGRAM and item.max_steps == STEP_LIMITS["code"] == 6
    assert item.preamble == "import math\ndef half(x):\n    return x / 2\n"
    assert item.answer.endswith("assert candidate(1) == 4\n\ncheck(add_3)\n")
    assert item.question.endswith('"""Add 3."""\n')
    namespace: dict[str, Any] = {}
    exec(item.preamble + "def add_3(x):\n    return int(half(2 * x)) + 3\n" + item.answer, namespace)


def test_taco_item_states_how_the_program_is_called_and_keeps_its_tests(tmp_path: Path) -> None:
    by_stdin, by_call = (one_item(tmp_path, "taco", dict(row)) for row in taco_rows(2))
    assert json.loads(by_stdin.answer) == {"inputs": ["0\n", "3\n"], "outputs": ["1\n", "4\n"]}
    assert "standard input" in by_stdin.question and (by_stdin.level, by_call.level) == (1, 2)
    assert json.loads(by_call.answer)["fn_name"] == "next_one"
    assert "def next_one(x):" in by_call.question and "`next_one`" in by_call.question
    assert "```python code block" in user_prompt(by_call)


def test_taco_tests_are_limited_in_length_and_a_problem_without_any_is_skipped(tmp_path: Path) -> None:
    huge = "x" * MOST_TESTS_CHARS
    some = {**taco_rows(1)[0], "question": "a", "input_output": json.dumps({"inputs": [huge, "1"], "outputs": ["y", "2"]})}
    none = {**taco_rows(1)[0], "question": "b", "input_output": json.dumps({"inputs": [], "outputs": []})}
    source = opened(f"taco:{write_jsonl(tmp_path / 'taco.jsonl', [some, none])}")
    (item,) = (*source.items.train_items, *source.items.test_items)
    assert json.loads(item.answer) == {"inputs": ["1"], "outputs": ["2"]}
    assert len(source.left_out) == 1 and "taco.jsonl:2" in source.left_out[0]


WRITERS: dict[str, Callable[[Path, Rows], object]] = {
    ".jsonl.gz": lambda path, rows: path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode())),
    ".json": lambda path, rows: path.write_text(json.dumps(rows)),
    ".parquet": write_parquet,
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("ending", WRITERS)
def test_every_file_format_gives_the_same_items(tmp_path: Path, name: str, ending: str) -> None:
    rows, path = ROWS[name](12), tmp_path / f"train{ending}"
    expected = all_items(f"{name}:{write_jsonl(tmp_path / 'plain' / 'train.jsonl', rows)}")
    WRITERS[ending](path, rows)
    assert all_items(f"{name}:{path}") == expected


@pytest.mark.parametrize(
    ("name", "row", "field"),
    [
        ("gsm8k", {"question": "q", "answer": "no hashes"}, "answer"),
        ("gsm8k", {"answer": "#### 4"}, "question"),
        ("math", {"problem": "p", "level": "Level 1", "solution": "no box"}, "solution"),
        ("math", {"problem": "p", "level": "hard", "solution": "\\boxed{1}"}, "level"),
        ("arc-easy", {"question": "q", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "E"}, "answerKey"),
        ("arc-easy", {"question": "q", "choices": {"text": ["x", "y"], "label": ["A", "A"]}, "answerKey": "A"}, "choices"),
        ("arc-challenge", {"question": "q", "choices": ["x", "y"], "answerKey": "A"}, "choices"),
        ("mmlu", {"question": "q", "choices": ["x", "y"], "answer": 2}, "answer"),
        ("mmlu", {"question": "q", "choices": ["x", "y"], "answer": True}, "answer"),
        ("mmlu", {"question": "q", "choices": ["x"], "answer": 0}, "choices"),
        ("humaneval", {**humaneval_rows(1)[0], "prompt": "def ("}, "prompt"),
        ("humaneval", {**humaneval_rows(1)[0], "entry_point": "other"}, "entry_point"),
        ("taco", {**taco_rows(1)[0], "input_output": "{"}, "input_output"),
        ("taco", {**taco_rows(1)[0], "input_output": '{"inputs": ["1"], "outputs": []}'}, "input_output"),
    ],
)
def test_a_bad_record_is_named_by_file_line_and_field(tmp_path: Path, name: str, row: dict[str, Any], field: str) -> None:
    path = write_jsonl(tmp_path / "train.jsonl", [ROWS[name](1)[0], row])
    with pytest.raises(TaskFileError, match=rf'train\.jsonl:2: "{field}"'):
        opened(f"{name}:{path}").test(1)


def test_a_bad_row_of_a_parquet_file_is_named_by_its_number(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "train.parquet", [*gsm8k_rows(300), {"question": "q", "answer": "none"}])
    with pytest.raises(TaskFileError, match=r'train\.parquet: row 300: "answer"'):
        all_items(f"gsm8k:{path}")


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.jsonl", b'{"question": ', "a.jsonl:1: not valid JSON"),
        ("a.jsonl", b"[1]", "expected a JSON object, found [1]"),
        ("a.jsonl", b"\xff\xfe", "cannot be read"),
        ("a.jsonl.gz", b"not gzip", "cannot be read"),
        ("a.jsonl.gz", gzip.compress(b'{"question": "q"}' * 99, mtime=0)[:-9], "cannot be read"),
        ("a.json", b'[\n{"question": }]', "line 2, column"),
        ("a.parquet", b"not parquet", "not a readable parquet file"),
        ("a.csv", b"x,y", "not a data file"),
        ("a.jsonl", b"\n", "no usable record"),
    ],
)
def test_a_damaged_file_is_one_clear_line(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskFileError) as caught:
        opened(f"gsm8k:{tmp_path / name}").test(1)
    assert complaint in str(caught.value)


def test_given_splits_are_kept_and_validation_belongs_to_neither(tmp_path: Path) -> None:
    source = opened(f"arc-easy:{hub_folder(tmp_path, 'arc-easy')}")
    assert (len(source.items.train_items), len(source.items.test_items)) == (60, 30)
    assert not {f"arc-easy/Mercury_{n}" for n in range(500, 509)} & {item.id for item in source.items.train_items}
    hub_folder(tmp_path, "arc-challenge")  # a copy of the whole repository has both parts
    assert [item.family for item in all_items(f"arc-challenge:{tmp_path}")] == ["arc-challenge"] * 90


def test_without_a_test_split_one_question_in_ten_is_held_out(tmp_path: Path) -> None:
    source = opened(f"taco:{write_jsonl(tmp_path / 'train.jsonl', taco_rows(500))}")
    assert 25 <= len(source.items.test_items) <= 75
    assert len(source.items.train_items) + len(source.items.test_items) == 500


def test_a_training_question_that_is_also_a_test_question_is_dropped(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", gsm8k_rows(10))
    spaced = [{**row, "question": str(row["question"]).replace(" ", "  ")} for row in gsm8k_rows(4)]
    write_jsonl(tmp_path / "test.jsonl", spaced)
    items = opened(f"gsm8k:{tmp_path}").items
    assert (len(items.train_items), len(items.test_items)) == (6, 4)


def test_ids_and_test_order_do_not_depend_on_how_the_files_are_cut(tmp_path: Path) -> None:
    rows = mmlu_rows(40)
    whole = opened(f"mmlu:{write_jsonl(tmp_path / 'a' / 'test.jsonl', rows)}").test(40)
    write_jsonl(tmp_path / "b" / "test-1.jsonl", rows[25:])
    write_jsonl(tmp_path / "b" / "test-2.jsonl", rows[:25])
    assert opened(f"mmlu:{tmp_path / 'b'}").test(40) == whole
    assert [item.options[0] for item in whole] != [str(n) for n in range(40)]
    equal = opened(f"mmlu:{write_jsonl(tmp_path / 'test.jsonl', [*mmlu_rows(2), *mmlu_rows(1)])}").test(9)
    assert len({item.id for item in equal}) == 3


@pytest.mark.parametrize(
    ("name", "error", "complaint"),
    [
        ("gsm8k:", UsageError, "no path"),
        ("gsm8k:/nowhere", TaskFileError, "/nowhere: no such"),
        ("math:EMPTY", TaskFileError, "no data file"),
        ("hf:someone/else", UsageError, "someone/else"),
        ("hf:allenai/ai2_arc", UsageError, "several parts"),
        ("nothing", TaskFileError, "no such task file"),
    ],
)
def test_unknown_name_is_refused_with_a_hint(tmp_path: Path, name: str, error: type[EdgeError], complaint: str) -> None:
    with pytest.raises(error, match=complaint) as caught:
        open_source(name.replace("EMPTY", str(tmp_path)))
    assert caught.value.hint


class FakeHub:
    """Replaces huggingface_hub.snapshot_download: returns a folder or fails like the library."""

    def __init__(self, folder: Path, failure: Exception | None = None) -> None:
        self.folder = folder
        self.failure = failure
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, repo: str, **options: Any) -> str:
        self.calls.append((repo, options))
        if self.failure is not None:
            raise self.failure
        return str(self.folder)


@pytest.mark.parametrize("name", DATA_SETS)
def test_a_name_alone_loads_the_wanted_splits_from_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_folder(tmp_path, name)
    hub = FakeHub(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    data_set = DATA_SETS[name]
    by_name, by_hub_id = open_source(name), open_source(f"hf:{data_set.hub.upper()}/{data_set.config}")
    assert by_name.test(5) == by_hub_id.test(5) != ()
    (repo, options), _ = hub.calls
    assert repo == data_set.hub and options["repo_type"] == "dataset" and options["revision"] == "refs/convert/parquet"
    assert options["allow_patterns"] == [f"{data_set.config}/{split}/*.parquet" for split in data_set.hub_splits]


def hub_failures() -> list[tuple[Exception, str]]:
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    response = httpx2.Response(404, request=httpx2.Request("GET", "https://example.invalid"))
    return [
        (LocalEntryNotFoundError("not cached"), "cannot be reached"),
        (httpx2.ConnectError("refused"), "ConnectError"),
        (OSError("no space"), "download from the hub failed"),
        (RepositoryNotFoundError("gone", response=response), "no such data set"),
    ]


@pytest.mark.parametrize(("failure", "complaint"), hub_failures())
def test_failing_hub_is_one_clear_line(failure: Exception, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", FakeHub(Path("unused"), failure))
    with pytest.raises(TaskFileError, match=complaint) as caught:
        open_source("gsm8k")
    assert caught.value.hint


@pytest.mark.parametrize(("package", "name"), [("huggingface_hub", "gsm8k"), ("pyarrow", "gsm8k:train.parquet")])
def test_missing_package_is_named_with_the_install_command(
    package: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "train.parquet", gsm8k_rows(1))
    monkeypatch.chdir(tmp_path)
    for module in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TaskFileError, match=f"needs the package {package.replace('_', '-')}") as caught:
        opened(name).test(1)
    assert ".[lab]" in caught.value.hint


def test_every_real_gsm8k_answer_follows_the_hashes_and_its_solution_is_judged_right() -> None:
    items = opened(f"gsm8k:{shared_data('gsm8k')}").items
    assert (len(items.train_items), len(items.test_items)) == (2000, 1319)
    lines = [
        json.loads(line)
        for file in ("train_first2000.jsonl", "test.jsonl")
        for line in shared_data(f"gsm8k/{file}").read_text(encoding="utf-8").splitlines()
    ]
    expected = {line["question"]: line["answer"].rsplit("#### ", 1)[1].strip().replace(",", "") for line in lines}
    verifier, judged = VerifierByKind(), 0
    for item in (*items.train_items, *items.test_items):
        assert item.answer == expected[item.question]
        assert re.fullmatch(r"-?\d+(\.\d+)?", item.answer)
        assert "<<" not in item.solution
        assert not item.solution or verifier.is_correct(item, item.solution)
        assert not verifier.is_correct(item, f"\\boxed{{{item.answer}1}}")
        judged += bool(item.solution)
    assert judged > 1000


def test_all_real_humaneval_items_are_valid_python_with_the_entry_point_after_the_preamble() -> None:
    items = opened(f"humaneval:{shared_data('humaneval')}").items.test_items
    assert len(items) == 164
    for item in items:
        compile(item.preamble + item.answer, item.id, "exec")
        entry = re.search(r"check\((\w+)\)\n\Z", item.answer)
        assert entry and f"def {entry[1]}(" in item.question and f"def {entry[1]}(" not in item.preamble
    assert sum("def " in item.preamble for item in items) == 4
