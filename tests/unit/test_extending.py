"""The files named in docs/extending.md exist, and its examples work unchanged."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest

from edge.core.types import AnswerKind, TaskItem
from edge.dagrpo.format import check_format
from edge.learning import methods
from edge.tasks.practice import FAMILIES
from edge.tasks.practice.family import Family
from edge.tasks.registry import open_source
from edge.verifiers.by_kind import VerifierByKind
from tests.unit.test_methods import group
from tests.worlds.trained import training_groups

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def example(begins_with: str) -> str:
    [found] = [text for text in EXAMPLES if text.startswith(f"# {begins_with}")]
    return found


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_an_example_is_python(text: str) -> None:
    compile(text, "extending.md", "exec")


def test_family_example_is_a_family_after_one_table_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict[str, object] = {}
    exec(example("edge/tasks/practice/sums.py"), scope)
    family = scope["SUMS"]
    assert isinstance(family, Family)
    monkeypatch.setitem(FAMILIES, family.name, family)
    items = list(itertools.islice(open_source("practice:sums").train(3), 50))
    assert {item.level for item in items} == set(family.levels)
    for item in items:
        assert check_format(item.solution, item.max_steps).ok
        assert VerifierByKind().is_correct(item, item.solution)
        assert not VerifierByKind().is_correct(item, "<think>\n</think>\n<answer>\\boxed{0}</answer>")
    assert family.draw(random.Random(1), "train", 2) == family.draw(random.Random(1), "train", 2)


def test_method_example_learns_from_scored_groups() -> None:
    scope = dict(vars(methods))
    exec(example("edge/learning/methods.py"), scope)
    [trained] = training_groups(scope["Reinforce"](), [group("rwhf")])
    assert [sample.advantage for sample in trained.samples] == [1.0, 0.0, 1.0, 0.0]
    assert trained.group_weight == 1.0


def test_verifier_example_judges_as_its_row_asks() -> None:
    row, module = example("edge/core/types.py").split("# edge/verifiers/number_set.py\n")
    scope: dict[str, object] = {}
    exec(module, scope)
    exec(row, scope)
    name, instruction, verifier = scope["NUMBER_SET"]
    assert (name, verifier) == ("number_set", "edge.verifiers.number_set:NumberSet")
    assert "commas" in instruction
    judge = scope["NumberSet"]()
    item = TaskItem("id", "math", "sets", 1, "test", "Which?", "3, 5", AnswerKind.MATH, 4)
    assert judge.is_correct(item, "<answer>\\boxed{5,3}</answer>")
    assert not judge.is_correct(item, "<answer>\\boxed{5}</answer>")
    assert not judge.is_correct(item, "nothing")
