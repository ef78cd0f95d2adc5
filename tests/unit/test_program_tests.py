"""The forms of tests, the reasons of verdicts, and the verifier around them, on the best sandbox of this machine; and the 164 programs of
HumanEval."""

from __future__ import annotations

import ast
import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.types import AnswerKind, TaskItem
from edge.verifiers import program
from edge.verifiers.by_kind import VerifierByKind
from edge.verifiers.program import ProgramJudge, ProgramTests, ProgramVerdict, ProgramVerifier, judge_program, same_output
from edge.verifiers.sandbox.role import Sandbox, SandboxError, SandboxLimits
from tests.shared_data import shared_data
from tests.worlds.sandboxes import judged

SQUARE = "def square(x):\n    return x * x\n"


@pytest.mark.parametrize(
    ("code", "tests", "reason"),
    [
        (SQUARE, "assert square(3) == 9\nassert square(-2) == 4\n", ""),
        (SQUARE, "assert square(3) == 9\nassert square(2) == 5\n", "tests failed: assertion 2"),
        (SQUARE, "def check(candidate):\n    assert candidate(3) == 9\ncheck(square)\n", ""),
        (SQUARE, "for n in range(5):\n    assert square(n) == n ** 2\n", ""),
        (SQUARE, "if square(2) != 5:\n    raise ValueError\n", "tests failed: the tests raised ValueError in assertion 1"),
        (SQUARE, "assert cube(3) == 27\n", "tests failed: the tests raised NameError in assertion 1"),
        (SQUARE, "assert square('a') == 1\n", "tests failed: the program raised TypeError in assertion 1"),
        (SQUARE, "try:\n    square('a')\n    assert False\nexcept TypeError:\n    pass\n", ""),
        (SQUARE, "try:\n    square('a')\nexcept Exception:\n    pass\nelse:\n    raise ValueError\n", ""),
        (SQUARE, "try:\n    square(1)\n    assert False\nexcept TypeError:\n    pass\n", "tests failed: assertion 1"),
        (SQUARE, "try:\n    square(1)\n    assert False\nexcept AssertionError:\n    pass\n", "no check was executed"),
        (SQUARE, "try:\n    cube(1)\n    assert False\nexcept NameError:\n    pass\n", "the tests never called the program"),
        (SQUARE, "try:\n    square('a')\n    assert 1 > 0\nexcept TypeError:\n    pass\n", "no check was executed"),
        (SQUARE, "class T:\n    found = square(3)\n    low = len('ab')\n    assert found == 9\nassert T.low == 2\n", ""),
        ("def f(x): return x.decode()", "try:\n    f(b'\\xff')\n    assert 0\nexcept UnicodeDecodeError:\n    pass\n", ""),
        (
            "def f(x): raise ExceptionGroup('all', [KeyError()])",
            "try:\n    f(1)\n    assert 0\nexcept ExceptionGroup:\n    pass\n",
            "",
        ),
        ("\ufeff" + SQUARE, "\ufeffassert square(3) == 9\n", ""),
        ("\ufeffprint(input())", '\ufeff{"inputs": ["5"], "outputs": ["5"]}', ""),
        ("from __future__ import annotations\ndef f(x: Nothing): return x", "assert f(1) == 1\n", ""),
        (SQUARE, "assert square(\n", "the tests cannot be read: SyntaxError"),
        (SQUARE, "assert square(lambda: 1) == 1\n", "tests failed: the tests raised TypeError in assertion 1"),
        ("LIMIT = 7\nNAMES = ['a']\n", "assert LIMIT == 7 and NAMES == ['a']\n", ""),
        ("def f(*a, k=1):\n    return sum(a) + k", "assert f(1, 2, k=3) == 6\n", ""),
        ("class Solution:\n    def twice(self, x):\n        return 2 * x", "assert twice(4) == 8\n", ""),
        ("def f(:\n", "assert f(1) == 1\n", "syntax error line 1"),
        ("x = 1 / 0", "assert f(1) == 1\n", "the program raised ZeroDivisionError while it was loaded"),
        ("def f(x):\n    return bytearray(1 << 40)", "assert f(1) == 1\n", "memory limit"),
        ("def f(x):\n    exit()", "assert f(1) == 1\n", "the program ended before the tests did"),
        ("\0", "assert f(1) == 1\n", "syntax error"),
        ("def f(x):\n    return '\\ud800'", "assert f(1) == '\\ud800'\n", ""),
        ("def f(x): return '\ud800'", "assert f(1) == 1\n", "the program raised UnicodeEncodeError while it was loaded"),
        ("def f(n):\n    while n: n -= 1; yield n", "assert list(f(3)) == [2, 1, 0]\n", ""),
        ("def f(d):\n    return d.keys()", "assert set(f({1: 2})) == {1}\n", ""),
    ],
)
def test_python_tests_pass_or_fail_with_a_reason(sandbox: Sandbox, code: str, tests: str, reason: str) -> None:
    verdict = judged(sandbox, code, tests)
    if reason == "syntax error" and verdict.reason.startswith("the program raised"):
        reason = "the program raised ValueError while it was loaded"  # a null character before Python 3.12
    assert (verdict.passed, verdict.reason) == (not reason, reason)


