"""Comparison of two evaluations: local accuracy, overall accuracy at one rate, and the changed questions."""

from __future__ import annotations

import pytest

from edge.learning.comparison import Asking, changed_examples, compare
from edge.state.rows import ExamAnswer

QUESTIONS = {key: f"question {key}" for key in "abcd"}


def answers(right: str, wants_help: str, known: str = "abcd") -> dict[str, ExamAnswer]:
    """Right on these, and in this order the likeliest to ask."""
    odds = {key: float(-place) for place, key in enumerate([*wants_help, *(key for key in known if key not in wants_help)])}
    return {key: ExamAnswer(key in right, odds[key], f"answer {key}") for key in known}


def test_asking_about_unsolved_items_is_a_gain_without_more_local_right_answers() -> None:
    before, after = answers(right="ab", wants_help="ab"), answers(right="ab", wants_help="cd")
    found = compare(before, after, Asking(0.5, 0.9))
    assert (found["right_then"], found["right_now"], found["gained"]) == (2, 2, 0)
    assert found["in_the_end"]["before"] == pytest.approx(2 / 4), "asking for what it can do would not pay"
    assert found["in_the_end"]["after"] == pytest.approx((2 + 2 * 0.9) / 4)
    changes = [one["change"] for one in changed_examples(before, after, Asking(0.5, 0.9), QUESTIONS)]
    assert changes == ["asks now", "asks now"]


def test_same_rate_applies_before_and_after_regardless_of_the_tendency_to_ask() -> None:
    eager = {key: ExamAnswer(answer.right, answer.help_log_odds + 9.0) for key, answer in answers("ab", "cd").items()}
    assert Asking(0.25, 1.0).asked(eager, eager) == Asking(0.25, 1.0).asked(answers("ab", "cd"), "abcd") == {"c"}
    assert Asking(0.5, 0.0).asked(eager, eager) == set(), "a cloud that is never right is not asked"
    assert Asking(0.5, 0.0).right_in_the_end(eager, eager) == 0.5
    assert Asking(0.0, 1.0).right_in_the_end(eager, eager) == 0.5
    assert Asking(1.0).right_in_the_end(eager, eager) == 0.5, "a cloud of which no answer was judged counts for nothing"
