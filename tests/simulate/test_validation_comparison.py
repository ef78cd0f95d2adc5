"""Real and simulated: what is compared with what, and when the goal is met."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools.simulate.validation.comparison import Row, compare, goal_is_met
from tools.simulate.validation.seen import Answered, Run, Taken

LOCAL = Answered(1.0, 1.0, 0.01, 0.05, "local", False, 40)
CLOUD = replace(LOCAL, source="cloud", asked=True, total_s=0.2)


def run(*answers: Answered, steps: tuple[Taken, ...] = ()) -> Run:
    return Run(answers, steps)


def slower(answer: Answered, by: float) -> Answered:
    return replace(answer, first_s=by * answer.first_s, total_s=by * answer.total_s)


def named(rows: list[Row], part: str) -> Row:
    (row,) = [row for row in rows if part in row.name]
    return row


@pytest.mark.parametrize(("by", "met"), [(1.0, True), (1.149, True), (0.851, True), (1.16, False), (0.84, False)])
def test_the_goal_is_met_within_fifteen_percent_on_either_side(by: float, met: bool) -> None:
    rows = compare(run(LOCAL, CLOUD), run(slower(LOCAL, by), slower(CLOUD, by)))
    assert len([row for row in rows if row.met is not None]) == 8
    assert goal_is_met(rows) is met
    assert not goal_is_met([]), "nothing was judged"


def test_what_a_person_waits_before_being_asked_counts_from_the_arrival_on() -> None:
    rows = compare(run(replace(LOCAL, began_s=3.0)), run(LOCAL))
    assert named(rows, "arrival on, p50").real == pytest.approx(2.05)
    assert named(rows, "arrival on, p50").met is None
