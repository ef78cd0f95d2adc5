"""Intervals and measures of experiments, compared with hand-computed or tabulated values."""

from __future__ import annotations

import math
import statistics
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.experiments.measures import (
    GROUPS,
    accuracy,
    at_random,
    by_threshold,
    difference,
    estimated,
    forgetting,
    kept_accuracy,
    oracle,
    own_decision,
    rate,
    routed,
    side_by_side,
    tally,
)
from tools.experiments.stats import Estimate, over_seeds, t_quantile

EVALUATION: dict[str, Any] = {
    "asked": "1100", "own": "0010", "forced": "0110", "cloud": "1101", "joint": "1110",
    "help": [2.0, 1.0, 1.0, None], "router": [0.9, 0.2, None, 0.8], "router_fit": {"threshold": 0.5},
}  # fmt: skip


def _of(statistic: Any, rule: Any, evaluation: Any = EVALUATION) -> Any:
    return statistic([sum(column) for column in zip(*(share.columns for share in rule(evaluation)), strict=True)])


def _own(seeds: list[dict[str, Any]], statistic: Any = accuracy) -> Estimate | None:
    """Over the seeds and the items of each, as the models decide."""
    return estimated([tally({"source": "a", **one}, own_decision, grouped=False) for one in seeds], statistic)


def _right(bits: str) -> dict[str, Any]:
    return {"asked": "0" * len(bits), "own": bits, "joint": bits}


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
    found = _own([_right("10110")])
    assert found is not None
    assert found.mean == pytest.approx(0.6)
    # the variance of a mean of five: s²/5 with s² = 0.3; four degrees of freedom
    assert found.half == pytest.approx(2.7764 * math.sqrt(0.3 / 5), rel=1e-4)


def test_seeds_and_items_both_widen_the_interval() -> None:
    found = _own([_right("1100"), _right("1110")])
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
        left = [tally(evaluation, rule, grouped=True) for rule in pairs[1]]
        for index, found in enumerate((estimated([left[0]], accuracy), estimated([side_by_side(*left)], difference(accuracy)))):
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
    whole, without = tally(evaluation, by_threshold(0.5), grouped=True)
    assert whole == [3.0, 1.5, 0.5, 2.0]
    assert sorted(map(list, without.values())) == [[2.0, 1.0, 0.0, 1.0], [2.0, 1.0, 0.0, 1.0], [2.0, 1.0, 1.0, 2.0]]


def test_single_item_has_no_interval() -> None:
    evaluation = {"asked": "0", "forced": "0", "cloud": "1", "help": [1.0]}
    found = estimated([tally(evaluation, by_threshold(1.0), grouped=True)], accuracy)
    assert found is not None and (found.mean, found.half) == (1.0, 0.0)
    assert _own([_right("1")]) == found


def test_mean_is_undefined_when_a_seed_has_no_value() -> None:
    assert _own([{"asked": "111", "own": "000", "joint": "111"}], kept_accuracy) is None


def test_own_decision_of_the_model_counts_local_and_overall_right_answers() -> None:
    assert _of(rate, own_decision) == 0.5
    assert _of(accuracy, own_decision) == 0.75
    assert _of(kept_accuracy, own_decision) == 0.5


def test_random_routing_equals_its_expectation() -> None:
    assert _of(rate, at_random(0.3)) == pytest.approx(0.3)
    assert _of(accuracy, at_random(0.3)) == pytest.approx(0.7 * 0.5 + 0.3 * 0.75)
    assert _of(kept_accuracy, at_random(0.3)) == pytest.approx(0.5)


def test_router_sends_items_above_its_threshold_and_keeps_unseen_ones() -> None:
    assert [share.asked for share in routed(EVALUATION)] == [1.0, 0.0, 0.0, 1.0]
    assert _of(accuracy, routed) == 1.0


def test_a_threshold_sends_the_highest_log_odds_and_ties_share_the_rest() -> None:
    evaluation = {**EVALUATION, "asked": "0000"}
    assert [share.asked for share in by_threshold(0.5)(evaluation)] == [1.0, 0.5, 0.5, 0.0]
    # right: cloud; half forced right, half cloud right; half forced right, half cloud wrong; forced wrong
    assert _of(accuracy, by_threshold(0.5), evaluation) == pytest.approx((1.0 + 1.0 + 0.5 + 0.0) / 4)


def test_items_the_model_asks_about_itself_are_sent_first() -> None:
    evaluation = {**EVALUATION, "asked": "0010", "help": [2.0, 1.0, -1.5, None]}
    assert [share.asked for share in by_threshold(0.25)(evaluation)] == [0.0, 0.0, 1.0, 0.0]
    assert [share.asked for share in by_threshold(0.5)(evaluation)] == [1.0, 0.0, 1.0, 0.0]


def test_the_oracle_sends_only_what_the_cloud_gets_right() -> None:
    evaluation = {"forced": "1100", "cloud": "1010"}
    assert [oracle(evaluation, share) for share in (0.0, 0.25, 0.5, 1.0)] == [0.5, 0.75, 0.75, 0.75]


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(-5, 5)), min_size=1, max_size=30), st.floats(0.0, 1.0))
def test_no_threshold_beats_the_oracle_with_a_perfect_cloud(items: list[tuple[bool, bool, float]], share: float) -> None:
    bits = ["".join("01"[value] for value in column) for column in ([one[0] for one in items], [True for _ in items])]
    evaluation = {"forced": bits[0], "cloud": bits[1], "help": [round(one[2], 1) for one in items], "asked": "0" * len(items)}
    assert _of(rate, by_threshold(share), evaluation) == pytest.approx(share)
    assert _of(accuracy, by_threshold(share), evaluation) <= oracle(evaluation, share) + 1e-9


def test_forgetting_is_the_loss_of_earlier_accuracy() -> None:
    after = {**EVALUATION, "joint": "1000"}
    both = side_by_side(*(tally({"source": "a", **one}, own_decision, grouped=False) for one in (EVALUATION, after)))
    assert forgetting(accuracy)(both.whole) == pytest.approx((0.75 - 0.25) / 0.75)
