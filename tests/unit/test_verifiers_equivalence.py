"""Equivalence of mathematical answers: what is equal, what is not, and no input can hang or break the caller."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.core.errors import EdgeError, UsageError
from edge.core.types import AnswerKind, TaskItem
from edge.verifiers import equivalence as module
from edge.verifiers.by_kind import VerifierByKind
from edge.verifiers.equivalence import Equivalence
from edge.verifiers.math_answer import MathAnswer, MathVerdict, both_verdicts

pytest.importorskip("math_verify", reason="equivalence needs math-verify (extra lab)")


@pytest.fixture(scope="module")
def same() -> Iterator[Equivalence]:
    equivalence = Equivalence()
    yield equivalence
    equivalence.close()


def item(answer: str) -> TaskItem:
    return TaskItem("id", "math", "test", 0, "test", "q", answer, AnswerKind.MATH, 4)


EQUIVALENT = [
    ("\\frac{3}{4}", "0.75"),
    ("\\frac{1}{2}", "1/2"),
    ("1\\frac{1}{2}", "\\frac{3}{2}"),
    ("18", "18.00"),
    ("10{,}000", "10000"),
    ("\\$5", "5"),
    ("5\\text{ cm}", "5"),
    ("90^\\circ", "90"),
    ("10\\%", "0.1"),
    ("2\\sqrt{3}", "\\sqrt{12}"),
    ("x^2-1", "(x-1)(x+1)"),
    ("y=2x+1", "y=1+2x"),
    ("x=3", "3"),
    ("2+3=5", "2+3=5.0"),
    ("5", "x=2+3=5"),
    ("x=1, y=2", "x = 1, y = 2"),
    ("5\\%", "0.05"),
    ("0", "0\\%"),
    ("x\\in[1,2]", "[1,2]"),
    ("(-\\infty,2)\\cup(3,\\infty)", "(3,\\infty)\\cup(-\\infty,2)"),
    ("\\{1,2,3\\}", "\\{3,1,2\\}"),
    ("1,2,3", "3,2,1"),
    ("\\text{Tuesday}", "Tuesday"),
    ("\\text{(A)}", "A"),
    ("1.50", "1.5"),
    ("1e16", "10000000000000000"),
    ("1.5E-3", "0.0015"),
    ("6.02e23", "6.02\\times 10^{23}"),
    ("-2e+2", "-200.0"),
    ("123456789012345678", "123456789012345678.0"),
    ("1\u202f000.50", "1000.5"),
    ("12\u00a0345.0", "12{,}345"),
    ("2x\u200b+3", "3+2x\ufeff"),
]

DIFFERENT = [
    ("5", "4=5"),
    ("5", "3=4=5"),
    ("5", "x=4=5"),
    ("4=5", "5"),
    ("\\frac{1}{2}", "\\frac{1}{3}=\\frac{1}{2}"),
    ("1000", "999=1{,}000"),
    ("10", "10=10\\%"),
    ("10", "10\\%"),
    ("10\\%", "10"),
    ("0.5", "0.50%"),
    ("5", "٥"),  # digits of another script
    ("\\frac{1}{3}", "0.33"),
    ("\\pi", "3.14159"),
    ("x^2-1", "x^2+1"),
    ("[0,1)", "[0,1]"),
    ("(1,2)", "(2,1)"),
    ("\\{1,2\\}", "\\{1,2,3\\}"),
    ("5", "5 \\text{ or } 6"),
    ("3", "3, 4"),
    ("11", "1,1"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\3\\end{pmatrix}"),
    ("\\text{even}", "\\text{odd}"),
    ("1e5", "5e"),
    ("1e16", "1e17"),
    ("1e-3", "-0.001"),
    ("7", ""),
    ("7", "\\text{seven?}"),
]


@pytest.mark.parametrize(("reference", "answer"), EQUIVALENT)
def test_answers_that_mean_the_same_are_equivalent(same: Equivalence, reference: str, answer: str) -> None:
    assert same.equivalent(reference, answer)


@pytest.mark.parametrize(("reference", "answer"), DIFFERENT)
def test_answers_that_mean_something_else_are_not(same: Equivalence, reference: str, answer: str) -> None:
    assert not same.equivalent(reference, answer)


small = st.integers(-50, 50)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(small, st.integers(1, 30), st.integers(2, 9))
def test_a_fraction_equals_its_expansion_and_no_other_value(same: Equivalence, top: int, bottom: int, factor: int) -> None:
    reference = f"\\frac{{{top}}}{{{bottom}}}"
    assert same.equivalent(reference, f"\\frac{{{top * factor}}}{{{bottom * factor}}}")
    other = Fraction(top, bottom) + Fraction(1, 7)
    assert not same.equivalent(reference, f"\\frac{{{other.numerator}}}{{{other.denominator}}}")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.text(st.sampled_from("0123456789xyi+-*/^_(){}[]\\,.=<>!% "), max_size=20))
def test_any_text_is_accepted_without_raising(same: Equivalence, text: str) -> None:
    assert isinstance(same.equivalent("7", text), bool)


HOSTILE = [
    "9^{9^{9}}",
    "{" * 200 + "}" * 200,
    "\\sqrt{" * 80 + "7" + "}" * 80,
    "1" * 400 + "^{99999}",
    "x" * 1_000_000,
    "7\x00",
    "7\n[1]\n",
    "\ud800",
    "\\input{/etc/passwd}",
    "__import__('os').system('true')",
]


def test_hostile_answers_are_wrong_in_bounded_time_even_off_the_main_thread() -> None:
    judge = MathAnswer("equivalent", Equivalence(cpu_s=0.3))
    verdicts: list[MathVerdict] = []

    def judge_all() -> None:
        verdicts.extend(judge.verdict(item("7"), f"\\boxed{{{text}}}") for text in HOSTILE)

    thread = threading.Thread(target=judge_all)
    thread.start()
    thread.join()
    assert verdicts == [MathVerdict(False, False)] * len(HOSTILE)
    assert judge.is_correct(item("\\frac{1}{2}"), "\\boxed{0.5}")  # and it still judges afterwards
    judge.close()


def test_process_beyond_its_cpu_limit_is_killed_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("print('ready', flush=True)\ninput()\nwhile True: pass\n")
    monkeypatch.setattr(module, "_WORKER", worker)
    equivalence = Equivalence(cpu_s=0.2, wall_s=1e6)
    done: list[bool] = []
    asker = threading.Thread(target=lambda: done.append(equivalence.equivalent("\\frac{1}{2}", "0.5")), daemon=True)
    asker.start()
    asker.join(60.0)
    assert done == [False]
    equivalence.close()


def test_closing_ends_the_process() -> None:
    before = set(psutil.Process().children())
    equivalence = Equivalence()
    assert equivalence.equivalent("\\frac{1}{2}", "0.5")
    (process,) = set(psutil.Process().children()) - before
    equivalence.close()
    assert not process.is_running()


def test_one_comparison_gives_both_verdicts_and_the_configured_match_decides_the_reward() -> None:
    judge = both_verdicts()
    assert judge.verdict(item("0.5"), "\\boxed{\\frac12}") == MathVerdict(exact=False, equivalent=True)
    assert judge.verdict(item("0.5"), "\\boxed{0.5}") == MathVerdict(exact=True, equivalent=True)
    assert judge.verdict(item("0.5"), "0.5") == MathVerdict(exact=False, equivalent=False)
    assert not judge.is_correct(item("0.5"), "\\boxed{\\frac12}")
    judge.close()
    lenient = MathAnswer("equivalent")
    assert VerifierByKind(math=lenient).is_correct(item("0.5"), "\\boxed{\\frac12}")
    lenient.close()


def test_without_math_verify_the_choice_of_equivalence_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="math-verify") as caught:
        MathAnswer("equivalent")
    assert "-m pip install math-verify" in caught.value.hint
    assert both_verdicts().verdict(item("1"), "\\boxed{2}") == MathVerdict(exact=False, equivalent=None)


def test_a_process_that_cannot_start_is_an_error_and_not_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MEMORY_BYTES", 1)
    with pytest.raises(EdgeError, match="did not start"):
        Equivalence().equivalent("\\frac{1}{2}", "0.5")
