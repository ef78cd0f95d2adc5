"""The line below an answer: what it reports of the budget, and when it omits it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge.cli.output import print_line, source_line, why_lines
from edge.console import spoken
from edge.serve.agent_schemas import ExplanationView
from edge.serve.ports import AnswerNote
from edge.state.events import AnswerFinished, Notice, Offline

NOTE = AnswerNote("a1", "local", "answered on this device", calls_left=12, adapter_version=3, latency_s=0.42)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("low", True),
        ("used_up", True),
        ("offline", True),
        ("paused", True),
        ("switched_off", True),
        ("ok", False),
        ("newer", False),
    ],
)
def test_low_quota_replaces_the_calls_left(state: str, shown: bool) -> None:
    line = source_line(replace(NOTE, quota={"state": state, "line": "20 of 20 calls"}))
    assert ("20 of 20 calls" in line, "12 calls left" in line) == (shown, not shown)


STEERS = "\x1b]0;owned\x07\x1b[2Jok\u202e\x9b1m"
SHOWN = "\\x1b]0;owned\\x07\\x1b[2Jok\\u202e\\x9b1m"


@pytest.mark.parametrize("field", ["final", "reason", "cloud_text", "local_text", "correction", "cloud_model"])
def test_stored_answer_cannot_inject_terminal_codes(field: str) -> None:
    answer = ExplanationView.model_validate({"id": "a1", "source": "cloud", "reason": "", field: STEERS})
    (shown,) = [line for line in why_lines(answer) if "owned" in line]
    assert shown.endswith(SHOWN)


def test_coordinator_message_cannot_inject_terminal_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert SHOWN in source_line(replace(NOTE, reason=f"the cloud cannot be reached ({STEERS})"))
    finished = AnswerFinished("a1", "local-fallback", STEERS, None, None, 0, 0.1, 0, 0)
    for event in (finished, Offline(STEERS, 0.0), Notice(STEERS, 0.0)):
        assert SHOWN in spoken(event)
    print_line(f"quota: {STEERS}")
    assert capsys.readouterr().err == f"quota: {SHOWN}\n"
