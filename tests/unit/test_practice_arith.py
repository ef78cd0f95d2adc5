"""The practice family `arith`: exact, deterministic, disjoint, solvable as shown."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from fractions import Fraction

from edge.core.types import TaskItem
from edge.dagrpo.answers import last_boxed
from edge.dagrpo.format import check_format
from edge.tasks.practice import arith
from edge.tasks.practice.arith import ARITH

KNOWN = (
    "Sara brings 69 eggs. They are shared equally by 3 tables and we look at one table. Chloe brings 12 more. How many eggs are there now?",
    "35",
)


def take(count: int, split: str = "train", seed: int = 3) -> list[TaskItem]:
    return list(itertools.islice(ARITH.stream(seed, split), count))  # type: ignore[arg-type]


def exact(expression: str) -> Fraction:
    """The value of an arithmetic expression in exact fractions."""
    assert re.fullmatch(r"[\d+*/() -]+", expression)
    return eval(re.sub(r"(\d+)", r"Fraction(\1)", expression), {"Fraction": Fraction})


def step_lines(text: str) -> list[str]:
    return [line.split(": ", 1)[1] for line in text.splitlines() if line.startswith("Step ")]


def test_a_known_item_never_changes() -> None:
    item = ARITH.generate(1, "test", 2)
    assert (item.question, item.answer) == KNOWN


def test_every_value_and_operand_stays_in_its_range() -> None:
    rng = random.Random(0)
    for level in ARITH.levels:
        for _ in range(500):
            problem = arith.draw_problem(rng, level)
            assert all(1 <= value <= arith.MAX_VALUE for value in problem.values)
            for before, operation in zip(problem.values, problem.operations, strict=False):
                assert 2 <= operation.operand <= (arith.MAX_FACTOR if operation.operator in "*/" else arith.MAX_ADDEND)
                assert operation.operator != "/" or before % operation.operand == 0


def test_no_operation_takes_back_the_one_before() -> None:
    rng = random.Random(1)
    for _ in range(500):
        operations = arith.draw_problem(rng, 7).operations
        assert not any(arith.undoes(after, before) for before, after in itertools.pairwise(operations))


def test_bare_expressions_have_the_stated_answer() -> None:
    bare = [item for item in take(3000) if "(" in item.question or " = ?" in item.question]
    assert len(bare) > 300
    for item in bare:
        expression = re.search(r"[(\d][\d+*/() -]*[\d)]", item.question)
        assert expression is not None
        assert exact(expression.group()) == int(item.answer)


def test_stories_tell_every_operand() -> None:
    rng = random.Random(2)
    for level in ARITH.levels:
        for _ in range(200):
            problem = arith.draw_problem(rng, level)
            question = arith.word_problem(rng, problem)
            told = Counter(re.findall(r"\d+", question))
            halves = len(re.findall(r"[Dd]ouble|twice|[Hh]alf|[Hh]alve", question))
            wanted = Counter(str(n) for n in (problem.start, *(operation.operand for operation in problem.operations)))
            assert not told - wanted
            assert wanted - told == Counter({"2": halves} if halves else {})


def test_solutions_are_well_formed_and_every_line_is_true() -> None:
    for item in take(2000):
        verdict = check_format(item.solution, item.max_steps)
        assert verdict.ok
        assert not verdict.asks_help
        assert verdict.steps == min(item.level, arith.MAX_STEPS)
        assert last_boxed(item.solution) == item.answer
        for line in step_lines(item.solution):
            *expressions, result = line.split(" = ")
            assert {exact(part) for part in expressions} == {Fraction(result)}


def test_detailed_solutions_are_chains_of_equal_expressions() -> None:
    rng = random.Random(3)
    for level in ARITH.levels:
        for _ in range(300):
            problem = arith.draw_problem(rng, level)
            lines = arith.detailed_lines(problem)
            assert len(lines) == level
            for line, value in zip(lines, problem.values[1:], strict=True):
                assert {exact(part) for part in line.split(" = ")} == {Fraction(value)}
