"""Answer verifiers on right, wrong and tricky answers."""

from __future__ import annotations

import pytest

from edge.core.errors import UsageError
from edge.core.types import AnswerKind, TaskItem
from edge.verifiers.by_kind import VerifierByKind


def item(answer: str, kind: AnswerKind = AnswerKind.MATH, options: tuple[str, ...] = ()) -> TaskItem:
    return TaskItem("id", "math", "test", 0, "test", "q", answer, kind, 4, options)


@pytest.mark.parametrize(
    ("reference", "response", "right"),
    [
        ("42", "\\boxed{42}", True),
        ("42", "\\boxed{41} no, \\boxed{42}", True),
        ("42", "\\boxed{42} no, \\boxed{41}", False),
        ("1200", "\\boxed{1,200}", True),
        ("-3", "\\boxed{ -3 }", True),
        ("42", "42", False),
        ("42", "\\boxed{042}", False),
        ("(1,2)", "\\boxed{(1, 2)}", True),
        ("(12)", "\\boxed{(1,2)}", False),
    ],
)
def test_math_answers_compare_the_last_box_exactly(reference: str, response: str, right: bool) -> None:
    assert VerifierByKind().is_correct(item(reference), response) is right


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("\\boxed{B}", True),
        ("\\boxed{(b)}", True),
        ("\\boxed{1}", True),
        ("\\boxed{iron}", True),
        ("\\boxed{A}", False),
        ("\\boxed{Z}", False),
        ("\\boxed{}", False),
        ("B", False),
    ],
)
@pytest.mark.parametrize("reference", ["B", "1", "iron"])
def test_choices_are_named_by_letter_index_or_text(reference: str, response: str, right: bool) -> None:
    choice = item(reference, AnswerKind.CHOICE, ("gold", "iron", "tin"))
    assert VerifierByKind().is_correct(choice, response) is right


def test_a_kind_without_a_verifier_is_refused_rather_than_counted_wrong() -> None:
    with pytest.raises(UsageError, match="no verifier"):
        VerifierByKind().is_correct(item("x", AnswerKind.PROGRAM), "```python\n```")
