"""Unlabelled questions have their own label regardless of what is learned."""

from __future__ import annotations

from pathlib import Path

from edge.config.schema import PhaseConfig
from edge.core.errors import PermissionDenied
from edge.core.types import Message
from edge.state.answer_record import AnswerRequest
from edge.state.events import Notice
from tests.worlds.agent import World


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
            assert agent.status().task != "chat" and agent.access.serving_task == "chat"
    assert labels == ["chat"] * 4


async def test_every_label_that_is_served_learned_or_has_terms_is_known(tmp_path: Path) -> None:
    async with World(tmp_path / "state").agent() as agent:
        await agent.learn()
    async with World(tmp_path / "state", phases=(PhaseConfig(source="other", steps=2),)).agent() as agent:
        assert {"chat", "math", "code"} <= set(agent.access.tasks)
        assert all(map(agent.access.is_known, agent.access.tasks))
        assert not agent.access.is_known("mathh")


async def test_label_forbidden_to_people_is_reported_with_advice(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    world.client.fail_next("get_budget", PermissionDenied("not a task of this device"))
    async with world.agent():
        (text,) = [event.text for event in world.events(Notice)]
    assert "chat" in text and "serve.task" in text
