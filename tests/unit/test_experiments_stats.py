"""Intervals and measures of experiments, compared with hand-computed or tabulated values."""

from __future__ import annotations

import math
import statistics
from random import Random
from typing import Any

import pytest

from tools.experiments.left_out import GROUPS, estimated, left_out
from tools.experiments.left_out import side_by_side as side_by_side_left
from tools.experiments.measures import (
    accuracy,
    at_random,
    by_threshold,
    difference,
    kept_accuracy,
    rate,
)
from tools.experiments.stats import over_seeds, over_seeds_and_items, t_quantile

EVALUATION: dict[str, Any] = {
    "asked": "1100", "own": "0010", "forced": "0110", "cloud": "1101", "joint": "1110",
    "help": [2.0, 1.0, 1.0, None], "router": [0.9, 0.2, None, 0.8], "router_fit": {"threshold": 0.5},
}  # fmt: skip


def _of(statistic: Any, rule: Any, evaluation: Any = EVALUATION) -> Any:
    return statistic([sum(column) for column in zip(*(share.columns for share in rule(evaluation)), strict=True)])


@pytest.mark.parametrize(
    ("df", "value"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (1e7, 1.960)]
)
def test_students_quantiles_match_the_tables(df: float, value: float) -> None:
    assert t_quantile(df) == pytest.approx(value, abs=6e-4)


def test_the_interval_over_seeds_is_students() -> None:
    found = over_seeds([0.2, 0.4, 0.6])
    assert found.mean == pytest.approx(0.4)
    assert found.half == pytest.approx(4.3027 * 0.2 / math.sqrt(3), rel=1e-4)


def test_with_one_seed_the_interval_is_that_of_the_items() -> None:
    columns = [[(1.0, 0.0, 0.0, right) for right in (1.0, 0.0, 1.0, 1.0, 0.0)]]
    found = over_seeds_and_items(columns, accuracy)
    assert found is not None
    assert found.mean == pytest.approx(0.6)
    # the variance of a mean of five: s²/5 with s² = 0.3; four degrees of freedom
    assert found.half == pytest.approx(2.7764 * math.sqrt(0.3 / 5), rel=1e-4)


def test_seeds_and_items_both_widen_the_interval() -> None:
    seeds = [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
    found = over_seeds_and_items([[(1.0, 0.0, 0.0, right) for right in items] for items in seeds], accuracy)
    assert found is not None
    between = ((0.5 - 0.625) ** 2 + (0.75 - 0.625) ** 2) / 1 / 2
    by_item = [1.0, 1.0, 0.5, 0.0]  # means over seeds
    items = sum((value - 0.625) ** 2 for value in by_item) / 3 / 4
    variance = between + items
    df = variance**2 / (between**2 / 1 + items**2 / 3)
    assert found.mean == pytest.approx(0.625)
    assert found.half == pytest.approx(t_quantile(df) * math.sqrt(variance), rel=1e-9)


def _population(draw: Random, items: int) -> dict[str, Any]:
    """Log-odds of asking that predict local failures more or less well; a cloud that is nearly always right."""
    hard = [draw.gauss(0.0, 1.0) for _ in range(items)]
    bits = (
        "".join("01"[draw.random() < chance] for chance in of)
        for of in ([1 / (1 + math.exp(2 * z - 1.2)) for z in hard], [0.99] * items)
    )
    forced, cloud = bits
    return {"items": items, "asked": "0" * items, "forced": forced, "cloud": cloud, "help": hard}


def test_interval_of_a_ranking_covers_the_variation_over_new_items() -> None:
    """With the threshold held fixed the difference's would be nearly twice as wide as the truth, the accuracy's too narrow."""
    draw, pairs = Random(7), ((by_threshold(0.3),), (by_threshold(0.3), at_random(0.3)))
    values: list[list[float]] = [[], []]
    halves: list[list[float]] = [[], []]
    for _ in range(100):
        evaluation = _population(draw, 200)
        left = [left_out(evaluation, rule) for rule in pairs[1]]
        for index, found in enumerate(
            (estimated([left[0]], accuracy), estimated([side_by_side_left(*left)], difference(accuracy)))
        ):
            assert found is not None and found.half is not None
            values[index].append(found.mean)
            halves[index].append(found.half / t_quantile(GROUPS - 1))
    true = [statistics.stdev(one) for one in values]
    half_widths = [math.sqrt(statistics.fmean(half**2 for half in one)) for one in halves]
    assert half_widths[0] == pytest.approx(true[0], rel=0.15)
    assert true[1] * 0.9 < half_widths[1] < true[1] * 1.4


def test_leaving_one_group_out_ranks_the_others() -> None:
    """One item a group. At half, the first of two that are left is sent."""
    evaluation = {"asked": "000", "forced": "010", "cloud": "111", "help": [3.0, 2.0, 1.0]}
    (whole, *without) = left_out(evaluation, by_threshold(0.5))
    assert whole == [3.0, 1.5, 0.5, 2.0]
    assert sorted(sums for sums in without if sums != whole) == [[2.0, 1.0, 0.0, 1.0], [2.0, 1.0, 0.0, 1.0], [2.0, 1.0, 1.0, 2.0]]


def test_random_routing_equals_its_expectation() -> None:
    assert _of(rate, at_random(0.3)) == pytest.approx(0.3)
    assert _of(accuracy, at_random(0.3)) == pytest.approx(0.7 * 0.5 + 0.3 * 0.75)
    assert _of(kept_accuracy, at_random(0.3)) == pytest.approx(0.5)


def test_a_threshold_sends_the_highest_log_odds_and_ties_share_the_rest() -> None:
    evaluation = {**EVALUATION, "asked": "0000"}
    assert [share.asked for share in by_threshold(0.5)(evaluation)] == [1.0, 0.5, 0.5, 0.0]
    # right: cloud; half forced right, half cloud right; half forced right, half cloud wrong; forced wrong
    assert _of(accuracy, by_threshold(0.5), evaluation) == pytest.approx((1.0 + 1.0 + 0.5 + 0.0) / 4)
