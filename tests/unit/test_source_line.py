"""The line beside an answer: what it says of the budget, and when it is silent about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge.cli.output import print_line, source_line, why_lines
from edge.console import spoken
from edge.serve.ports import AnswerNote
from edge.state.events import AnswerFinished, Notice, Offline

NOTE = AnswerNote("a1", "local", "answered on this device", calls_left=12, adapter_version=3, latency_s=0.42)
PAUSED = "the cloud is paused (edge-agent budget resume ends it)"
OFF = "the cloud is switched off by EDGE_AGENT_NO_CLOUD"
HERE = "answers come from this device"


def line(state: str, told: str, **more: str) -> str:
    return source_line(replace(NOTE, quota={"state": state, "line": told}, **more))


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("low", "little is left · 19 of 20 calls · 0.0021 USD spent"),
        ("used_up", f"used up; {HERE} · 20 of 20 calls"),
        ("offline", f"offline (nobody there); {HERE}"),
        ("paused", f"{PAUSED}; {HERE}"),
        ("switched_off", f"{OFF}; {HERE}"),
    ],
)
def test_what_matters_of_the_quota_stands_in_place_of_the_calls_left(state: str, told: str) -> None:
    assert line(state, told) == f"answered locally (answered on this device) · {told} · adapter 3 · 0.4 s · id a1"


@pytest.mark.parametrize("state", ["ok", "unknown", "of a newer agent"])
def test_a_quota_that_does_not_matter_is_not_told(state: str) -> None:
    assert (
        line(state, "4 of 20 calls") == "answered locally (answered on this device) · 12 calls left · adapter 3 · 0.4 s · id a1"
    )


@pytest.mark.parametrize(("state", "reason"), [("paused", PAUSED), ("switched_off", OFF)])
def test_what_the_reason_says_is_not_said_twice(state: str, reason: str) -> None:
    assert line(state, f"{reason}; {HERE}", reason=reason).count("the cloud is") == 1


STEERS = "\x1b]0;owned\x07\x1b[2Jok\u202e\x9b1m"
SHOWN = "\\x1b]0;owned\\x07\\x1b[2Jok\\u202e\\x9b1m"


@pytest.mark.parametrize("field", ["final", "reason", "cloud_text", "local_text", "correction", "cloud_model"])
def test_nothing_in_a_stored_answer_steers_the_terminal(field: str) -> None:
    (shown,) = [line for line in why_lines({"source": "cloud", field: STEERS, "charged_uusd": 0}) if "owned" in line]
    assert shown.endswith(SHOWN)


def test_the_words_of_a_coordinator_steer_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert SHOWN in source_line(replace(NOTE, reason=f"the cloud cannot be reached ({STEERS})"))
    finished = AnswerFinished("a1", "local-fallback", STEERS, None, None, 0, 0.1, 0, 0)
    for event in (finished, Offline(STEERS, 0.0), Notice(STEERS, 0.0)):
        assert SHOWN in spoken(event)
    print_line(f"quota: {STEERS}")
    assert capsys.readouterr().err == f"quota: {SHOWN}\n"
