"""The contract of TaskSource, for every built-in source."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from edge.core.errors import TaskFileError
from edge.tasks.datasets.catalogue import DATA_SETS
from edge.tasks.jsonl import as_record, read_file
from edge.tasks.practice import FAMILIES, GROUPS
from edge.tasks.registry import open_source
from edge.tasks.source import TaskSource
from tests.shared_data import shared_data
from tests.worlds.data_set_files import hub_folder, write_jsonl

PRACTICE = [f"practice:{name}" for name in (*FAMILIES, *GROUPS)]
LEARNABLE = [*PRACTICE, "general", "jsonl", *(name for name in DATA_SETS if name != "humaneval"), "real gsm8k"]
FOR_EVALUATION = ["humaneval", "real humaneval", "real mmlu_stem"]


def opened(name: str, folder: Path) -> TaskSource:
    if name in PRACTICE or name == "general":
        return open_source(name)
    if name.startswith("real "):
        place = name.removeprefix("real ")
        return open_source(f"{place.partition('_')[0]}:{shared_data(place)}")
    if name in DATA_SETS:
        return open_source(f"{name}:{hub_folder(folder, name)}")
    return open_source(str(write_jsonl(folder / "tasks.jsonl", [{"question": f"q{n}", "answer": n} for n in range(150)])))


@pytest.fixture(params=[*LEARNABLE, *FOR_EVALUATION])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> TaskSource:
    return opened(request.param, tmp_path)


@pytest.fixture(params=LEARNABLE)
def learnable(request: pytest.FixtureRequest, tmp_path: Path) -> TaskSource:
    return opened(request.param, tmp_path)


def test_stream_is_reproducible_by_seed(learnable: TaskSource) -> None:
    first, again, other = (list(itertools.islice(learnable.train(seed), 30)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_starting_later_equals_skipping(learnable: TaskSource) -> None:
    whole = list(itertools.islice(learnable.train(5), 40))
    assert list(itertools.islice(learnable.train(5, start=17), 23)) == whole[17:]


def test_held_out_items_are_never_in_the_training_stream(learnable: TaskSource) -> None:
    held_out = learnable.test(50)
    questions = {item.question for item in itertools.islice(learnable.train(9), 200)}
    assert held_out and questions
    assert not questions & {item.question for item in held_out}
    assert {item.split for item in itertools.islice(learnable.train(9), 20)} == {"train"}


@pytest.mark.parametrize("name", FOR_EVALUATION)
def test_evaluation_source_refuses_training(name: str, tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="no training item"):
        opened(name, tmp_path).train(0)


def test_held_out_items_are_fixed_and_a_shorter_list_is_a_prefix(source: TaskSource) -> None:
    held_out = source.test(20)
    assert held_out and list(held_out) == list(source.test(20))
    assert list(source.test(3)) == list(held_out)[:3]
    assert {item.split for item in held_out} == {"test"}


def test_item_ids_are_unique_within_the_held_out_list(source: TaskSource) -> None:
    ids = [item.id for item in source.test(50)]
    assert len(ids) == len(set(ids))


def test_every_item_has_a_question_an_answer_and_a_step_limit(source: TaskSource) -> None:
    for item in source.test(20):
        assert item.question.strip() and item.answer.strip() and item.task and item.family
        assert item.max_steps >= 1 and item.level >= 0


def test_items_survive_a_task_file(source: TaskSource, tmp_path: Path) -> None:
    items = list(source.test(50))
    assert list(read_file(write_jsonl(tmp_path / "again.jsonl", list(map(as_record, items)))).items) == items
