"""The event of a finished step: nested parts in code, one flat object on disk and over HTTP."""

from __future__ import annotations

from edge.state.events import StepFinished
from tests.unit.test_console import step

NEWER = ("families", "prices", "base_version", "serving_version", "gate", "gate_reason", "gate_before", "gate_after", "gate_rate")
NEWER += ("floor_s", "times_floor", "uncalled", "cloud_samples", "cloud_sample_tokens")


def test_step_event_round_trips() -> None:
    event = step(3)
    assert StepFinished.from_json(event.to_json()) == event


def test_on_disk_it_is_flat_without_part_names() -> None:
    written = step(3).to_json()
    assert written["kind"] == "step_finished"
    assert (written["kept_accuracy"], written["dual_after"], written["cloud_calls"], written["gate"]) == (0.5, 0.48, 0, "")
    assert not {"control", "scores", "cloud", "update", "adapter", "time"} & set(written)


def test_step_of_an_older_version_has_defaults_for_newer_fields() -> None:
    older = {name: value for name, value in step(3).to_json().items() if name not in NEWER}
    event = StepFinished.from_json(older)
    assert (event.scores.families, event.adapter.base_version, event.time.floor_s, event.cloud.cloud_samples) == ((), -1, None, 0)
