"""Learning from own use in addition to the phases: turns, counts, and the effect of a refusal."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge.agent import Agent
from edge.config.schema import GateConfig, PhaseConfig, UseConfig
from edge.core.errors import PermissionDenied
from edge.learning import watched_folder
from edge.learning.own_items import LEARNED_LATER
from edge.state.events import GateJudged, Notice, OwnUseThrough, StepFinished
from edge.state.feedback import Feedback
from edge.state.folder import StateFolder
from tests.worlds.agent import World, give_feedback, local_answer, mixed_script, number_in, numbers
from tests.worlds.judged_answers import answered, rated

OWN = UseConfig(share=0.5, passes=2)


def corrected(folder: Path, *asked: int, task: str = "math") -> None:
    """Questions "What is N + 1?" that were answered wrongly and corrected."""
    with StateFolder(folder) as state:
        give(state, *asked, task=task)


def give(state: StateFolder, *asked: int, task: str = "math") -> None:
    for number in asked:
        answered(state, f"a{task}{number}", f"What is {number} + 1?", "0", call_key="k", task=task)
        rated(state, f"a{task}{number}", "bad", str(number + 1))


def world_in(folder: Path, steps: int | None = 6, **options: Any) -> World:
    phases = (PhaseConfig(source="sums", target_rate=0.3, steps=steps),)
    return World(folder, phases=phases, **{"own": OWN, "imitates": False, **options})


async def learned(agent: Agent, steps: int) -> list[str]:
    """The sources of `steps` more steps."""
    await agent.learn(max_steps=steps)
    return [step.source for step in agent.components.state.steps(last=steps)]


def file_of(folder: Path, name: str, *asked: int, **fields: Any) -> Path:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"question": f"What is {n} + 1?", "answer": n + 1, "split": "train", **fields}) for n in asked]
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


async def test_own_steps_alternate_with_the_phases_and_resume_their_place(tmp_path: Path) -> None:
    corrected(tmp_path / "state", 1, 2, 3, 4)
    world = world_in(tmp_path / "state", steps=4)
    async with world.agent() as agent:
        finished = await agent.learn()
        steps = agent.components.state.steps()
    assert [step.source for step in steps] == ["sums", "mine:math", "sums", "mine:math", "sums", "mine:math", "sums"]
    assert [step.phase_step for step in steps if step.source == "sums"] == [1, 2, 3, 4]
    assert [step.scores.prompts for step in steps if step.source != "sums"] == [3, 3, 2], (
        "four items, two passes, three prompts a step"
    )
    assert (finished.reason, finished.steps_done) == ("done", 7)
    assert [step.steps_planned for step in steps] == [4, 5, 5, 6, 6, 7, 7]
    assert {step.control.target_rate for step in steps} == {0.3}


async def test_each_item_is_learned_a_set_number_of_times_and_new_ones_start_at_the_next_turn(tmp_path: Path) -> None:
    world = world_in(tmp_path / "state", steps=None)
    async with world.agent() as agent:
        assert await learned(agent, 2) == ["sums", "sums"]
        give(agent.components.state, 5)
        assert await learned(agent, 6) == ["sums", "mine:math", "sums", "mine:math", "sums", "sums"]
        give_feedback(agent, Feedback("amath5", "bad", "3"))  # another correction
        assert (await learned(agent, 6)).count("mine:math") == 2


async def test_without_feedback_own_use_does_not_change_what_is_learned(tmp_path: Path) -> None:
    steps = []
    for own in (None, OWN):
        world = World(tmp_path / str(own is None), own=own, imitates=False)
        steps.append([numbers(step) for step in await world.learn()])
    assert steps[0] == steps[1]


async def test_after_the_phases_new_items_are_learned_and_then_nothing(tmp_path: Path) -> None:
    world = world_in(tmp_path / "state", steps=1, gate=GateConfig(every=100, anchors=2, max_drop=1.0, recheck_every=None))
    async with world.agent() as agent:
        assert (await agent.learn()).reason == "done"
        assert not await agent.learning.more_to_learn()
        give(agent.components.state, 5)
        assert await agent.learning.more_to_learn()
        await agent.learn()
        steps = agent.components.state.steps()
        assert [step.source for step in steps] == ["sums", "mine:math", "mine:math"]
        assert [step.adapter.gate for step in steps] == ["promoted", "", "promoted"], "the last one, so that it serves"
        assert agent.status().adapter_version == 3
        assert not await agent.learning.more_to_learn()


async def test_labels_have_separate_steps_and_duals(tmp_path: Path) -> None:
    corrected(tmp_path / "state", 1)
    corrected(tmp_path / "state", 2, task="code")
    world = world_in(tmp_path / "state", steps=4, own=UseConfig(share=0.5, passes=2, target_rate=0.1))
    async with world.agent() as agent:
        await agent.learn()
        own = [
            (step.source, step.task, step.control.target_rate) for step in agent.components.state.steps() if step.source != "sums"
        ]
        assert Counter(own) == {("mine:math", "math", 0.3): 2, ("mine:code", "code", 0.1): 2}
        assert agent.components.state.terms("code") is not None


async def test_watched_files_are_learned_as_they_appear_change_and_disappear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_folder, "MOST_ITEMS", 5)
    folder = tmp_path / "tasks"
    world = world_in(tmp_path / "state", steps=None, tasks_folder=folder, own=UseConfig(share=0.5, passes=1))
    async with world.agent() as agent:
        assert await learned(agent, 2) == ["sums", "sums"]
        assert "cannot be read" in world.events(Notice)[0].text
        path = file_of(folder, "a.jsonl", 1, 2)
        assert await learned(agent, 4) == ["sums", "watched:chat", "sums", "sums"]
        path.touch()
        assert await learned(agent, 2) == ["sums", "sums"], "a touched file is not new"
        file_of(folder, "a.jsonl", 1, 2, 3)
        assert await learned(agent, 2) == ["sums", "watched:chat"]
        assert agent.components.state.steps()[-1].scores.prompts == 1, "only new items of a changed file"
        path.unlink()
        file_of(folder, "b.jsonl", 7, task="code")
        assert await learned(agent, 4) == ["sums", "watched:code", "sums", "sums"]
        assert len(world.events(Notice)) == 1, "a missing folder is reported once"
        file_of(folder, "c.jsonl", *range(100, 108))
        await learned(agent, 6)
        assert "c.jsonl: has 8 items" in world.events(Notice)[-1].text


async def test_bad_file_is_reported_once_until_it_changes_and_an_unfinished_one_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    file_of(folder, "good.jsonl", 1)
    (folder / "bad.jsonl").write_text('{"question": "x"}\n')
    (folder / "note.txt").write_text("not a task file")
    world = world_in(tmp_path / "state", steps=None, tasks_folder=folder, own=UseConfig(share=0.5, passes=50))
    async with world.agent() as agent:
        await agent.learn(max_steps=6)
        [notice] = world.events(Notice)
        assert "bad.jsonl:1" in notice.text
        (folder / "bad.jsonl").write_text('{"question": "x", "answer": 1, "wrong": 2}\n')
        await agent.learn(max_steps=2)
        assert "'wrong'" in world.events(Notice)[-1].text
        file_of(folder, "bad.jsonl", 8)
        await agent.learn(max_steps=2)
        assert len(world.events(Notice)) == 2
        own_use = agent.components.own_use
        assert own_use is not None
        known = await own_use.fresh()
        (folder / "half.jsonl").write_text('{"question": "What is 1 + 1?", "answer": 2, "split": "train"}\n{"question": "Wh')
        assert await own_use.fresh() == known, "a file that is still being written is waited for"
        file_of(folder, "half.jsonl", 1, 2)
        assert await own_use.fresh() > known and len(world.events(Notice)) == 2
        (folder / "half.jsonl").write_text('{"question": "Wh')
        await own_use.fresh()
        await own_use.fresh()
        assert "half.jsonl" in world.events(Notice)[-1].text, "it is no longer being written"


async def test_forbidden_label_is_skipped_and_learning_continues(tmp_path: Path) -> None:
    corrected(tmp_path / "state", 1, task="secret")
    world = world_in(tmp_path / "state", steps=4)
    async with world.agent() as agent:
        opened = agent.link.client.open_step

        async def refuses(task: str, *rest: Any) -> Any:
            if task == "secret":
                raise PermissionDenied("this device may not work on secret")
            return await opened(task, *rest)

        agent.link.client.open_step = refuses  # type: ignore[method-assign]
        await agent.learn()
        assert {step.source for step in agent.components.state.steps()} == {"sums"}
    [notice] = [event for event in world.events(Notice) if "mine:secret" in event.text]
    assert "this device may not work on secret" in notice.text


async def test_validation_questions_of_own_sources_are_few_recent_and_outlive_the_source(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    file_of(folder, "a.jsonl", *range(100, 140))
    world = World(
        tmp_path / "state",
        phases=(PhaseConfig(source="sums", steps=None),),
        own=UseConfig(share=0.5, passes=50),
        imitates=False,
        tasks_folder=folder,
        gate=GateConfig(every=2, anchors=6, max_drop=1.0, recheck_every=None),
    )
    async with world.agent() as agent:
        await agent.learn(max_steps=3)
        before = anchors_of(agent.components.state, "watched:chat")
        assert len(before) == 6
        file_of(folder, "a.jsonl", *range(100, 160))
        await agent.learn(max_steps=2)
        after = anchors_of(agent.components.state, "watched:chat")
        assert len(after) == 6 and after != before and before & after, "a sample of what there is now, and most of it as before"
        (folder / "a.jsonl").unlink()
        await agent.learn(max_steps=2)
        assert anchors_of(agent.components.state, "watched:chat") == after
        exams = agent.components.state.database.execute("SELECT source, verdicts FROM exams").fetchall()
    assert {source for source, _ in exams} == {"sums", "watched:chat"}
    assert all(len(json.loads(verdicts)) <= 6 for _, verdicts in exams)
    last = world.events(GateJudged)[-1]
    assert {(score.source, score.items) for score in last.anchors} == {("sums", 6), ("watched:chat", 6)}


def anchors_of(state: StateFolder, source: str) -> set[str]:
    memory = json.loads(state.meta("gate") or "{}")
    return {item["id"] for item in memory["anchors"][source]}


async def test_the_rate_at_the_gate_is_that_of_the_steps_own_source(tmp_path: Path) -> None:
    """Own steps in between change no decision of the gate about the phase's rate."""
    corrected(tmp_path / "state", 1, 2, 3)

    def script(messages: Any, sampling: Any, seed: int) -> str:
        if sampling.temperature and number_in(messages[-1].content) >= 10:
            return mixed_script(messages, sampling, seed)
        return local_answer(number_in(messages[-1].content) + 1)

    rules = GateConfig(every=1, anchors=2, max_drop=1.0, rate_window=3, recheck_every=None)
    world = world_in(tmp_path / "state", steps=4, script=script, gate=rules)
    steps = await world.learn()
    own = [step for step in steps if step.source == "mine:math"]
    phase = [step for step in steps if step.source == "sums"]
    assert own and all(step.adapter.gate == "" for step in own), "they are judged with the phase's next step"
    assert {score.source for score in world.events(GateJudged)[-1].anchors} == {"sums", "mine:math"}
    for place, step in enumerate(phase):
        window = [one.control.assist_rate for one in phase[max(0, place - 2) : place + 1]]
        assert step.adapter.gate_rate == pytest.approx(sum(window) / len(window))


