"""`edge-agent feedback` on an idle folder: stored without a model, in the folder only."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.state.feedback import Feedback, FeedbackBook
from edge.state.folder import StateFolder
from tests.unit.conftest import EdgeAgent


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with StateFolder(tmp_path / "state") as folder:
        folder.put_request("a1", 5.0, {"id": "a1", "source": "local", "reason": "answered on this device", "final": "4"})
    return tmp_path / "state"


def feedback(state: Path) -> Feedback:
    with StateFolder(state) as folder:
        return FeedbackBook(folder).of("a1")


def test_feedback_is_stored_and_withdrawn_without_a_model(state: Path, edge_agent: EdgeAgent) -> None:
    place = ("--state", str(state), "--set", "model.path=/no/such/model.gguf")
    assert edge_agent("feedback", "chatcmpl-a1", "bad", " it is 5 ", *place).code == 0
    assert feedback(state) == Feedback("a1", "bad", "it is 5")
    assert edge_agent("feedback", "last", "good", *place).code == 0
    assert feedback(state) == Feedback("a1", "good")
    assert edge_agent("feedback", "a1", "none", "--json", *place).json == {
        "id": "a1",
        "verdict": "none",
        "correction": None,
        "outlook": "",
    }
    assert feedback(state) == Feedback("a1", "none")


@pytest.mark.parametrize(
    ("verdict", "record", "settings", "outlook"),
    [
        (("good",), {}, (), "learned from by the next"),
        (("bad",), {}, (), "write what is right"),
        (("bad", "5"), {"turns": 3}, (), "ask it in a new chat"),
        (("bad", "5"), {"held": True}, (), "ask it in a new chat"),
        (("bad", "5"), {}, ("--set", "use.feedback=false"), "not learned from: use.feedback"),
        (("bad", "5"), {}, ("--set", "use.share=0"), "not learned from: use.feedback"),
    ],
)
def test_use_of_feedback_is_reported(
    state: Path,
    edge_agent: EdgeAgent,
    verdict: tuple[str, ...],
    record: dict[str, object],
    settings: tuple[str, ...],
    outlook: str,
) -> None:
    with StateFolder(state) as folder:
        folder.put_request("a2", 6.0, {"id": "a2", "final": "4", **record})
    assert outlook in edge_agent("feedback", "a2", *verdict, "--state", str(state), *settings).out


def test_missing_answer_is_reported_and_nothing_is_created(state: Path, tmp_path: Path, edge_agent: EdgeAgent) -> None:
    edge_agent("feedback", "a2", "good", "--state", str(state)).refused(1, f"a2 in {state}")
    empty = tmp_path / "empty"
    edge_agent("feedback", "a2", "good", "--state", str(empty)).refused(1, str(empty))
    assert not empty.exists()


def test_correction_survives_a_repeated_bad_mark_and_is_removed_with_the_feedback(state: Path, edge_agent: EdgeAgent) -> None:
    place = ["--state", str(state)]
    assert edge_agent("feedback", "a1", "bad", "seven", *place).code == 0
    assert edge_agent("feedback", "a1", "bad", *place).code == 0
    assert feedback(state).correction == "seven"
    assert edge_agent("feedback", "a1", "none", *place).code == 0
    assert edge_agent("feedback", "a1", "bad", *place).code == 0
    assert feedback(state).correction is None
    edge_agent("feedback", "a1", "bad", "\x1b[2J", *place).refused(2, "control characters")


def test_only_a_bad_answer_is_corrected_and_a_verdict_before_it_stays(state: Path, edge_agent: EdgeAgent) -> None:
    place = ["--state", str(state)]
    assert edge_agent("feedback", "a1", "bad", "seven", *place).code == 0
    for verdict in ("good", "none"):
        edge_agent("feedback", "a1", verdict, "eight", *place).refused(2, "correction")
    assert feedback(state) == Feedback("a1", "bad", "seven")


def test_invalid_id_is_reported_and_nothing_is_looked_up(state: Path, edge_agent: EdgeAgent) -> None:
    for words in (("feedback", "a b", "good"), ("why", "../a1"), ("why", "caf\udce9"), ("feedback", "", "bad")):
        edge_agent(*words, "--state", str(state)).refused(2, "no id of an answer")
    assert edge_agent("why", "chatcmpl-a1", "--json", "--state", str(state)).json["id"] == "a1"