def test_passed_checks_are_counted(sandbox: Sandbox) -> None:
    assert judged(sandbox, SQUARE, "assert square(1) == 1\nfor n in range(4):\n    assert square(n) == n * n\n").checks == 5
    assert judged(sandbox, SQUARE, "assert square(1) == 1\nassert square(1) == 2\n").checks == 1


def test_arguments_are_copies(sandbox: Sandbox) -> None:
    code = "def f(xs):\n    xs.append(1)\n    return xs\n"
    assert judged(sandbox, code, "xs = [0]\nassert f(xs) == [0, 1]\nassert xs == [0]\n").passed


def test_preamble_precedes_the_program_and_tests_use_their_own_helpers(sandbox: Sandbox) -> None:
    preamble = "import math\ndef helper(x):\n    return x + 1\ndef stub(x):\n    '''To be written.'''\n"
    code = "def stub(x):\n    return math.floor(helper(x))\ndef helper(x):\n    return 0 * x\n"
    assert judged(sandbox, "def stub(x):\n    return math.floor(helper(x))", "assert stub(2.5) == 3\n", preamble=preamble).passed
    verdict = judged(sandbox, code, "assert stub(2.5) == 0 and helper(2) == 3\n", preamble=preamble)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("head", ["", "# note\n", '"""Says what it does."""\n', "from __future__ import division\n", "\ufeff"])
def test_future_imports_stay_in_front_of_a_preamble(sandbox: Sandbox, head: str) -> None:
    code = f"{head}from __future__ import (annotations,\n    generators)  # both\n\ndef f(x: Nothing): return LIMIT + x\n"
    given = ProgramTests(code, "assert f(1) == 8\n", "import math\nLIMIT = 7\n")
    verdict = program.judge_program(given, sandbox, SandboxLimits(), SystemClock())
    assert verdict.passed, verdict.reason
    refused = judged(sandbox, "from __future__ import braces\n", "assert f(1) == 8\n", preamble="LIMIT = 7")
    assert refused.reason.startswith("syntax")


@pytest.mark.parametrize("depth", [80, 900, 100_000])
@pytest.mark.parametrize("function", ["", ', "fn_name": "f"'])
def test_nested_json_tests_never_raise(sandbox: Sandbox, depth: int, function: str) -> None:
    nested = "[" * depth + "]" * depth
    tests = f'{{"inputs": [{nested}], "outputs": [{nested}]{function}}}'
    verdict = judged(sandbox, "def f(*x): return list(x)", tests)
    if depth > 80:
        assert verdict.reason.startswith("the tests cannot be read")


@pytest.mark.parametrize("timeout_s", [float("nan"), 1e30, 0.0])
def test_invalid_time_limit_is_refused_in_one_line(timeout_s: float) -> None:
    with pytest.raises(UsageError, match="time limit"):
        SandboxLimits(wall_s=timeout_s)