async def test_few_own_questions_are_all_learned_from_and_of_many_some_are_held_out(tmp_path: Path) -> None:
    for count in (1, 60, 150):
        folder = tmp_path / str(count)
        corrected(folder, *range(count))
        world = world_in(folder)
        agent = world.agent()
        own = agent.components.own_use
        assert own is not None
        [source] = await own.sources()
        agent.components.state.close()
        assert len(source.train) + len(source.held_out) == count
        assert not source.held_out if count < 100 else 5 <= len(source.held_out) <= 30
        assert all(one.item.split == "test" for one in source.held_out)


async def test_own_steps_never_keep_the_gate_from_judging_a_phase(tmp_path: Path) -> None:
    """Every second step is one's own, and every second one is due."""
    corrected(tmp_path / "state", *range(40))
    world = world_in(tmp_path / "state", steps=4, gate=GateConfig(every=2, anchors=2, max_drop=1.0, recheck_every=None))
    async with world.agent() as agent:
        await agent.learn(max_steps=7)
        steps = agent.components.state.steps()
        assert [(step.source, step.adapter.gate) for step in steps] == [
            ("sums", ""), ("mine:math", ""), ("sums", "promoted"), ("mine:math", ""), ("sums", "promoted"), ("mine:math", ""),
            ("sums", "promoted"),
        ]  # fmt: skip
        await agent.learn(max_steps=3)
        assert [step.adapter.gate for step in agent.components.state.steps(last=3)] == ["promoted", "", "promoted"], (
            "after the phases own steps are judged"
        )


