"""Weighted scores, their intervals, the report's shape, and the cost-quality curve."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.core.errors import EdgeError
from edge.dagrpo.metrics import effective_trials, wilson_interval, wilson_interval_of_share
from edge.evaluation.cost_quality import cost_quality, threshold_curve
from edge.evaluation.judging import WRONG, Bill, Candidate, Judged, JudgedItem, Verdict
from edge.evaluation.scores import Measured, build_report, score
from tests.worlds.agent import item

RIGHT = Verdict(True)


def judged(number: int, *, asked: bool = False, weight: float = 1.0, **facts: Any) -> JudgedItem:
    local = facts.pop("local", True)
    cloud = facts.pop("cloud", None)
    own = RIGHT if local and not asked else WRONG
    joint = (None if cloud is None else Verdict(cloud)) if asked else own
    known: dict[str, Any] = {"tokens": 10, "help_log_odds": None, "bill": Bill(), **facts}
    verdict = None if cloud is None else Verdict(cloud)
    return JudgedItem(Candidate(item(number), weight), Judged(asked, True, own, Verdict(local), joint, verdict, **known))


def measured(**changes: Any) -> Measured:
    facts: dict[str, Any] = {
        "sources": ("sums",), "model": "m", "model_sha256": "", "adapter": None, "adapter_version": 0, "temperature": 0.0, "seed": 0,
        "max_tokens": 64, "max_steps": None, "per_level": None, "cloud": "coordinator", "cloud_all": True,
    }  # fmt: skip
    return Measured(**{**facts, **changes})


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_with_equal_weights_shares_and_intervals_are_those_of_the_counts(outcomes: list[tuple[bool, bool]]) -> None:
    items = [judged(n, asked=asked, local=local, cloud=True, weight=0.3) for n, (asked, local) in enumerate(outcomes)]
    scores = score(items)
    right = sum(local for _, local in outcomes)
    assert scores.forced_local_accuracy == right / len(outcomes)
    assert scores.intervals.forced_local_accuracy == pytest.approx(wilson_interval(right, len(outcomes)))
    assert scores.coverage == pytest.approx(sum(not asked for asked, _ in outcomes) / len(outcomes))


def test_weights_apply_to_every_share_and_local_accuracy_is_weighted_by_local_answers() -> None:
    items = [judged(0, weight=3.0), judged(1, weight=1.0, local=False), judged(2, weight=4.0, asked=True, cloud=True)]
    scores = score(items)
    assert (scores.assist_rate, scores.kept_accuracy, scores.forced_local_accuracy) == (0.5, 0.75, 7 / 8)
    assert scores.joint_accuracy == 7 / 8


def test_weighted_interval_uses_the_effective_number_of_items() -> None:
    items = [judged(0, weight=3.0), judged(1, weight=1.0, local=False)]
    assert effective_trials([3.0, 1.0]) == pytest.approx(1.6)
    assert score(items).intervals.forced_local_accuracy == pytest.approx(wilson_interval_of_share(0.75, 1.6))


def test_without_local_answers_there_is_no_local_accuracy() -> None:
    scores = score([judged(0, asked=True, cloud=True)])
    assert (scores.kept_accuracy, scores.intervals.kept_accuracy, scores.coverage) == (None, None, 0.0)


def test_report_is_json_by_family_and_level_with_the_measured_setup() -> None:
    bill = Bill(1, 30, 7)
    items = [judged(n, asked=n % 2 == 0, cloud=True, bill=bill) for n in range(6)]
    body = json.loads(json.dumps(build_report(measured(), items).to_json(), allow_nan=False))
    assert (body["schema"], body["model"], body["with_cloud"], body["cloud"]) == (1, "m", True, "coordinator")
    [family] = body["families"]
    assert (family["family"], [level["level"] for level in family["levels"]]) == ("sums", [1, 2, 3])
    assert (body["scores"]["cloud_calls"], body["extra"]) == (3, {"calls": 3, "tokens": 90, "spend_uusd": 21, "cached": 0})
    assert sum(level["scores"]["items"] for level in family["levels"]) == 6


def test_scores_survive_json() -> None:
    for one in (judged(0), judged(1, asked=True, cloud=False, help_log_odds=float("-inf"), bill=Bill(1, 2, 3))):
        assert Judged.from_json(json.loads(json.dumps(one.judged.to_json()))) == one.judged


# --- the curve ------------------------------------------------------------------------------------------------------------


def knowing(number: int, local: bool, log_odds: float | None, cloud: bool = True, **facts: Any) -> JudgedItem:
    return judged(number, local=local, cloud=cloud, help_log_odds=log_odds, **facts)


def test_the_curve_runs_from_forced_local_to_the_cloud() -> None:
    points = list(threshold_curve([knowing(0, False, 2.0), knowing(1, True, 1.0), knowing(2, True, -1.0, cloud=False)]))
    assert [point.threshold for point in points] == [None, 2.0, 1.0, -1.0]
    assert [round(point.assist_rate, 6) for point in points] == [0.0, 0.333333, 0.666667, 1.0]
    assert [round(point.joint_accuracy, 6) for point in points] == [0.666667, 1.0, 1.0, 0.666667]


def test_items_without_a_decision_are_never_sent() -> None:
    items = [knowing(0, False, None), knowing(1, False, 1.0)]
    quality = cost_quality(build_report(measured(), items), items)
    assert (quality.points[-1].assist_rate, quality.points[-1].joint_accuracy, quality.without_decision) == (0.5, 0.5, 0.5)


@given(st.lists(st.tuples(st.booleans(), st.floats(-5, 5)), min_size=1, max_size=30))
def test_no_threshold_beats_the_oracle_when_the_cloud_is_always_right(facts: list[tuple[bool, float]]) -> None:
    items = [knowing(number, local, log_odds) for number, (local, log_odds) in enumerate(facts)]
    quality = cost_quality(build_report(measured(), items), items)
    local = quality.forced_local_accuracy
    for point in quality.points:
        assert point.joint_accuracy <= local + min(point.assist_rate, 1 - local) + 1e-9
    json.dumps(quality.to_json(), allow_nan=False)


def test_infinite_log_odds_stay_comparable_and_can_be_written() -> None:
    items = [knowing(0, False, float("inf")), knowing(1, True, float("-inf"))]
    text = json.dumps(cost_quality(build_report(measured(), items), items).to_json(), allow_nan=False)
    assert json.loads(text)["points"][1]["joint_accuracy"] == 1.0


def test_curve_needs_every_cloud_answer() -> None:
    items = [knowing(0, True, 1.0), judged(1)]
    with pytest.raises(EdgeError, match="not known for 1 of 2 items"):
        cost_quality(build_report(measured(), items), items)
