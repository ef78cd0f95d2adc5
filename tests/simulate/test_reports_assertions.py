"""What a scenario states of its run, and whether it holds."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.worlds.sample_results import histogram, sample_cloud, sample_group, sample_result, sample_series
from tools.simulate.reports.assertions import Assertion, evaluate
from tools.simulate.reports.quantities import METRICS
from tools.simulate.reports.result import AssertionResult, GroupResult, SimulationResult


def judged(result: SimulationResult, metric: str, op: str, value: float, **more: object) -> AssertionResult:
    return evaluate(result, [Assertion.model_validate({"metric": metric, "op": op, "value": value, **more})])[0]


def group(**changed: object) -> GroupResult:
    return msgspec.structs.replace(sample_group(1, "laptops"), **changed)


def run(*groups: GroupResult, **changed: object) -> SimulationResult:
    return sample_result(groups=list(groups) or [group()], **changed)


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_is_measured(metric: str) -> None:
    found = judged(sample_result(), metric, ">=", 0.0).found
    assert found.startswith(metric) or found == "no budget is in force"


def test_a_percentile_is_of_all_answers_of_the_groups_and_the_source_that_are_named() -> None:
    fast = group(name="fast", latency_total={"local": histogram([1.0] * 98), "cloud": histogram([3.0] * 2)})
    slow = group(name="slow", latency_total={"local": histogram([9.0] * 100)})
    result = run(fast, slow)
    assert judged(result, "p95", "<", 1.1, group="fast").holds
    assert judged(result, "p50", ">", 2.9, group="fast", source="cloud").holds
    assert judged(result, "p49", "<=", 1.1).holds and judged(result, "p51", ">", 8.9).holds
    of_each = judged(result, "p95", "<", 5, group="each")
    assert (of_each.sentence, of_each.holds, of_each.found) == ("p95 of each group < 5 s", False, "p95 9 s (slow)")


@pytest.mark.parametrize(
    ("metric", "more"),
    [
        ("p95", {}),
        ("p95", {"source": "cloud"}),
        ("joint accuracy", {}),
        ("rate off target", {"after_warm_up": True}),
        ("fairness", {}),
    ],
)
def test_an_assertion_on_an_unknown_figure_fails_with_the_reason(metric: str, more: dict[str, object]) -> None:
    silent = group(answers={}, latency_first={}, latency_total={}, assist_rate=None, settled_assist_rate=None, accuracy=None)
    result = run(silent, cloud=msgspec.structs.replace(sample_cloud([silent]), jain_index=None))
    found = judged(result, metric, "<=", 1.0, **more)
    assert not found.holds
    assert found.found.startswith(f"{metric}: no ")


def test_a_lost_answer_breaks_the_assertion_that_none_is_lost() -> None:
    assert judged(run(group(lost=0)), "lost answers", "==", 0).holds
    assert not judged(run(group(lost=1)), "lost answers", "==", 0).holds


def test_each_group_is_held_to_its_own_target_rate() -> None:
    near = group(name="near", target_rate=0.2, settled_assist_rate=0.22)
    far = group(name="far", target_rate=0.5, settled_assist_rate=0.4, assist_rate=0.5)
    result = run(near, far)
    assert judged(result, "rate off target", "<=", 0.05, group="near", after_warm_up=True).holds
    found = judged(result, "rate off target", "<=", 0.05, after_warm_up=True)
    assert (found.holds, found.found) == (False, "rate off target 10.0 %")
    assert judged(result, "rate off target", "<=", 0.05, group="far").holds


def test_a_schedule_of_target_rates_is_followed_stretch_by_stretch_each_after_its_own_warm_up() -> None:
    series = sample_series(1, "x", 100, 0.2)
    count = len(series.at_s)
    targets = [0.1] * (count // 2) + [0.4] * (count - count // 2)
    late = [0.1] * (count // 2 + 4) + [0.4] * (count - count // 2 - 4)
    followed = run(group(series=msgspec.structs.replace(series, target_rate=targets, assist_rate=late)))
    mean = run(group(series=msgspec.structs.replace(series, target_rate=targets, assist_rate=[0.25] * count)))
    assert judged(followed, "rate off target", "<=", 0.03, after_warm_up=True).holds
    assert not judged(followed, "rate off target", "<=", 0.0001).holds
    assert not judged(mean, "rate off target", "<=", 0.03, after_warm_up=True).holds


def budgeted(used: list[int], limits: list[int | None]) -> SimulationResult:
    cloud = sample_cloud([group()])
    at = [900.0 * (number + 1) for number in range(len(used))]
    return run(cloud=msgspec.structs.replace(cloud, at_s=at, spend_uusd=used, limit_uusd=limits))


@pytest.mark.parametrize(
    ("used", "limits", "kept"),
    [
        ([1, 5, 9, 10], [10, 10, 10, 10], True),
        ([1, 5, 11, 11], [10, 10, 10, 10], False),
        ([11, 11, 11, 11], [10, 10, 10, 10], False),
        ([4, 8, 8, 8], [10, 10, 5, 5], True),
        ([4, 8, 9, 9], [10, 10, 5, 5], True),
        ([4, 8, 9, 9, 10], [10, 10, 5, 5, 5], False),
        ([4, 8, 12, 12], [10, 10, 5, 5], False),
        ([4, 9, 1, 9], [10, 10, 10, 10], True),
        ([4, 9, 1, 6], [10, 10, 5, 5], True),
        ([4, 9, 9, 1, 7], [10, 10, 5, 5, 5], False),
        ([50, 60, 60, 60], [None, None, 60, 60], True),
        ([50, 60, 60, 60, 61], [None, None, 60, 60, 60], False),
    ],
)
def test_a_budget_is_kept_at_every_moment_and_a_cut_takes_nothing_back(
    used: list[int], limits: list[int | None], kept: bool
) -> None:
    scaled = budgeted([each * 100_000 for each in used], [None if each is None else each * 100_000 for each in limits])
    assert judged(scaled, "spend over budget", "<=", 0).holds is kept


@given(st.lists(st.integers(0, 100), min_size=1, max_size=12), st.integers(0, 100))
def test_under_an_unchanging_limit_within_one_window_a_budget_is_kept_exactly_if_no_total_passes_it(
    steps: list[int], limit: int
) -> None:
    totals = [sum(steps[: number + 1]) for number in range(len(steps))]
    found = judged(budgeted(totals, [limit] * len(totals)), "spend over budget", "<=", 0)
    assert found.holds is (totals[-1] <= limit)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"metric": "latency", "op": "<", "value": 4}, "no metric is called 'latency'; nearest: "),
        ({"metric": "accuracy", "op": ">", "value": 0.7}, "nearest: local accuracy, joint accuracy"),
        ({"metric": "joint accuracy", "op": ">", "value": 70}, "joint accuracy is a share from 0 to 1, not 70"),
        ({"metric": "queue", "op": "<", "value": 3, "group": "phones"}, "queue is of the whole fleet, not of a group"),
        ({"metric": "p95", "op": "<", "value": 4, "after_warm_up": True}, "p95 is not told after the warm-up alone"),
        ({"metric": "rate", "op": "<", "value": 0.3, "source": "local"}, "rate is not told by source"),
        ({"metric": "p101", "op": "<", "value": 3}, "no metric is called 'p101'"),
        ({"metric": "p95", "op": "within", "value": 3}, "op"),
    ],
)
def test_what_is_no_assertion_is_refused_with_the_reason(written: object, says: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        Assertion.model_validate(written)
    assert says in str(refusal.value)
