"""A task file with several labels: each is learned with its own steps, terms, data and held-out questions. Unlabelled questions have
their own label regardless of what is learned."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from edge.config.schema import GateConfig, PhaseConfig
from edge.core.errors import PermissionDenied, TaskFileError
from edge.core.types import Message
from edge.learning.activity import read_activity
from edge.learning.curriculum import Curriculum
from edge.learning.forgetting import phase_spans
from edge.state.answer_record import AnswerRequest
from edge.state.events import Notice
from edge.state.folder import StateFolder
from edge.tasks.registry import open_source
from tests.worlds.agent import World

SHARES = {"geo": 12, "zoo": 6, "law": 2}


def labelled(folder: Path) -> str:
    records = [
        {
            "question": f"What is {number} + 1 in {label}?",
            "answer": number + 1,
            "label": label,
            "split": "test" if number == 0 else "train",
        }
        for label, count in SHARES.items()
        for number in range(count + 1)
    ]
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


async def test_each_step_has_one_label_and_each_label_its_share(tmp_path: Path) -> None:
    source = labelled(tmp_path)
    world = World(tmp_path / "state", phases=(PhaseConfig(source=source, steps=20),))
    world = replace(world, open_source=open_source)
    await world.learn(max_steps=7)
    async with world.agent() as agent:  # a restart continues in turn
        finished = await agent.learn()
        steps = agent.components.state.steps()
        assert {task for task in SHARES if agent.components.state.terms(task)} == set(SHARES)
    assert finished.reason == "done"
    assert {(step.task, step.source) for step in steps} == {(label, f"{source}#{label}") for label in SHARES}
    made = Counter(step.task for step in steps)
    assert abs(made["geo"] - 12) <= 1 and abs(made["zoo"] - 6) <= 1 and abs(made["law"] - 2) <= 1
    assert [(span.task, span.end) for span in phase_spans(steps)] == [(task, 20) for task in made]
    whole = World(tmp_path / "whole", phases=(PhaseConfig(source=source, steps=20),))
    async with replace(whole, open_source=open_source).agent() as agent:
        await agent.learn()
        assert [step.task for step in agent.components.state.steps()] == [step.task for step in steps]


def test_labels_have_their_own_data_validation_and_held_out_questions(tmp_path: Path) -> None:
    source = labelled(tmp_path)
    with StateFolder(tmp_path / "state") as state:
        curriculum = Curriculum([PhaseConfig(source=source, target_rate=0.2)], open_source, state, 0, 3)
        assert curriculum.tasks == ["geo", "law", "zoo"]
        assert {(one.task, len(one.items)) for one in curriculum.held_out(9)} == {(task, 1) for task in SHARES}
        assert [item.task for item in curriculum.anchors(f"{source}#zoo", 9)[f"{source}#zoo"]] == ["zoo"]
        assert curriculum.rate_of("zoo") == 0.2
        plan = curriculum.next_step()
        assert plan is not None and {item.task for item in plan.items} == {plan.task}
        one = Curriculum([PhaseConfig(source=source, task="all")], open_source, state, 0, 3)
        assert one.tasks == ["all"] and len(one.held_out(9)[0].items) == 3


async def test_label_with_only_held_out_questions_is_evaluated_and_never_learned(tmp_path: Path) -> None:
    source = labelled(tmp_path)
    with Path(source).open("a", encoding="utf-8") as file:
        for number in range(4):
            record = {"question": f"What is {number} + 2 in tax?", "answer": number + 2, "label": "tax", "split": "test"}
            file.write(json.dumps(record) + "\n")
    world = World(
        tmp_path / "state", phases=(PhaseConfig(source=source, steps=20),), gate=GateConfig(every=10, recheck_every=None)
    )
    async with replace(world, open_source=open_source).agent() as agent:
        assert {(one.source, len(one.items)) for one in agent.learning.held_out(9)} >= {(f"{source}#tax", 4)}
        await agent.learn()
        assert {step.task for step in agent.components.state.steps()} == set(SHARES)
        assert "tax" not in agent.components.curriculum.tasks
    report = read_activity(tmp_path / "state", 0.0, 1e12)
    examined = {task["source"]: task["items"] for task in report["tasks"]}
    assert examined == {f"{source}#{label}": (4 if label == "tax" else 1) for label in (*SHARES, "tax")}


def test_a_file_of_several_labels_without_a_training_question_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "held.jsonl"
    records = [{"question": f"q{number}", "answer": number, "label": f"l{number}", "split": "test"} for number in range(3)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    with StateFolder(tmp_path / "state") as state, pytest.raises(TaskFileError, match="no training item"):
        Curriculum([PhaseConfig(source=str(path))], open_source, state, 0, 3)


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
