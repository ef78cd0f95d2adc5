"""The event of a finished step: flat on disk and over HTTP, the outcomes by band, and the gain from asking."""

from __future__ import annotations

import pytest

from edge.core.types import FinishReason, LocalResponse, TaskItem
from edge.learning.rollout import ResponseOutcome, ScoredGroup, ScoredResponse
from edge.learning.step_event import band_shares, help_gain
from edge.state.events import BandShares, StepFinished
from edge.tasks.practice import FAMILIES
from tests.worlds.steps import step


def test_step_event_round_trips() -> None:
    event = step(3)
    assert StepFinished.from_json(event.to_json()) == event


def test_on_disk_it_is_flat_without_part_names() -> None:
    written = step(3).to_json()
    assert written["kind"] == "step_finished"
    assert (written["kept_accuracy"], written["dual_after"], written["cloud_calls"], written["gate"]) == (0.5, 0.48, 0, "")
    assert not {"control", "scores", "cloud", "update", "adapter", "time"} & set(written)


def test_stored_step_without_a_field_that_was_added_later_has_its_default() -> None:
    stored = {name: value for name, value in step(3).to_json().items() if name not in ("floor_s", "cloud_samples")}
    event = StepFinished.from_json(stored)
    assert (event.time.floor_s, event.cloud.cloud_samples) == (None, 0)


def scored(outcome: ResponseOutcome, right: bool, reward: float = 0.0) -> ScoredResponse:
    response = LocalResponse("", (1,), (0.0,), FinishReason.EOS)
    return ScoredResponse(response, True, outcome, right, reward, int(outcome is ResponseOutcome.ASKED))


def group(item: TaskItem, *responses: ScoredResponse) -> ScoredGroup:
    return ScoredGroup(item, (1,), responses, None)


KEPT, ASKED = ResponseOutcome.KEPT, ResponseOutcome.ASKED


def test_each_response_is_right_here_asked_or_wrong() -> None:
    known, learnable = FAMILIES["arith"].generate(0, "train", 1), FAMILIES["facts"].generate(0, "train", 1)
    groups = [
        group(known, scored(KEPT, True), scored(KEPT, False), scored(ASKED, True), scored(KEPT, True)),
        group(learnable, scored(KEPT, False), scored(ASKED, False)),
    ]
    assert band_shares(groups) == (BandShares("known", 4, 0.5, 0.25, 0.25), BandShares("learnable", 2, 0.0, 0.5, 0.5))


def test_gain_of_asking_is_counted_within_groups_that_contain_both() -> None:
    item = FAMILIES["arith"].generate(0, "train", 5)
    mixed = group(item, scored(ASKED, True, 1.0), scored(KEPT, False, 0.0), scored(KEPT, True, 1.0))
    alone = group(item, scored(ASKED, True, 1.0), scored(ASKED, True, 1.0))
    assert help_gain([mixed, alone]) == pytest.approx(0.5)
    assert help_gain([alone]) is None
    right = group(item, scored(ASKED, True, 1.0), scored(KEPT, True, 1.0))
    wrong = group(item, scored(ASKED, False, 0.0), scored(KEPT, False, 0.0))
    assert help_gain([right]) is None, "all are right: no evidence against asking"
    assert help_gain([right, wrong]) == 0.0
