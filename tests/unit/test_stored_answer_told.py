"""An answer that the coordinator gave again is told as one, beside the answer and in why."""

from __future__ import annotations

from dataclasses import replace

from edge.cli.output import source_line, why_lines
from edge.serve.ports import AnswerNote

NOTE = AnswerNote("a1", "local", "answered on this device", calls_left=12, adapter_version=3, latency_s=0.42)


def test_an_answer_from_the_coordinators_store_is_told_as_one_that_cost_nothing() -> None:
    stored = source_line(replace(NOTE, source="cloud", cached=True))
    assert "from the coordinator's store, not charged" in stored
    assert "store" not in source_line(replace(NOTE, source="cloud"))
    [charged] = [line for line in why_lines({"source": "cloud", "charged_uusd": 0, "cached": True}) if line.startswith("charged")]
    assert charged.endswith("0.00 USD; from the coordinator's store, not charged")
