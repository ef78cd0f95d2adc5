"""The event of a finished step: nested parts in code, one flat object on disk and over HTTP."""

from __future__ import annotations

from edge.state.events import StepFinished
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
