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
    assert (capsys.readouterr().out, said(state)) == (
        'noted: bad, right is "it is 5" · id a1 · learned from by the next `edge-agent run`\n',
        Feedback("a1", "bad", "it is 5"),
    )
    assert main(["feedback", "a1", "none", "--json", *place]) == 0
    assert json.loads(capsys.readouterr().out) == {"id": "a1", "verdict": "none", "correction": None, "outlook": ""}
    assert said(state) == Feedback("a1", "none")


def test_a_verdict_on_the_last_answer_is_kept_under_its_id(state: Path, capsys: Capture) -> None:
    assert main(["feedback", "last", "good", "--state", str(state)]) == 0
    assert (capsys.readouterr().out, said(state)) == (
        "noted: good · id a1 · learned from by the next `edge-agent run`\n",
        Feedback("a1", "good"),
    )


@pytest.mark.parametrize(
    ("verdict", "record", "settings", "outlook"),
    [
        (("good",), {}, (), "learned from by the next"),
        (("bad",), {}, (), "say what is right"),
        (("bad", "5"), {"turns": 3}, (), "only questions that stand alone"),
        (("bad", "5"), {"held": True}, (), "only questions that stand alone"),
        (("bad", "5"), {}, ("--set", "use.feedback=false"), "not learned from: use.feedback"),
        (("bad", "5"), {}, ("--set", "use.share=0"), "not learned from: use.feedback"),
    ],
)
def test_what_becomes_of_a_verdict_is_reported(
    state: Path, capsys: Capture, verdict: tuple[str, ...], record: dict[str, object], settings: tuple[str, ...], outlook: str
) -> None:
    with StateFolder(state) as folder:
        folder.put_request("a2", 6.0, {"id": "a2", "final": "4", **record})
    assert main(["feedback", "a2", *verdict, "--state", str(state), *settings]) == 0
    assert outlook in capsys.readouterr().out


def test_an_answer_that_is_not_there_is_told_and_nothing_is_made(state: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["feedback", "a2", "good", "--state", str(state)]) == 1
    assert capsys.readouterr().err == f"error: no answer with id a2 in {state}; the id stands on the line below each answer\n"
    empty = tmp_path / "empty"
    assert main(["feedback", "a2", "good", "--state", str(empty)]) == 1
    assert capsys.readouterr().err == f"error: no answer with id a2: nothing was asked in {empty} yet\n"
    assert not empty.exists()


def test_a_correction_stays_when_the_answer_is_called_bad_again_and_goes_with_the_verdict(state: Path, capsys: Capture) -> None:
    place = ["--state", str(state)]
    assert main(["feedback", "a1", "bad", "seven", *place]) == 0
    assert main(["feedback", "a1", "bad", *place]) == 0
    assert said(state).correction == "seven"
    capsys.readouterr()
    assert main(["why", "a1", *place]) == 0
    told = capsys.readouterr().out
    assert "verdict:        bad\n" in told and "correction:     seven\n" in told
    assert main(["feedback", "a1", "none", *place]) == 0
    assert main(["feedback", "a1", "bad", *place]) == 0
    assert said(state).correction is None
    assert main(["feedback", "a1", "bad", "\x1b[2J", *place]) == 2
    assert "control characters" in capsys.readouterr().err


def test_what_is_no_id_is_told_and_nothing_is_looked_up(state: Path, capsys: Capture) -> None:
    for words in (("feedback", "a b", "good"), ("why", "../a1"), ("why", "caf\udce9"), ("feedback", "", "bad")):
        assert main([*words, "--state", str(state)]) == 2
        assert "is no id of an answer; give the id that stands beside an answer" in capsys.readouterr().err
    assert main(["why", "chatcmpl-a1", "--json", "--state", str(state)]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "a1"


def test_a_folder_in_use_or_damaged_is_told_in_one_line(state: Path, capsys: Capture) -> None:
    with StateFolder(state):
        assert main(["feedback", "a1", "good", "--state", str(state)]) == 1
    assert "another agent is using this state folder" in capsys.readouterr().err
    (state / "agent.sqlite").write_bytes(b"not a database" * 100)
    assert main(["feedback", "a1", "good", "--state", str(state)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
