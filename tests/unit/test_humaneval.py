"""HumanEval's 164 programs: the canonical solutions pass, and programs that return nothing fail."""

from __future__ import annotations

import ast
import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from edge.core.clock import SystemClock
from edge.verifiers.program import ProgramTests, ProgramVerdict, judge_program
from edge.verifiers.sandbox.role import Sandbox, SandboxLimits
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
    limits, clock = SandboxLimits(wall_s=wall_s), SystemClock()
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