async def test_completion_of_all_own_questions_is_reported_once(tmp_path: Path) -> None:
    corrected(tmp_path / "state", 1, 2)
    world = world_in(tmp_path / "state", steps=3)

    def completions() -> list[int]:
        return [event.questions for event in world.events(OwnUseThrough) if not event.source]

    async with world.agent() as agent:
        await agent.learn()
        assert completions() == [2] and not await agent.learning.more_to_learn()
        give(agent.components.state, 5)
        await agent.learn()
        assert completions() == [2, 3], "a new question restarts the count"
    async with world.agent() as agent:
        await agent.learn()
        assert completions() == [2, 3, 3], "and a restart explains the lack of own steps"


async def test_watched_folder_accepts_every_form_and_reports_unjudgeable_records(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "a.csv").write_text("question,answer,split\nWhat is 1 + 1?,2,train\n")
    talk = [{"role": "user", "content": "What is 2 + 1?"}, {"role": "assistant", "content": "3"}]
    letter = "Dear reader, this is far too long a text to be compared with any other."
    records = [{"messages": talk, "split": "train"}, {"prompt": "What is 3 + 1? Write a letter.", "completion": letter}]
    (folder / "b.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "c.txt").write_text("question,answer\n")
    world = world_in(tmp_path / "state", steps=None, tasks_folder=folder)
    async with world.agent() as agent:
        assert agent.components.own_use is not None
        sources = {source.name: source for source in await agent.components.own_use.sources()}
        assert {name: len(source.train) for name, source in sources.items()} == {"watched:chat": 3}
        (notice,) = (event.text for event in world.events(Notice) if "b.jsonl" in event.text)
        assert "of 2 answers 1 is" in notice and "Write a letter" in notice
        await agent.learn(max_steps=10)
    assert {step.source for step in world.events(StepFinished)} == {"sums", "watched:chat"}


async def test_user_is_notified_when_feedback_is_learned_from(tmp_path: Path) -> None:
    corrected(tmp_path / "state", 1)
    record, verdict = {"turns": 1}, Feedback("amath1", "bad", "2")
    async with world_in(tmp_path / "state", steps=1).agent() as agent:
        outlook = partial(agent.learning.outlook, record, verdict)
        assert outlook() == LEARNED_LATER, "it has not begun to learn"
        await agent.learn()
        assert "next steps" in outlook(), "it waits for something new"
        agent.learning.pause(True)
        assert "paused by you" in outlook()