def test_random_tests_are_reproducible(sandbox: Sandbox) -> None:
    tests = "import random\nseen = [random.randint(0, 10 ** 9) for _ in range(3)]\nassert f(seen) % 7 == 3\n"
    verdicts = {judged(sandbox, "def f(xs): return sum(xs)", tests) for _ in range(3)}
    assert len(verdicts) == 1


def cases(inputs: list, outputs: list, name: str | None = None) -> str:
    return json.dumps({"inputs": inputs, "outputs": outputs, **({"fn_name": name} if name else {})})


ADD = "a, b = map(int, input().split())\nprint(a + b)\n"


@pytest.mark.parametrize(
    ("code", "tests", "reason"),
    [
        (ADD, cases(["1 2\n", "3 4"], ["3\n", "7"]), ""),
        (ADD, cases(["1 2", "3 4"], ["3", "8"]), "wrong output in case 2"),
        (ADD, cases([["1 2", "9 9"]], [["3"]]), ""),
        (ADD, cases(["1"], ["3"]), "the program raised ValueError in case 1"),
        ("print(", cases([""], [""]), "syntax error line 1"),
        ("if __name__ == '__main__':\n    print(input())", cases(["ä"], ["ä"]), ""),
        ("import sys\nprint(sys.stdin.read().upper(), end='')\nsys.exit()", cases(["a\nb"], ["A\nB\n"]), ""),
        ("print(1 / 3)", cases([""], ["0.333333333"]), ""),
        ("while True: pass", cases([""], ["1"]), "time limit in case 1"),
        ("x = bytearray(1 << 40)", cases([""], ["1"]), "memory limit in case 1"),
        ("raise SystemExit(3)", cases([""], [""]), "the program ended with status 3 in case 1"),
        ("def add(a, b):\n    return a + b", cases([[1, 2], [3, 4]], [3, [7]], "add"), ""),
        ("def add(a, b):\n    return a + b", cases([[1, 2], [3, 4]], [3, 8], "add"), "tests failed: case 2"),
        ("class Solution:\n    def pair(self, x):\n        return (x, {1: x})", cases([[5]], [[5, {"1": 5}]], "pair"), ""),
        ("def f(x): return x", cases([1], [1], "f"), "the tests cannot be read: each input must be a list of arguments"),
        ("def f(x): return x", cases([], []), "no check was executed"),
        ("def f(x): return x", '{"inputs": [1]}', "the tests cannot be read: inputs and outputs must be lists of one length"),
    ],
)
def test_input_output_pairs_pass_or_fail_with_a_reason(sandbox: Sandbox, code: str, tests: str, reason: str) -> None:
    verdict = judged(sandbox, code, tests, limits=SandboxLimits(wall_s=3.0, memory_mib=256))
    assert (verdict.passed, verdict.reason) == (not reason, reason)


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("1 2\n", "1 2", True),
        ("1 2", "1 3", False),
        ("x", "", False),
        ("1.0000000001", "1.0", True),
        ("1.0", "1", False),
        ("nan", "0.5", False),
        ("Yes", "YES", False),
        ("1 2 3", "1 2", False),
        ("1_0.5", "10.5", False),
        ("١٠.٥", "10.5", False),
        ("+1.05e1", "10.5", True),
        ("." + "9" * 350, "1.0", True),
    ],
)
def test_outputs_are_compared_by_lines_and_then_by_words(found: str, expected: str, same: bool) -> None:
    assert same_output(found, expected) is same


# ---- the verifier ----


def item(tests: str, preamble: str = "") -> TaskItem:
    return TaskItem("id", "code", "test", 0, "test", "q", tests, AnswerKind.PROGRAM, 4, preamble=preamble)


def response(code: str) -> str:
    return f"<think>\nStep 1: write it\n</think>\n<answer>\n```python\n{code}\n```\n</answer>"


