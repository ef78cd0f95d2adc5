"""The promotion gate in the agent's loop: what is active, what is trained, its notices, and going back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edge.config.schema import GateConfig, PhaseConfig
from edge.core.errors import NotFound, StateError
from edge.core.types import Message, Sampling, TaskItem, TrainingGroup
from edge.state.answer_record import AnswerRequest
from edge.state.events import AdapterSwapped, GateJudged, Notice
from edge.state.folder import StateFolder
from edge.state.rows import Lineage
from edge.training.learner import LearnerReport
from tests.worlds.agent import (
    HELP,
    Sums,
    World,
    changed,
    item,
    local_answer,
    mixed_script,
    number_in,
    numbers,
)

RULES = GateConfig(every=2, anchors=5, max_drop=0.5, rate_window=2, max_refusals=2, keep=2, recheck_every=None)
QUESTION = [Message("user", "What is 3 + 1?")]


def gated(folder: Path, steps: int = 6, rules: GateConfig = RULES, worse: Sequence[int] = (), **options: Any) -> World:
    """A world in which the adapter versions in `worse` answer the validation questions wrongly and all others rightly."""
    world = World(folder, phases=(PhaseConfig(source="sums", target_rate=0.3, steps=steps),), gate=rules, **options)

    def script(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        if sampling.temperature:
            return mixed_script(messages, sampling, seed)
        return local_answer(number_in(messages[-1].content) + 1 + (world.rollouts.adapter_version in worse))

    world.script = script
    return world


async def learned(world: World) -> tuple[list[Any], Lineage]:
    async with world.agent() as agent:
        await agent.learn()
        with_line = agent.components.state.lineage()
        return agent.components.state.steps(), with_line


async def test_only_evaluated_versions_are_promoted_and_learning_continues_meanwhile(tmp_path: Path) -> None:
    world = gated(tmp_path / "state", steps=5)
    async with world.agent() as agent:
        served = []
        for _ in range(5):
            await agent.learn(max_steps=1)
            served.append((agent.status().adapter_version, agent.status().trained_version, world.rollouts.adapter_version))
            answer = await agent.answerer.answer(AnswerRequest(tuple(QUESTION)))
            assert answer.adapter_version == agent.status().adapter_version
    assert served == [(0, 1, 1), (2, 2, 2), (2, 3, 3), (4, 4, 4), (5, 5, 5)]  # the fifth ends the phase
    assert [event.version for event in world.events(AdapterSwapped)] == [2, 4, 5]
    assert [(event.step, event.verdict) for event in world.events(GateJudged)] == [(step, "promoted") for step in (2, 4, 5)]


async def test_candidate_below_the_gate_is_rejected_and_training_continues_from_it(tmp_path: Path) -> None:
    world = gated(tmp_path / "state", worse=[4])
    steps, line = await learned(world)
    assert [(step.adapter.gate, step.adapter.serving_version, step.adapter.base_version) for step in steps] == [
        ("", 0, 0), ("promoted", 2, 1), ("", 2, 2), ("refused", 2, 3), ("", 2, 4), ("promoted", 6, 5),
    ]  # fmt: skip
    assert (steps[3].adapter.gate_before, steps[3].adapter.gate_after) == (1.0, 0.0)
    assert (line.latest, line.serving, line.refusals) == (6, 6, 0)
    [notice] = world.events(Notice)
    assert "step 4" in notice.text and "What is 90000" in notice.text, "it names a question that was lost"
    assert world.opened == ["rollouts", "learner"], "the engine for learning is open before the learner's memory is tried"


async def test_task_with_one_validation_question_does_not_block_every_candidate(tmp_path: Path) -> None:
    steps, line = await learned(gated(tmp_path / "state", worse=[2, 4, 6], rules=RULES.model_copy(update={"anchors": 1})))
    assert [step.adapter.gate for step in steps if step.adapter.gate] == ["promoted"] * 3
    assert ((steps[1].adapter.gate_before, steps[1].adapter.gate_after), line.serving) == ((1.0, 0.0), 6)


async def test_after_too_many_rejections_training_returns_to_the_active_version(tmp_path: Path) -> None:
    world = gated(tmp_path / "state", steps=8, worse=[4, 6])
    steps, line = await learned(world)
    assert [step.adapter.base_version for step in steps] == [0, 1, 2, 3, 4, 5, 2, 7]
    assert [step.adapter.gate for step in steps if step.adapter.gate] == ["promoted", "refused", "rolled back", "promoted"]
    assert (line.latest, line.serving) == (8, 8)
    assert world.learners[-1].step == 4  # the updates of steps 1, 2, 7 and 8
    assert "back to adapter 2" in world.events(Notice)[-1].text


async def test_without_any_promotion_training_returns_to_the_bare_model(tmp_path: Path) -> None:
    world = gated(tmp_path / "state", steps=6, worse=[2, 4])
    steps, _ = await learned(world)
    assert [(step.step, step.adapter.base_version) for step in steps][3:] == [(4, 3), (5, 0), (6, 5)]
    assert [learner.step for learner in world.learners] == [4, 2]
    assert "bare model" in world.events(Notice)[-1].text


async def test_accumulated_small_losses_are_judged_against_the_best_adapter(tmp_path: Path) -> None:
    world = gated(tmp_path / "state", steps=6, rules=RULES.model_copy(update={"anchors": 20, "max_drop": 0.2}))
    calm, seen = world.script, dict[int, int]()

    def forgetful(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        """Each version has two right validation answers less than the one before."""
        number = number_in(messages[-1].content)
        if sampling.temperature or seen.setdefault(number, len(seen)) >= 2 * world.rollouts.adapter_version:
            return calm(messages, sampling, seed)
        return local_answer(number + 2)

    world.script = forgetful
    steps, line = await learned(world)
    assert [step.adapter.gate for step in steps if step.adapter.gate] == ["promoted", "refused", "rolled back"]
    assert [step.adapter.gate_before for step in steps if step.adapter.gate] == [1.0, 1.0, 1.0]
    assert line.serving == 2


class Skill(Sums):
    """Held-out sums that no phase has."""

    def test(self, limit: int) -> Sequence[TaskItem]:
        return [item(800_000 + number) for number in range(limit)]


async def test_skill_outside_all_phases_is_evaluated_too(tmp_path: Path) -> None:
    world = gated(tmp_path / "state", steps=4, rules=RULES.model_copy(update={"anchors": 8}), skills=("skill",))
    world.open_source = lambda name: Skill(name) if name == "skill" else Sums(name)
    calm = world.script

    def forgetful(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        """The fourth version has lost the skill."""
        lost = world.rollouts.adapter_version == 4 and 800_000 <= number_in(messages[-1].content) < 900_000
        return local_answer(0) if lost else calm(messages, sampling, seed)

    world.script = forgetful
    steps, _ = await learned(world)
    assert [step.adapter.gate for step in steps if step.adapter.gate] == ["promoted", "refused"]
    assert steps[3].adapter.gate_reason.startswith("skill: ")
    assert {step.source for step in steps} == {"sums"}


async def test_gate_ignores_how_often_an_adapter_asks(tmp_path: Path) -> None:
    world = gated(tmp_path / "state", steps=4)
    calm = world.script

    def asks(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        return HELP if sampling.temperature else calm(messages, sampling, seed)

    world.script = asks
    steps, _ = await learned(world)
    assert [step.adapter.gate for step in steps] == ["", "promoted", "", "promoted"]
    assert steps[3].adapter.gate_rate == 1.0


async def test_validation_questions_of_an_earlier_phase_are_judged_in_the_next_one(tmp_path: Path) -> None:
    world = gated(tmp_path / "state")
    world.phases = (PhaseConfig(source="sums", steps=2), PhaseConfig(source="other", steps=2))
    await learned(world)
    assert [[(score.source, score.items) for score in event.anchors] for event in world.events(GateJudged)] == [
        [("sums", 5)],
        [("sums", 5), ("other", 5)],
    ]
    assert not any(call.prompt_id.startswith("eval") for call in world.client.calls)


async def test_active_adapter_is_evaluated_once(tmp_path: Path) -> None:
    world = gated(tmp_path / "state", worse=[2, 4, 6], rules=RULES.model_copy(update={"max_refusals": 9}))
    asked: list[int] = []
    calm = world.script

    def counted(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        if sampling.temperature == 0.0:
            asked.append(world.rollouts.adapter_version)
        return calm(messages, sampling, seed)

    world.script = counted
    await learned(world)
    assert asked == [0] * 5 + [2] * 5 + [4] * 5 + [6] * 5


async def test_gate_without_rejections_does_not_change_what_is_learned(tmp_path: Path) -> None:
    ungated = gated(tmp_path / "ungated")
    ungated.gate = None
    plain, _ = await learned(ungated)
    with_gate, _ = await learned(gated(tmp_path / "gated"))
    without = {"gate": "", "gate_before": None, "gate_after": None, "gate_rate": None, "serving_version": 0}
    assert [changed(numbers(step), **without) for step in with_gate] == [changed(numbers(step), **without) for step in plain]
    assert [step.adapter.serving_version for step in plain] == [1, 2, 3, 4, 5, 6]


async def test_only_promoted_versions_stay_on_disk(tmp_path: Path) -> None:
    world = gated(tmp_path / "state", steps=12, worse=[8, 10], rules=RULES.model_copy(update={"max_refusals": 9}))
    await learned(world)
    kept = sorted(int(path.name.removeprefix("step-")) for path in (world.folder / "checkpoints").iterdir())
    assert kept == [6, 8, 11, 12]  # training may be taken back to 8
    with StateFolder(world.folder) as state:
        assert state.lineage().kept == (6, 12)


async def test_gate_without_a_separate_engine_for_learning_is_refused(tmp_path: Path) -> None:
    world = gated(tmp_path / "state")
    world._open_rollouts = None  # type: ignore[assignment, method-assign]
    with pytest.raises(ValueError, match="second engine"):
        world.agent()
    ungated = World(tmp_path / "other")
    ungated._open_rollouts = None  # type: ignore[assignment, method-assign]
    async with ungated.agent() as agent:
        assert (await agent.learn(max_steps=1)).adapter_version == 1


async def test_rollback_between_steps_serves_immediately_and_learning_continues_from_it(tmp_path: Path) -> None:
    world = gated(tmp_path / "state")
    async with world.agent() as agent:
        await agent.learn(max_steps=5)
        assert agent.status().adapter_version == 4
        await agent.adapter.rollback(2)
        assert (agent.status().adapter_version, agent.status().trained_version) == (2, 2)
        assert (await agent.answerer.answer(AnswerRequest(tuple(QUESTION)))).adapter_version == 2
        assert [(one.version, one.on_line) for one in agent.adapter.versions.all()] == [(2, True), (4, False), (5, False)]
        await agent.learn(max_steps=1)
        assert (agent.components.state.steps()[-1].step, agent.components.state.steps()[-1].adapter.base_version) == (6, 2)
        assert world.learners[-1].step == 3
        # 2 and 6 are the two that served last; 5 is kept as one of the newest two
        assert [(one.version, one.on_line) for one in agent.adapter.versions.all()] == [(2, True), (5, False), (6, True)]


async def test_rollback_during_a_step_discards_that_step(tmp_path: Path) -> None:
    world = gated(tmp_path / "state")
    async with world.agent() as agent:
        calm, asked = world.script, []

        def goes_back(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
            if sampling.temperature and world.rollouts.adapter_version == 3 and not asked:
                asked.append(asyncio.ensure_future(agent.adapter.rollback(2)))
                learner, update = world.learners[-1], world.learners[-1].update

                async def after_going_back(groups: Sequence[TrainingGroup]) -> LearnerReport:
                    await asked[0]
                    return await update(groups)

                learner.update = after_going_back  # type: ignore[method-assign]
            return calm(messages, sampling, seed)

        world.serving._script = world.script = goes_back
        await agent.learn()
        assert (await asked[0]).serving == 2
        steps = agent.components.state.steps()
        assert agent.status().adapter_version == 6
    assert [step.adapter.base_version for step in steps][2:] == [2, 3, 2, 5]
    assert [step.adapter.gate for step in steps][2:] == ["", "", "", "promoted"]
    assert steps[3].adapter.serving_version == 2


async def test_rollback_to_a_damaged_or_unknown_version_changes_nothing(tmp_path: Path) -> None:
    world = gated(tmp_path / "state")
    async with world.agent() as agent:
        await agent.learn(max_steps=4)
        before = agent.components.state.lineage()
        shutil.rmtree(world.folder / "checkpoints" / "step-000002" / "adapter")
        with pytest.raises(StateError, match="the adapter is missing"):
            await agent.adapter.rollback(2)
        with pytest.raises(NotFound, match="no adapter version 9"):
            await agent.adapter.rollback(9)
        assert agent.components.state.lineage() == before
        assert agent.status().adapter_version == 4
