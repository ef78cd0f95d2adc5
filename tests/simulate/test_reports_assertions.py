"""What a scenario states of its run, and whether it holds."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.core.errors import UsageError
from tests.simulate.sample_results import histogram, sample_cloud, sample_group, sample_result, sample_series
from tools.simulate.reports.assertions import check_sentences, evaluate
from tools.simulate.reports.result import GroupResult, SimulationResult
from tools.simulate.reports.sentences import EXAMPLES, nearest, parse


def holds(sentence: str, result: SimulationResult) -> bool:
    return evaluate(result, [sentence])[0].holds


def found(sentence: str, result: SimulationResult) -> str:
    return evaluate(result, [sentence])[0].found


def group(**changed: object) -> GroupResult:
    return msgspec.structs.replace(sample_group(1, "laptops"), **changed)


def run(*groups: GroupResult, **changed: object) -> SimulationResult:
    return sample_result(groups=list(groups) or [group()], **changed)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_documented_form_is_understood_and_judged(example: str) -> None:
    check_sentences([example])
    assert evaluate(sample_result(), [example])[0].found


def test_a_percentile_is_of_all_answers_of_the_groups_and_the_source_that_are_named() -> None:
    fast = group(name="fast", latency_total={"local": histogram([1.0] * 98), "cloud": histogram([3.0] * 2)})
    slow = group(name="slow", latency_total={"local": histogram([9.0] * 100)})
    result = run(fast, slow)
    assert holds("p95 of fast < 1.1 s", result) and holds("p99 of fast >= 2.9 s", result)
    assert holds("p50 of cloud answers of fast within 0.1 s of 3 s", result)
    assert holds("p49 <= 1100 ms", result) and holds("p51 > 8.9 s", result)
    assert not holds("p95 of each group < 5 s", result)
    assert found("p95 of each group < 5 s", result) == "p95 9 s (slow)"


def test_the_first_token_is_judged_by_its_own_latencies() -> None:
    result = run(group(latency_first={"local": histogram([0.2])}, latency_total={"local": histogram([5.0])}))
    assert holds("p95 first token < 300 ms", result)
    assert not holds("p95 < 300 ms", result)


@pytest.mark.parametrize(
    ("sentence", "says"),
    [
        ("p95 < 4 s", "p95: no answers"),
        ("p95 of cloud answers < 4 s", "p95: no cloud answers"),
        ("joint accuracy > 10 %", "joint accuracy: no answers"),
        ("rate within 1 of τ after warm-up", "rate: no answers (laptops)"),
        ("fairness > 0", "fairness: no answers"),
        ("spend per answer < $5", "spend per answer: no answers"),
    ],
)
def test_a_figure_that_does_not_exist_makes_an_assertion_not_hold_and_says_so(sentence: str, says: str) -> None:
    silent = group(answers={}, latency_first={}, latency_total={}, assist_rate=None, settled_assist_rate=None, accuracy=None)
    result = run(silent, cloud=msgspec.structs.replace(sample_cloud([silent]), jain_index=None))
    judged = evaluate(result, [sentence])[0]
    assert not judged.holds
    assert judged.found == says


def test_what_was_not_counted_is_not_taken_for_none() -> None:
    assert holds("no lost answers", run(group(lost=0)))
    assert not holds("no lost answers", run(group(lost=1)))
    assert found("no lost answers", run(group(lost=None))) == "lost answers: was not measured"


def test_a_rate_of_several_groups_weighs_each_by_its_answers() -> None:
    many, few = group(assist_rate=0.1, answers={"local": 300}), group(name="few", assist_rate=0.5, answers={"local": 100})
    assert holds("rate within 0.001 of 0.2", run(many, few))
    assert holds("rate of few = 50 %", run(many, few))


def test_each_group_is_held_to_its_own_target_rate_and_the_worst_is_told() -> None:
    near = group(name="near", target_rate=0.2, settled_assist_rate=0.22)
    far = group(name="far", target_rate=0.5, settled_assist_rate=0.4, assist_rate=0.5)
    assert holds("rate of near within 0.05 of tau after warm-up", run(near, far))
    judged = evaluate(run(near, far), ["rate within 0.05 of τ after warm-up"])[0]
    assert (judged.holds, judged.found) == (False, "rate 0.400, τ 0.5 (far)")
    assert holds("rate of far within 0.05 of τ", run(near, far))


def test_a_schedule_of_target_rates_is_followed_stretch_by_stretch_each_after_its_own_warm_up() -> None:
    series = sample_series(1, "x", 100, 0.2)
    count = len(series.at_s)
    targets = [0.1] * (count // 2) + [0.4] * (count - count // 2)
    late = [0.1] * (count // 2 + 4) + [0.4] * (count - count // 2 - 4)
    followed = msgspec.structs.replace(series, target_rate=targets, assist_rate=late)
    mean = msgspec.structs.replace(series, target_rate=targets, assist_rate=[0.25] * count)
    sentence = "rate within 0.03 of τ after warm-up"
    assert holds(sentence, run(group(series=followed)))
    assert not holds("rate within 0.0001 of τ", run(group(series=followed)))
    said = found(sentence, run(group(series=mean)))
    assert "worst of 2 stretches of one τ, each after a warm-up of 4 h of its own" in said and not holds(
        sentence, run(group(series=mean))
    )


def test_learning_is_held_to_its_own_target_rate_where_a_dial_sets_another_one_for_people() -> None:
    dialled = group(target_rate=0.5, training_target_rate=0.2, settled_assist_rate=0.5, settled_training_assist_rate=0.2)
    assert holds("training rate within 0.01 of τ after warm-up", run(dialled))
    assert holds("rate within 0.01 of τ after warm-up", run(dialled))


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
    assert holds("spend <= budget", scaled) is kept


def test_the_moment_a_budget_was_passed_is_told_and_one_that_is_not_in_force_holds_nothing() -> None:
    assert found("spend <= budget", budgeted([100_000, 3_000_000], [2_000_000] * 2)) == "3.00 USD of 2.00 USD at 0.5 h"
    assert found("spend <= budget", budgeted([100_000, 1_000_000], [2_000_000] * 2)) == "at most 1.00 USD of 2.00 USD"
    assert found("spend <= budget", budgeted([1], [None])) == "no budget of spend is in force"
    assert not holds("calls <= budget", run())


@given(st.lists(st.integers(0, 100), min_size=1, max_size=12), st.integers(0, 100))
def test_under_an_unchanging_limit_within_one_window_a_budget_is_kept_exactly_if_no_total_passes_it(
    steps: list[int], limit: int
) -> None:
    totals = [sum(steps[: number + 1]) for number in range(len(steps))]
    assert holds("spend <= budget", budgeted(totals, [limit] * len(totals))) is (totals[-1] <= limit)


@pytest.mark.parametrize(
    ("sentence", "says", "near"),
    [
        ("p95 < 4", "p95 is a time (4 s, 800 ms), not '4'", "p95 < 4 s"),
        ("p95 under 4 s", "it compares nothing", "p95 < 4 s"),
        ("latency < 4 s", "no figure is called 'latency'", "mean latency < 3 s"),
        ("accuracy > 70", "70 is no share: did you mean 70 %?", "accuracy of phones >= 0.6"),
        ("spend <= 3.50", "spend is a sum ($3.50), not '3.50'", "spend < $3.50"),
        ("spend < budget", "a budget is kept with <=", "spend <= budget"),
        ("energy <= budget", "a budget limits spend and calls", "energy of laptops < 200 Wh"),
        ("queue of phones < 3", "queue is of the whole fleet, not of a group", "queue <= 200"),
        ("accuracy within 0.1 of τ", "τ is the aim of rate and training rate", "accuracy of phones >= 0.6"),
        ("p95 < 4 s after warm-up", "p95 is not told after the warm-up alone", "p95 < 4 s"),
        ("rate of local answers < 0.3", "rate is not told by source", "rate of laptops within 0.03 of 0.2"),
        ("no energy", '"no" goes with a count, and energy is an energy (200 Wh, 1.5 kWh)', "no lost answers"),
        ("spend of phones <= budget", "the budget is the fleet's, not a group's", "spend <= budget"),
        ("p101 < 3 s", "no figure is called 'p101'", "p50 of local answers <= 800 ms"),
        ("", "it compares nothing", ""),
    ],
)
def test_a_sentence_that_is_not_understood_is_refused_with_the_reason_and_the_nearest_valid_form(
    sentence: str, says: str, near: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        check_sentences(["p95 < 4 s", sentence])
    assert says in str(refusal.value)
    assert near in refusal.value.hint


@given(st.text(max_size=40))
def test_any_text_is_either_understood_or_refused_in_one_line(text: str) -> None:
    hint = ""
    try:
        assert math.isfinite(parse(text).tolerance)
    except UsageError as error:
        hint = error.hint
    assert not hint or nearest(text) in hint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("lambda within 0.1 of 0.5", "λ within 0.1 of 0.5"),
        ("rate within 5 % of tau", "rate within 0.05 of τ"),
        ("p95 ≤ 800 ms", "p95 <= 0.8 s"),
        ("Energy of laptops < 1.2 kWh.", "energy of laptops < 1,200 Wh"),
        ("energy < 2 MWh", "energy < 2000 kWh"),
        ("median < 2 s", "p50 < 2 s"),
        ("p95 within 50 % of 2 s", "p95 within 1 s of 2 s"),
        ("spend<$3", "spend < 3 USD"),
    ],
)
def test_ways_to_write_the_same_are_the_same(one: str, other: str) -> None:
    first, second = parse(one), parse(other)
    assert (first.quantity.name, first.op, first.aim, first.group) == (second.quantity.name, second.op, second.aim, second.group)
    assert first.tolerance == pytest.approx(second.tolerance)


def test_a_group_that_no_scenario_has_is_refused_before_the_run_and_does_not_hold_after_it() -> None:
    check_sentences(["p95 of each group < 4 s", "p95 of cloud answers of laptops < 4 s"], groups=["laptops"])
    with pytest.raises(UsageError, match="no group is called 'laptop'") as refusal:
        check_sentences(["p95 of laptop < 4 s"], groups=["laptops", "phones"])
    assert refusal.value.hint == "groups: laptops, phones"
    assert found("p95 of laptop < 4 s", run()) == "no group is called laptop"


def test_what_lies_on_the_limit_of_a_tolerance_keeps_it() -> None:
    assert holds("rate within 0.1 of 0.2", run(group(assist_rate=0.1 + 0.2)))
    assert not holds("rate within 0.1 of 0.2", run(group(assist_rate=0.3001)))
