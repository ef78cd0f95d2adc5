"""Floors of a shared budget: their laws, checked by brute force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.ledger.fairness import PPM, floor_target, highest_floor, unused_floor
from edge.dagrpo.dual import dual_step, shared_lr

USED = st.lists(st.integers(0, 30), max_size=6)


@given(st.integers(0, 30), USED, st.integers(0, 60))
def test_floor_is_the_largest_that_the_rest_can_guarantee(target: int, used: list[int], free: int) -> None:
    expected = max(floor for floor in range(target + 1) if unused_floor(floor, used) <= free)
    assert highest_floor(target, used, free) == expected


@given(st.integers(0, 100), st.integers(0, PPM), st.integers(1, 12))
def test_all_floors_together_fit_into_the_limit(limit: int, ppm: int, members: int) -> None:
    target = floor_target(limit, ppm, members)
    assert target * members <= limit
    assert (target + 1) * members * PPM > limit * ppm


def test_nothing_is_guaranteed_for_an_unlimited_unit_or_without_members() -> None:
    assert floor_target(None, PPM, 3) == 0
    assert floor_target(10, PPM, 0) == 0
    assert highest_floor(0, [], 0) == 0


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20), st.integers(0, 4))
def test_round_of_equal_reports_moves_a_shared_dual_like_one_report(sizes: list[int], quarters: int) -> None:
    """For any share of the round, while λ stays above 0."""
    dual = 5.0
    for size in sizes:
        dual = dual_step(dual, quarters / 4, 0.3, shared_lr(0.02, size, sum(sizes)))
    assert dual == pytest.approx(dual_step(5.0, quarters / 4, 0.3, 0.02), abs=1e-12)


@pytest.mark.parametrize(("units", "round_units"), [(0, 5), (6, 5), (-1, 5), (1, 0)])
def test_units_that_are_no_share_of_a_round_are_refused(units: int, round_units: int) -> None:
    with pytest.raises(ValueError, match="share"):
        shared_lr(0.1, units, round_units)
