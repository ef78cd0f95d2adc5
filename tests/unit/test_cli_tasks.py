"""`edge-agent tasks list | show | sample`: output for people, for machines, and for the agent itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from edge.tasks.datasets.catalogue import DATA_SETS
from edge.tasks.jsonl import read_file
from edge.tasks.practice import FAMILIES, GROUPS
from edge.tasks.registry import open_source
from tests.unit.conftest import EdgeAgent
from tests.worlds.data_set_files import hub_folder, write_jsonl

NAMES = [*(f"practice:{name}" for name in (*FAMILIES, *GROUPS)), *DATA_SETS]


def test_json_list_has_levels_labels_and_limits(edge_agent: EdgeAgent) -> None:
    rows = {row["name"]: row for row in edge_agent("tasks", "list", "--json").json}
    assert list(rows) == NAMES
    assert rows["practice:group1"]["families"] == ["arith", "science"] and rows["practice:group1"]["labels"] == ["group1"]
    assert rows["practice:arith"]["train"] is None and rows["practice:arith"]["levels"] == {"arith": [1, 2, 3, 4, 5, 6, 7]}
    assert (rows["math"]["max_steps"], rows["taco"]["max_steps"], rows["mmlu"]["max_steps"]) == ([4], [6], [4])
    assert {row["kind"] for row in rows.values()} == {"practice", "data set"}


@pytest.mark.parametrize("name", ["practice:arith", "practice:code", "practice:group1"])
def test_a_practice_source_shows_an_example_of_each_level_with_its_solution(name: str, edge_agent: EdgeAgent) -> None:
    shown = edge_agent("tasks", "show", name, "--json").json
    listed = [(example["family"], example["level"]) for example in shown["examples"]]
    assert listed == [(family, level) for family in shown["families"] for level in shown["levels"][family]]
    assert all(example["solution"] and example["prompt"][-1]["role"] == "user" for example in shown["examples"])
    assert {example["task"] for example in shown["examples"]} == set(shown["labels"])


@pytest.mark.parametrize("name", DATA_SETS)
def test_data_set_shows_the_content_of_its_files(name: str, tmp_path: Path, edge_agent: EdgeAgent) -> None:
    code, out, err = edge_agent("tasks", "show", f"{name}:{hub_folder(tmp_path, name)}")
    assert (code, err) == (0, "")
    assert DATA_SETS[name].about in out
    assert ("tests:" if name in ("taco", "humaneval") else "answer:") in out


def test_unjudgeable_records_are_reported(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    rows = [{"problem": f"p{n}", "level": "Level 1", "solution": "\\boxed{7}" if n else "\\boxed{}"} for n in range(5)]
    _, out, _ = edge_agent("tasks", "show", f"math:{write_jsonl(tmp_path / 'test.jsonl', rows)}")
    assert "1 record" in out and "test.jsonl:1" in out


def test_control_characters_are_escaped_for_the_terminal(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    path = tmp_path / "mine.jsonl"
    line = {"question": "a\x1b[2J\x9b1m\x07\u202eb\r\n\tc\rd\x0be", "answer": "1\x08", "family": "f\x1b[0m", "task": "t\x00"}
    path.write_text(json.dumps({**line, "solution": "s\x7f", "split": "test"}) + "\n", encoding="utf-8")
    for words in (["show", str(path)], ["sample", str(path), "--split", "test"]):
        code, out, _ = edge_agent("tasks", *words)
        assert code == 0
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", out)
        assert r"a\x1b[2J\x9b1m\x07\u202eb" in out and r"c\x0dd\x0be" in out and r"1\x08" in out and r"s\x7f" in out
        assert r"f\x1b[0m" in out
    again = tmp_path / "again.jsonl"
    again.write_text(edge_agent("tasks", "sample", str(path), "--split", "test", "--json").out, encoding="utf-8")
    assert read_file(again).items == read_file(path).items


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", ["practice:arith", "practice:science", "practice:code"])
def test_sample_can_be_used_as_a_task_file(name: str, split: str, tmp_path: Path, edge_agent: EdgeAgent) -> None:
    code, out, err = edge_agent("tasks", "sample", name, "--n", "4", "--level", "2", "--split", split, "--seed", "1", "--json")
    path = tmp_path / "sample.jsonl"
    path.write_text(out, encoding="utf-8")
    items = read_file(path).items
    assert (code, err, len(items)) == (0, "", 4)
    assert {(item.level, item.split) for item in items} == {(2, split)}
    assert (open_source(str(path)).test(9) != ()) is (split == "test")


def test_sample_is_reproducible_by_seed(edge_agent: EdgeAgent) -> None:
    first, again, other = (
        edge_agent("tasks", "sample", "practice:arith", "--seed", seed, "--json").out for seed in ("1", "1", "2")
    )
    assert first == again != other


def test_a_sample_of_a_data_set_comes_from_the_wanted_split(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    source = f"gsm8k:{hub_folder(tmp_path, 'gsm8k')}"
    test_ids = {item.id for item in open_source(source).test(1000)}
    for split, inside in (("train", False), ("test", True)):
        _, out, _ = edge_agent("tasks", "sample", source, "--split", split, "--n", "8", "--json")
        ids = {json.loads(line)["id"] for line in out.splitlines()}
        assert len(ids) == 8 and (ids <= test_ids) is inside


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["show", "practice:nothing"], 2, "unknown practice family"),
        (["show", "nothing"], 1, "no such task file"),
        (["show", "x" * 5000], 1, "(5000 characters)"),
        (["sample", "practice:arith", "--level", "99"], 2, "levels: 1, 2"),
        (["sample", "practice:arith", "--split", "dev"], 2, "train or test"),
        (["sample", "practice:arith", "--n", "0"], 2, "--n"),
        (["sample", "gsm8k:"], 2, "no path"),
    ],
)
def test_error_is_one_line_on_stderr(arguments: list[str], code: int, complaint: str, edge_agent: EdgeAgent) -> None:
    edge_agent("tasks", *arguments).refused(code, complaint)
