"""Unlabelled questions have their own label regardless of what is learned; and the label in older folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge.budget.dial import Dials, HelpDial
from edge.config.schema import PhaseConfig
from edge.core.errors import PermissionDenied
from edge.core.types import Message
from edge.state.answer_record import AnswerRequest
from edge.state.events import Notice
from edge.state.folder import StateFolder
from edge.state.rows import Terms
from edge.testing.clock import ManualClock
from tests.unit.agent_world import World


def asked(number: int) -> AnswerRequest:
    return AnswerRequest((Message("user", f"What is {number} + 1?"),))


async def test_unlabelled_questions_have_their_own_label_through_phases_and_restarts(tmp_path: Path) -> None:
    labels = []
    for source in ("sums", "other"):
        world = World(tmp_path / "state", phases=(PhaseConfig(source=source, steps=2),))
        async with world.agent() as agent:
            labels.append((await agent.answerer.answer(asked(1))).task)
            await agent.learn()
            labels.append((await agent.answerer.answer(asked(2))).task)
            assert agent.status().task != "chat" and agent.budgets.serving_task == "chat"
    assert labels == ["chat"] * 4


async def test_every_label_that_is_served_learned_or_has_terms_is_known(tmp_path: Path) -> None:
    async with World(tmp_path / "state").agent() as agent:
        await agent.learn()
    async with World(tmp_path / "state", phases=(PhaseConfig(source="other", steps=2),)).agent() as agent:
        assert {"chat", "math", "code"} <= set(agent.budgets.tasks)
        assert all(map(agent.budgets.is_known, agent.budgets.tasks))
        assert not agent.budgets.is_known("mathh")


async def test_label_forbidden_to_people_is_reported_with_advice(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    world.client.fail_next("get_budget", PermissionDenied("not a task of this device"))
    async with world.agent():
        (text,) = [event.text for event in world.events(Notice)]
    assert "chat" in text and "serve.task" in text


def older(folder: Path, *, own: dict[str, float], last: str, default: float | None = None) -> None:
    """A state folder of a version in which people's questions had the label that was being learned."""
    with StateFolder(folder) as state:
        for task in ("group1", "group2"):
            state.note_terms(Terms(task, 0.3, 0.5, 1))
            dial = HelpDial(own.get(task, default), task, own=task in own, set_at=1.0 if task == "group1" else 2.0)
            dial.answered(dial.setting(), True, 0.7)
            with state.database:
                state.database.execute("REPLACE INTO dials VALUES (?, ?)", (task, dial.to_json()))
        dial = HelpDial(0.9, "letters", own=True, set_at=9.0)  # of a client that names its label
        with state.database:
            state.database.execute("REPLACE INTO dials VALUES (?, ?)", ("letters", dial.to_json()))
            state.database.execute("DELETE FROM meta WHERE key = 'dial_of_own_label'")
        state.put_request("a", 1.0, {"id": "a", "task": last})


@pytest.mark.parametrize(
    ("own", "last", "rate", "is_own"),
    [
        ({"group1": 0.1}, "group2", 0.1, True),  # it was set for one's questions before learning went on to the next phase
        ({"group1": 0.1, "group2": 0.2}, "group1", 0.1, True),
        ({"group1": 0.1, "group2": 0.2}, "letters", 0.2, True),
        ({}, "group2", None, False),
    ],
)
def test_dial_set_on_an_older_label_applies_to_own_questions(
    tmp_path: Path, own: dict[str, float], last: str, rate: float | None, is_own: bool
) -> None:
    older(tmp_path / "state", own=own, last=last)
    for _ in range(2):
        with StateFolder(tmp_path / "state") as state:
            dials = Dials(state, None, ManualClock())
            dial = dials.of("chat")
            assert (dial.target_rate, dial.own) == (rate, is_own)
            assert dial.snapshot().known_log_odds == (1 if own or last != "letters" else 0), "and its statistics of the model"
            assert dials.of("group1").own is ("group1" in own), "those of the older labels stay"


@pytest.mark.parametrize(("learned", "answered", "adopted"), [("group1", "", ""), ("", "math", ""), ("", "letters", "letters")])
def test_dial_of_a_label_never_used_by_people_is_not_adopted(tmp_path: Path, learned: str, answered: str, adopted: str) -> None:
    with StateFolder(tmp_path / "state") as state:
        if learned:
            state.note_terms(Terms(learned, 0.3, 0.5, 1))
        if answered:
            state.put_request("a", 1.0, {"id": "a", "task": answered})
        with state.database:
            dial = HelpDial(0.15, "letters", own=True, set_at=9.0)  # edge-agent budget set 15% --task letters
            state.database.execute("REPLACE INTO dials VALUES (?, ?)", ("letters", dial.to_json()))
        dials = Dials(state, 0.3, ManualClock())
        assert (dials.of("chat").target_rate, state.meta("dial_of_own_label")) == ((0.15 if adopted else 0.3), adopted)


def test_a_new_folder_adopts_nothing_and_a_forgotten_dial_does_not_come_back(tmp_path: Path) -> None:
    with StateFolder(tmp_path / "new") as state:
        Dials(state, None, ManualClock()).set(0.1, "letters")
    with StateFolder(tmp_path / "new") as state:
        assert Dials(state, None, ManualClock()).tasks == ("letters",)
    older(tmp_path / "state", own={"group1": 0.1}, last="group1")
    with StateFolder(tmp_path / "state") as state:
        Dials(state, None, ManualClock()).forget("chat")
    with StateFolder(tmp_path / "state") as state:
        assert "chat" not in Dials(state, None, ManualClock()).tasks
        assert json.loads(json.dumps(state.meta("dial_of_own_label"))) == "group1"
