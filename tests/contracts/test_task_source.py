"""The contract of TaskSource, over every built-in source."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from edge.tasks.registry import open_source
from edge.tasks.source import TaskSource


@pytest.fixture(params=["practice:arith", "jsonl"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> TaskSource:
    if request.param != "jsonl":
        return open_source(request.param)
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(json.dumps({"question": f"q{n}", "answer": n}) for n in range(60)))
    return open_source(str(path))


def test_the_same_seed_gives_the_same_stream_and_another_seed_another(source: TaskSource) -> None:
    first, again, other = (list(itertools.islice(source.train(seed), 40)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_starting_later_equals_skipping(source: TaskSource) -> None:
    whole = list(itertools.islice(source.train(5), 50))
    assert list(itertools.islice(source.train(5, start=17), 33)) == whole[17:]


def test_held_out_items_are_fixed_and_never_in_the_training_stream(source: TaskSource) -> None:
    held_out = source.test(50)
    assert held_out and list(held_out) == list(source.test(50))
    assert list(source.test(3)) == list(held_out)[:3]
    questions = {item.question for item in itertools.islice(source.train(9), 500)}
    assert not questions & {item.question for item in held_out}
    assert {item.split for item in held_out} == {"test"}


def test_item_ids_are_unique_within_the_held_out_list(source: TaskSource) -> None:
    ids = [item.id for item in source.test(50)]
    assert len(ids) == len(set(ids))
