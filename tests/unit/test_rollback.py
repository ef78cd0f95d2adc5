"""Automatic rollback: planted bad versions are found and left, chance is not, and there is no oscillation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import comb
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.agent import Agent
from edge.config.schema import GateConfig, PhaseConfig, WhenConfig
from edge.core.types import Message, Sampling
from edge.learning.conditions import MachineConditions
from edge.state.events import Notice, WentBack
from edge.testing.probe import ScriptedProbe
from edge.training.promotion_rules import LEAST_VERDICTS, liked_less, lost_more
from tests.until import until
from tests.worlds.agent import World, local_answer, mixed_script, number_in
from tests.worlds.judged_answers import answered, rated

RULES = GateConfig(every=2, anchors=8, max_drop=1.0, rate_window=2, max_refusals=9, keep=3, recheck_every=None)


class Ageing:
    """A script by which versions answer the first few validation questions wrongly; the test can change their number."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.wrong: dict[int, int] = {}

    def __call__(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        if sampling.temperature:
            return mixed_script(messages, sampling, seed)
        number = number_in(messages[-1].content)
        return local_answer(number + 1 + (number - 900_000 < self.wrong.get(self.world.rollouts.adapter_version, 0)))


def guarded(folder: Path, recheck_every: int | None = 4, gate: GateConfig = RULES, **options: Any) -> tuple[World, Ageing]:
    phases = (PhaseConfig(source="sums", target_rate=0.3, steps=None),)
    world = World(folder, phases=phases, gate=gate.model_copy(update={"recheck_every": recheck_every}), **options)
    world.script = script = Ageing(world)
    return world, script


def went_back(agent: Agent) -> list[tuple[int, int, str]]:
    rows = agent.components.state.database.execute("SELECT from_version, to_version, by FROM went_back ORDER BY id")
    return [(int(one), int(other), str(by)) for one, other, by in rows]


async def test_version_that_worsens_after_promotion_is_replaced_by_the_best_kept_one(tmp_path: Path) -> None:
    world, script = guarded(tmp_path)
    async with world.agent() as agent:
        await agent.learn(max_steps=4)
        assert agent.status().adapter_version == 4
        script.wrong = {4: 8, 0: 3}
        await agent.learn(max_steps=1)
        assert went_back(agent) == [(4, 2, "anchors")]
        assert (agent.status().adapter_version, agent.components.state.steps()[-1].adapter.base_version) == (2, 2)
        line = agent.components.state.lineage()
    [event] = world.events(WentBack)
    assert (event.from_version, event.to_version, event.cause) == (4, 2, "anchors")
    assert event.reason in world.events(Notice)[-1].text and "adapter 2" in world.events(Notice)[-1].text
    assert line.serving == 2 and world.rollouts.adapter_version == 5


@pytest.mark.parametrize(("every", "lost", "goes"), [(4, 4, False), (4, 5, True), (None, 8, False)])
async def test_five_losses_without_a_gain_are_the_least_evidence_for_a_rollback(
    tmp_path: Path, every: int | None, lost: int, goes: bool
) -> None:
    world, script = guarded(tmp_path, recheck_every=every)
    async with world.agent() as agent:
        await agent.learn(max_steps=4)
        script.wrong = {4: lost}
        await agent.learn(max_steps=2)
        assert bool(went_back(agent)) is goes


async def test_losses_below_the_gate_are_found_where_beyond_chance(tmp_path: Path) -> None:
    """One item a promotion: the best version is kept although three have served since."""
    world, script = guarded(tmp_path, recheck_every=4, gate=RULES.model_copy(update={"max_drop": 0.7}))
    script.wrong = {0: 8} | {version: version // 2 - 1 for version in range(2, 14, 2)}
    async with world.agent() as agent:
        await agent.learn(max_steps=12)
        assert [step.adapter.gate for step in agent.components.state.steps() if step.adapter.gate] == ["promoted"] * 6
        assert (went_back(agent), agent.components.state.lineage().kept) == ([], (8, 10, 12))
        await agent.learn(max_steps=1)
        assert went_back(agent) == [(12, 2, "anchors")]


async def test_rollback_does_not_oscillate_or_return_to_an_abandoned_version(tmp_path: Path) -> None:
    world, script = guarded(tmp_path, recheck_every=2)
    async with world.agent() as agent:
        await agent.learn(max_steps=6)
        script.wrong = dict.fromkeys((4, 6, 8, 10, 12, 14), 8)
        await agent.learn(max_steps=20)
        left = [one for one, _, _ in went_back(agent)]
        assert left and len(left) == len(set(left)), "each version is left once"
        assert not {other for _, other, _ in went_back(agent)} & set(left), "and none that was left serves again"
        assert agent.components.state.lineage().serving not in left


async def test_version_with_a_missing_file_is_left_immediately(tmp_path: Path) -> None:
    world, _ = guarded(tmp_path)
    async with world.agent() as agent:
        await agent.learn(max_steps=4)
        adapter = tmp_path / "checkpoints" / "step-000004" / "adapter"
        adapter.rename(adapter.with_name("moved"))
        guard = await agent.learning.session.monitor()
        found = await guard.worse_than_before() if guard else None
        assert found is not None and (found.version, found.better, found.cause) == (4, 2, "damage")


async def test_version_chosen_by_a_person_is_left_alone(tmp_path: Path) -> None:
    world, script = guarded(tmp_path, recheck_every=1, gate=RULES.model_copy(update={"every": 4}))
    async with world.agent() as agent:
        await agent.learn(max_steps=8)
        await agent.adapter.rollback(4)
        script.wrong = {4: 8}
        await agent.learn(max_steps=2)
        assert went_back(agent) == [(8, 4, "person")]


def judged(agent: Agent, version: int, good: int, bad: int, source: str = "local", prompt: str = "What is {}?") -> None:
    for number in range(good + bad):
        id = f"{source}{version}-{number}"
        answered(agent.components.state, id, prompt.format(number), "", adapter_version=version, source=source)
        rated(agent.components.state, id, "good" if number < good else "bad")


@pytest.mark.parametrize(
    ("before", "now", "of", "left"),
    [
        ((18, 2), (4, 6), {}, True),
        ((7, 0), (0, 7), {}, False),
        ((10, 2), (9, 3), {}, False),
        ((18, 2), (4, 6), {"source": "cloud"}, False),
        ((18, 2), (0, 500), {"prompt": "Who wrote this?"}, False),
    ],
    ids=["less liked", "few", "by chance", "of the cloud", "repeated"],
)
async def test_version_less_liked_is_left_but_not_for_few_random_cloud_or_repeated_ratings(
    tmp_path: Path, before: tuple[int, int], now: tuple[int, int], of: dict[str, str], left: bool
) -> None:
    world, _ = guarded(tmp_path, recheck_every=None)
    async with world.agent() as agent:
        await agent.learn(max_steps=4)
        judged(agent, 2, *before)
        judged(agent, 4, *now, **of)
        await agent.learn(max_steps=1)
        assert went_back(agent) == [(4, 2, "feedback")] * left


async def test_disliked_version_is_left_also_while_paused_or_when_all_is_learned(tmp_path: Path) -> None:
    world, _ = guarded(tmp_path, recheck_every=None)
    world.conditions = MachineConditions(WhenConfig(check_s=0.001), ScriptedProbe())
    async with world.agent() as agent:
        await agent.learn(max_steps=4)
        judged(agent, 2, good=18, bad=2)
        agent.learning.pause(True)
        learning = asyncio.create_task(agent.learn(max_steps=1))
        while agent.learning.waiting != "paused by you":
            await asyncio.sleep(0)
        judged(agent, 4, good=4, bad=6)
        await until(lambda: went_back(agent))
        assert went_back(agent) == [(4, 2, "feedback")] and not learning.done()
        agent.learning.pause(False)
        await learning
    other, _ = guarded(tmp_path / "done", recheck_every=None)
    async with other.agent() as agent:
        await agent.learn(max_steps=4)
        judged(agent, 2, good=18, bad=2)
        judged(agent, 4, good=4, bad=6)
        await agent.learning.apply_feedback()
        assert (went_back(agent), agent.status().adapter_version) == ([(4, 2, "feedback")], 2)


@given(lost=st.integers(0, 40), gained=st.integers(0, 40))
def test_law_more_losses_are_never_less_evidence_and_more_gains_never_more(lost: int, gained: int) -> None:
    assert lost_more(lost, gained) <= lost_more(lost + 1, gained)
    assert lost_more(lost, gained + 1) <= lost_more(lost, gained)
    assert not (lost_more(lost, gained) and lost_more(gained, lost))


@given(bad=st.integers(0, 20), good=st.integers(0, 20), bad_before=st.integers(0, 20), good_before=st.integers(0, 20))
def test_law_test_of_ratings_is_fishers(bad: int, good: int, bad_before: int, good_before: int) -> None:
    total, before = bad + good, bad_before + good_before
    significant = liked_less(bad, total, bad_before, before)
    if min(total, before) < LEAST_VERDICTS:
        assert not significant
        return
    ways = sum(
        comb(total, k) * comb(before, bad + bad_before - k)
        for k in range(bad, min(total, bad + bad_before) + 1)
        if 0 <= bad + bad_before - k <= before
    )
    assert significant == (ways / comb(total + before, bad + bad_before) <= 0.05)
    if significant:
        assert bad / total > bad_before / before
