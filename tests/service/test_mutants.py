"""A planted bug counts as found only where a test fails on it; a bug that keeps the tests from running has no verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.mutants import MutantError, killed

PRODUCT = "RATE = 3\n\n\ndef double(x):\n    return x + x\n"
TESTS = """
import pytest
import product


@pytest.fixture
def rate():
    return 6 // product.RATE


def test_double():
    assert product.double(3) == 6


def test_rate(rate):
    assert rate
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "product.py").write_text(PRODUCT)
    (tmp_path / "test_product.py").write_text(TESTS)
    return tmp_path


@pytest.mark.parametrize(("after", "found"), [("x * x", True), ("2 * x", False)])
def test_a_bug_is_killed_by_a_test_that_fails_and_survives_where_all_pass(tree: Path, after: str, found: bool) -> None:
    assert killed(tree, ("product.py", "x + x", after), ["test_product.py"]) is found
    assert (tree / "product.py").read_text() == PRODUCT


@pytest.mark.parametrize(
    ("before", "after", "tests", "reason"),
    [
        ("x + x", "x +", "test_product.py", "SyntaxError"),
        ("RATE = 3", "RATE = three", "test_product.py", "NameError"),
        ("RATE = 3", "RATE = 0", "test_product.py", "ZeroDivisionError"),
        ("x + x", "x * x", "test_product.py::test_of_before", "not found"),
        ("x + x", "x * x", "product.py", "status 5"),
        ("x - x", "x * x", "test_product.py", "0 times"),
        ("x", "y", "test_product.py", "3 times"),
    ],
    ids=["no syntax", "no import", "no set-up", "no such test", "no tests", "no such line", "several lines"],
)
def test_a_bug_has_no_verdict_where_the_tests_cannot_run(tree: Path, before: str, after: str, tests: str, reason: str) -> None:
    with pytest.raises(MutantError, match=reason):
        killed(tree, ("product.py", before, after), [tests])
    assert (tree / "product.py").read_text() == PRODUCT