def test_verifier_takes_the_last_python_block_after_the_preamble(sandbox: Sandbox) -> None:
    verifier = ProgramVerifier(ProgramJudge(lambda: sandbox))
    right = item("assert area(2) == 13\n", "from math import pi\n")
    assert verifier.is_correct(right, "```python\nfirst\n```\n" + response("def area(r): return round(pi * r * r)"))
    assert not verifier.is_correct(right, response("def area(r): return 0"))
    assert verifier.verdict(right, "def area(r): return 13").reason == "no python block"
    by_kind = VerifierByKind(programs=verifier)
    assert by_kind.is_correct(right, response("def area(r): return 13"))


class NoSandbox:
    """Fails when used; a verifier must not need one for text without a program."""

    name = "absent"

    def __call__(self) -> Sandbox:
        raise UsageError("programs cannot be isolated here")


def test_without_a_sandbox_a_program_is_refused_but_a_missing_one_is_just_wrong() -> None:
    verifier = ProgramVerifier(ProgramJudge(NoSandbox()))
    assert not verifier.is_correct(item("assert f(1) == 1"), "no program here")
    for _ in range(2):
        with pytest.raises(UsageError, match="isolated"):
            verifier.is_correct(item("assert f(1) == 1"), response("def f(x): return x"))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.text(max_size=60), st.text(max_size=40))
def test_verifier_accepts_any_text_without_raising(sandbox: Sandbox, code: str, tests: str) -> None:
    verifier = ProgramVerifier(ProgramJudge(lambda: sandbox, SandboxLimits(wall_s=5.0)))
    assert verifier.is_correct(item(tests), response(code)) is False
    assert verifier.is_correct(item("assert f(1) == 1"), response(code)) is False


def test_oversized_program_is_wrong(sandbox: Sandbox) -> None:
    assert "larger than" in judged(sandbox, "#" * (5 << 20), "assert f(1) == 1").reason
    assert "larger than" in judged(sandbox, "def f(x): return x", "#" * (5 << 20)).reason


def counted(monkeypatch: pytest.MonkeyPatch, result: ProgramVerdict | Exception) -> tuple[list[ProgramTests], threading.Event]:
    """judge_program replaced by one that counts, waits for the event, and gives `result`."""
    calls: list[ProgramTests] = []
    go = threading.Event()

    def judge(given: ProgramTests, *_: object) -> ProgramVerdict:
        calls.append(given)
        go.wait(20)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(program, "judge_program", judge)
    return calls, go


def test_equal_programs_are_judged_once_even_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, go = counted(monkeypatch, ProgramVerdict(True, "", 1))
    judge = ProgramJudge(lambda: None, at_once=4)  # type: ignore[arg-type, return-value]
    found: list[ProgramVerdict] = []
    threads = [threading.Thread(target=lambda: found.append(judge.verdict(ProgramTests("a", "b")))) for _ in range(8)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    assert (len(calls), len(found)) == (1, 8)
    judge.verdict(ProgramTests("a", "b", "other preamble"))
    judge.verdict(ProgramTests("a", "other tests"))
    assert len(calls) == 3


def test_number_of_concurrent_programs_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, lock = 0, 0, threading.Lock()
    gate = threading.Barrier(2)

    def judge(given: ProgramTests, *_: object) -> ProgramVerdict:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(20)
        with lock:
            running -= 1
        return ProgramVerdict(True, "", 1)

    monkeypatch.setattr(program, "judge_program", judge)
    judges = ProgramJudge(lambda: None, at_once=2)  # type: ignore[arg-type, return-value]
    threads = [threading.Thread(target=judges.verdict, args=(ProgramTests(str(n), ""),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 2


def test_sandbox_failure_is_raised_to_all_and_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, go = counted(monkeypatch, SandboxError("broken"))
    go.set()
    judge = ProgramJudge(lambda: None)  # type: ignore[arg-type, return-value]
    for _ in range(2):
        with pytest.raises(SandboxError, match="broken"):
            judge.verdict(ProgramTests("a", "b"))
    assert len(calls) == 2


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
