"""The promotion gate's rules, and the line of adapters that its verdicts move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.agent.line import Line
from edge.training.gate import AnchorScore, GateRules, RateScore, refusal_of

RULES = GateRules(max_drop=0.25, rate_band=0.1)
NEAR = RateScore(0.3, 0.35, None)


@pytest.mark.parametrize(("after", "passes"), [(1.0, True), (0.75, True), (0.5, True), (0.4999, False), (0.0, False)])
def test_a_task_may_fall_by_the_largest_drop_and_no_further(after: float, passes: bool) -> None:
    assert (refusal_of([AnchorScore("math", 16, 0.75, after)], NEAR, RULES) == "") is passes


def test_one_task_that_falls_is_enough_and_is_named() -> None:
    scores = [AnchorScore("math", 16, 0.5, 1.0), AnchorScore("code", 16, 0.75, 0.25)]
    assert refusal_of(scores, NEAR, RULES) == "code: 25 % of 16 anchors right, 75 % with the adapter in use"


@pytest.mark.parametrize(
    ("now", "before", "passes"),
    [
        (0.4, None, True),
        (0.2, None, True),
        (0.41, None, False),
        (0.6, 0.7, True),
        (0.6, 0.0, True),
        (0.6, 0.5, False),
        (0.0, 0.05, False),
        (0.0, 0.6, True),
    ],
)
def test_the_rate_lies_near_its_target_or_no_further_away_than_before(now: float, before: float | None, passes: bool) -> None:
    reason = refusal_of([], RateScore(0.3, now, before), RULES)
    assert (reason == "") is passes
    assert passes or "too far from the target of 30 %" in reason


def test_without_a_gate_every_step_serves() -> None:
    assert Line(3, 3).after_step(4, 3, "serves") == Line(4, 4)


def test_a_step_whose_base_was_left_changes_nothing() -> None:
    line = Line(2, 2, kept=(2,))
    assert line.after_step(5, 4, "promoted") is line


def test_refusals_in_a_row_take_training_back_and_a_promotion_forgets_them() -> None:
    line = Line(4, 4)
    for step in (5, 6):
        line = line.after_step(step, line.head, "refused", max_refusals=3)
        assert (line.head, line.serving) == (step, 4)
    assert line.after_step(7, 6, "promoted").refusals == 0
    back = line.after_step(7, 6, "refused", max_refusals=3)
    assert (back.head, back.serving, back.refusals) == (4, 4, 0)


@given(st.lists(st.sampled_from(["waits", "promoted", "refused"]), max_size=30), st.integers(1, 4), st.integers(1, 4))
def test_training_never_stands_before_what_serves_and_few_versions_are_kept(
    outcomes: list[str], max_refusals: int, keep: int
) -> None:
    line, promoted = Line(0, 0), [0]
    for step, outcome in enumerate(outcomes, 1):
        line = line.after_step(step, line.head, outcome, max_refusals=max_refusals, keep=keep)  # type: ignore[arg-type]
        promoted += [step] * (outcome == "promoted")
        assert line.serving == promoted[-1] <= line.head
        assert line.refusals < max_refusals
        assert len(line.kept) <= keep
        assert line.serving in (0, *line.kept)
        assert Line.from_json(line.to_json()) == line


def test_going_back_keeps_what_is_left() -> None:
    line = Line(9, 8, 2, kept=(3, 8)).back_to(3)
    assert (line.head, line.serving, line.refusals, line.kept) == (3, 3, 0, (8, 9, 3))
    assert Line(2, 2).back_to(0) == Line(0, 0, 0, (2,))
