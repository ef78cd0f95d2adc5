"""HumanEval's 164 programs: the canonical solutions pass, programs that do nothing fail, and mutants are caught."""

from __future__ import annotations

import ast
import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from edge.core.clock import SystemClock
from edge.verifiers.program import ProgramTests, ProgramVerdict, judge_program
from edge.verifiers.sandbox.role import Limits, Sandbox
from edge.verifiers.sandbox.session import run_whole
from tests.shared_data import shared_data


@dataclass(frozen=True)
class Problem:
    """One problem of the data set."""

    name: str
    entry: str
    solution: str
    tests: str


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    with gzip.open(shared_data("humaneval/HumanEval.jsonl.gz"), "rt", encoding="utf-8") as file:
        return [_problem(json.loads(line)) for line in file]


def _problem(record: dict[str, str]) -> Problem:
    solution = record["prompt"] + record["canonical_solution"]
    return Problem(record["task_id"], record["entry_point"], solution, f"{record['test']}\n\ncheck({record['entry_point']})\n")


def verdicts(sandbox: Sandbox, programs: list[tuple[str, str]], wall_s: float) -> list[ProgramVerdict]:
    """Judged two at a time."""
    limits, clock = Limits(wall_s=wall_s), SystemClock()
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda pair: judge_program(ProgramTests(*pair), sandbox, limits, clock), programs))


def test_all_164_canonical_solutions_pass(sandbox: Sandbox, problems: list[Problem]) -> None:
    found = verdicts(sandbox, [(problem.solution, problem.tests) for problem in problems], 60.0)
    assert len(found) == 164
    assert [(problem.name, verdict.reason) for problem, verdict in zip(problems, found, strict=True) if not verdict.passed] == []


def emptied(problem: Problem) -> str:
    """The solution with a body that returns nothing; helper functions stay."""
    tree = ast.parse(problem.solution)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == problem.entry:
            node.body = [ast.Return(ast.Constant(None))]
    return ast.unparse(ast.fix_missing_locations(tree))


def test_programs_that_return_nothing_fail(sandbox: Sandbox, problems: list[Problem]) -> None:
    chosen = problems[::4]
    found = verdicts(sandbox, [(emptied(problem), problem.tests) for problem in chosen], 20.0)
    assert [problem.name for problem, verdict in zip(chosen, found, strict=True) if verdict.passed] == []


_FLIPPED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Div: ast.Mult,
    ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def mutants(problem: Problem) -> Iterator[str]:
    """The solution with one operator turned around, for each operator in the asked-for function."""
    count = len(list(_operators(ast.parse(problem.solution), problem.entry)))
    for index in range(count):
        tree = ast.parse(problem.solution)
        holder, field, place = list(_operators(tree, problem.entry))[index]
        if place is None:
            setattr(holder, field, _FLIPPED[type(getattr(holder, field))]())
        else:
            operators = getattr(holder, field)
            operators[place] = _FLIPPED[type(operators[place])]()
        yield ast.unparse(tree)


def _operators(tree: ast.AST, entry: str) -> Iterator[tuple[ast.AST, str, int | None]]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == entry:
            for node in ast.walk(function):
                if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in _FLIPPED:
                    yield node, "op", None
                elif isinstance(node, ast.Compare):
                    yield from ((node, "ops", place) for place, operator in enumerate(node.ops) if type(operator) in _FLIPPED)


def test_a_sample_of_mutants_is_caught(sandbox: Sandbox, problems: list[Problem]) -> None:
    made = [(mutant, problem.tests) for problem in problems[::8] for mutant in list(mutants(problem))[:2]]
    caught = sum(not verdict.passed for verdict in verdicts(sandbox, made, 1.5))
    assert len(made) >= 20 and caught >= 0.8 * len(made), "a survivor may be equivalent to the solution"


@pytest.mark.long
def test_the_judge_agrees_with_running_program_and_tests_in_one_process(sandbox: Sandbox, problems: list[Problem]) -> None:
    """Honest programs are judged alike both ways: solutions, mutants, and programs that return nothing."""
    made = [
        (program, problem.tests)
        for problem in problems[::3]
        for program in (problem.solution, emptied(problem), *mutants(problem))
    ]
    limits, clock = Limits(wall_s=3.0), SystemClock()

    def passes_as_one(pair: tuple[str, str]) -> bool:
        return run_whole(sandbox, "\n".join(pair), b"", limits, clock).reason == ""

    with ThreadPoolExecutor(2) as pool:
        as_one = list(pool.map(passes_as_one, made))
    assert [verdict.passed for verdict in verdicts(sandbox, made, 3.0)] == as_one
    assert any(as_one) and not all(as_one)
