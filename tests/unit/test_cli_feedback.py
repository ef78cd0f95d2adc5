"""`edge-agent feedback` on a folder that no agent runs on: kept without a model, in the folder alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge.cli import main
from edge.state.feedback import Feedback, FeedbackBook
from edge.state.folder import StateFolder

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with StateFolder(tmp_path / "state") as folder:
        folder.put_request("a1", 5.0, {"id": "a1", "final": "4"})
    return tmp_path / "state"


def said(state: Path) -> Feedback:
    with StateFolder(state) as folder:
        return FeedbackBook(folder).of("a1")


def test_a_verdict_is_kept_and_taken_back_without_a_model(state: Path, capsys: Capture) -> None:
    place = ("--state", str(state), "--set", "model.path=/no/such/model.gguf")
    assert main(["feedback", "chatcmpl-a1", "bad", " it is 5 ", *place]) == 0
    assert said(state) == Feedback("a1", "bad", "it is 5")
    assert main(["feedback", "last", "good", *place]) == 0
    assert said(state) == Feedback("a1", "good")
    capsys.readouterr()
    assert main(["feedback", "a1", "none", "--json", *place]) == 0
    assert json.loads(capsys.readouterr().out) == {"id": "a1", "verdict": "none", "correction": None}
    assert said(state) == Feedback("a1", "none")


def test_an_answer_that_is_not_there_is_told_and_nothing_is_made(state: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["feedback", "a2", "good", "--state", str(state)]) == 1
    assert f"a2 in {state}" in capsys.readouterr().err
    empty = tmp_path / "empty"
    assert main(["feedback", "a2", "good", "--state", str(empty)]) == 1
    assert str(empty) in capsys.readouterr().err
    assert not empty.exists()


def test_a_correction_stays_when_the_answer_is_called_bad_again_and_goes_with_the_verdict(state: Path, capsys: Capture) -> None:
    place = ["--state", str(state)]
    assert main(["feedback", "a1", "bad", "seven", *place]) == 0
    assert main(["feedback", "a1", "bad", *place]) == 0
    assert said(state).correction == "seven"
    assert main(["feedback", "a1", "none", *place]) == 0
    assert main(["feedback", "a1", "bad", *place]) == 0
    assert said(state).correction is None
    assert main(["feedback", "a1", "bad", "\x1b[2J", *place]) == 2
    assert "control characters" in capsys.readouterr().err


def test_what_is_no_id_is_told_and_nothing_is_looked_up(state: Path, capsys: Capture) -> None:
    for words in (("feedback", "a b", "good"), ("why", "../a1"), ("why", "caf\udce9"), ("feedback", "", "bad")):
        assert main([*words, "--state", str(state)]) == 2
        assert "no id of an answer" in capsys.readouterr().err
    assert main(["why", "chatcmpl-a1", "--json", "--state", str(state)]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "a1"


def test_a_folder_in_use_or_damaged_is_told_in_one_line(state: Path, capsys: Capture) -> None:
    with StateFolder(state):
        assert main(["feedback", "a1", "good", "--state", str(state)]) == 1
    assert "another agent is using this state folder" in capsys.readouterr().err
    (state / "agent.sqlite").write_bytes(b"not a database" * 100)
    assert main(["feedback", "a1", "good", "--state", str(state)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
