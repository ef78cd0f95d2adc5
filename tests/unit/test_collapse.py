"""Learning that destroys what was learned: noticed by what steps report, taken back with the learner's state, and ended at last."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from edge.app.settings import agent_settings
from edge.config.loader import resolve
from edge.config.schema import AgentConfig, GateConfig, PhaseConfig
from edge.core.errors import Collapsed
from edge.core.rng import stream
from edge.core.types import AdapterRef, Message, Sampling, TrainingGroup
from edge.dagrpo.advantages import mean
from edge.learning.collapse import STUCK_STEPS, WATCHED, CountedStep, collapse_of
from edge.learning.components import AgentSettings
from edge.state.events import AdapterSwapped, Notice
from edge.state.folder import StateFolder
from edge.testing.learner import ScriptedLearner
from edge.training.learner import LearnerReport
from tests.worlds.agent import HELP, World, local_answer, number_in
from tests.worlds.deciding import Decider, DecidingWorld

GOOD_UPDATES = 17
"""So many updates a learner makes before one destroys the policy."""
STUCK_AT = GOOD_UPDATES + 1 + STUCK_STEPS
"""The step that shows that a policy which was destroyed asks always."""


class Fragile(ScriptedLearner):
    """After `GOOD_UPDATES` the next update with a larger share of the learning rate than `safe` destroys the policy for good."""

    def __init__(self, safe: float) -> None:
        super().__init__()
        self.safe, self.destroyed = safe, False

    async def update(self, groups: Sequence[TrainingGroup]) -> LearnerReport:
        report = await super().update(groups)
        self.destroyed |= self.step > GOOD_UPDATES and self.shares[-1] > self.safe
        return report

    async def export(self, folder: Path, version: int) -> AdapterRef:
        adapter = await super().export(folder, version)
        (folder / "destroyed.json").write_text(json.dumps(self.destroyed))
        return adapter

    async def save(self, folder: Path) -> None:
        await super().save(folder)
        (folder / "destroyed.json").write_text(json.dumps(self.destroyed))

    async def load(self, folder: Path) -> None:
        await super().load(folder)
        self.destroyed = json.loads((folder / "destroyed.json").read_text())


def is_destroyed(state: Path, version: int) -> bool:
    return version > 0 and bool(json.loads((state / f"checkpoints/step-{version:06d}/adapter/destroyed.json").read_text()))


def always_asks(number: int, seed: int) -> str:
    return HELP


def writes_no_format(number: int, seed: int) -> str:
    return "no format at all"


def hardly_ever_right(number: int, seed: int) -> str:
    draw = stream(seed, "destroyed").random()
    return HELP if draw < 0.3 else local_answer(number + 1 + (draw < 0.95))


def well(number: int, seed: int) -> str:
    """Asks in three of ten, and has three in four of the others right."""
    draw = stream(seed, "well").random()
    return HELP if draw < 0.3 else local_answer(number + 1 + (draw < 0.48))


@dataclass
class FragileWorld(World):
    """Its policy does `well` until it is destroyed, and then what `destroyed` says."""

    destroyed: Any = always_asks
    safe: float = 0.5
    learning_rate: float = 3e-4
    watches: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.script = self._write

    def settings(self, run_id: str) -> AgentSettings:
        return replace(super().settings(run_id), learning_rate=self.learning_rate, watches_collapse=self.watches)

    def _write(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        text = messages[-1].content
        number = number_in(text[text.index("What is") :])
        if sampling.suppress_help:
            return local_answer(number + 1)
        return (self.destroyed if is_destroyed(self.folder, self.rollouts.adapter_version) else well)(number, seed)

    async def _open_learner(self) -> ScriptedLearner:
        self.learners.append(Fragile(self.safe))
        return self.learners[-1]


def fragile(folder: Path, steps: int = 44, **options: Any) -> FragileWorld:
    phases = (PhaseConfig(source="sums", target_rate=0.3, steps=steps),)
    return FragileWorld(folder, phases=phases, prompts_per_step=4, group_size=8, **options)


async def learned(world: World) -> list[Any]:
    async with world.agent() as agent:
        await agent.learn()
        return list(agent.components.state.steps())


@pytest.mark.parametrize(
    ("destroyed", "words"),
    [
        (always_asks, "every response asks"),
        (hardly_ever_right, "right alone fell from"),
        (writes_no_format, "right alone fell from"),
    ],
)
async def test_after_a_collapse_learning_goes_on_from_the_last_good_version_with_half_the_rate(
    tmp_path: Path, destroyed: Any, words: str
) -> None:
    world = fragile(tmp_path / "state", destroyed=destroyed)
    steps = await learned(world)
    [back] = [step for step in steps if step.adapter.gate == "rolled back"]
    good = back.adapter.serving_version
    assert 0 < good <= GOOD_UPDATES < back.step < GOOD_UPDATES + 3 * WATCHED
    assert words in back.adapter.gate_reason and (destroyed is not always_asks or back.step == STUCK_AT)
    assert [step.adapter.base_version for step in steps[back.step : back.step + 2]] == [good, back.step + 1]
    [learner] = world.learners
    assert set(learner.shares[: back.step]) == {1.0} and set(learner.shares[back.step :]) == {0.5}
    assert learner.step == good + (len(steps) - back.step), "the learner's state is that of the version"
    [notice] = [one.text for one in world.events(Notice) if "collapse" in one.text]
    assert words in notice and f"adapter {good}" in notice and "0.00015" in notice
    assert AdapterSwapped(good, str(tmp_path / f"state/checkpoints/step-{good:06d}/adapter")) in world.sink.events
    with StateFolder(tmp_path / "state") as state:
        assert state.database.execute("SELECT to_version, by FROM went_back").fetchall() == [(good, "collapse")]
        assert (state.lineage().latest, state.lineage().serving) == (44, 44)


@dataclass
class FragileDecidingWorld(DecidingWorld):
    """Its learner is `Fragile`, and what is destroyed asks under any help bias."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.decider = Decider(lambda version: 300.0 if is_destroyed(self.folder, version) else -1.0)

    async def _open_learner(self) -> ScriptedLearner:
        self.learners.append(Fragile(0.5))
        return self.learners[-1]


@pytest.mark.parametrize(("rule", "estimates"), [("solved", False), ("integrated", False), ("solved", True)])
async def test_help_bias_and_estimated_dual_after_a_collapse_follow_the_good_version(
    tmp_path: Path, rule: Any, estimates: bool
) -> None:
    phases = (PhaseConfig(source="sums", target_rate=0.3, steps=STUCK_AT + 6),)
    world = FragileDecidingWorld(
        tmp_path / "state", phases=phases, prompts_per_step=8, group_size=8, rule=rule, estimates_dual=estimates
    )
    steps = await learned(world)
    controls = [step.control for step in steps]
    assert steps[STUCK_AT - 1].adapter.gate == "rolled back" and controls[STUCK_AT - 1].assist_rate == 1.0
    before, after = controls[steps[STUCK_AT].adapter.base_version], controls[STUCK_AT]
    assert before.help_bias is not None and after.help_bias == pytest.approx(before.help_bias, abs=1.5)
    assert mean([one.assist_rate for one in controls[STUCK_AT:]]) == pytest.approx(0.3, abs=0.1)
    if estimates:
        assert after.dual_before == pytest.approx(before.dual_before, abs=0.2)


async def test_with_a_gate_training_goes_back_and_what_serves_stays(tmp_path: Path) -> None:
    rules = GateConfig(every=30, anchors=5, recheck_every=None)
    world = fragile(tmp_path / "state", steps=40, gate=rules)
    steps = await learned(world)
    [back] = [step for step in steps if step.adapter.gate == "rolled back"]
    assert back.step < 30 and back.adapter.serving_version == 0
    assert steps[back.step].adapter.base_version > 0
    assert [step.adapter.gate for step in steps if step.adapter.gate] == ["rolled back", "promoted", "promoted"]
    with StateFolder(tmp_path / "state") as state:
        assert state.database.execute("SELECT count(*) FROM went_back").fetchone() == (0,)


async def test_learning_that_collapses_again_and_again_ends_with_what_to_change(tmp_path: Path) -> None:
    world = fragile(tmp_path / "state", steps=400, safe=0.0)
    with pytest.raises(Collapsed, match="3 times in a row") as caught:
        await learned(world)
    assert "learning.optimiser.learning_rate below 3.7e-05" in caught.value.hint
    with StateFolder(tmp_path / "state") as state:
        backs = [step for step in state.steps() if step.adapter.gate == "rolled back"]
        assert len(backs) == 3 and state.lineage().latest == backs[-1].adapter.serving_version
        made = state.position().steps_done
    with pytest.raises(Collapsed):  # not tried again as it is
        await learned(world)
    world.safe = 1.0
    async with world.agent() as agent:
        await agent.adapter.rollback(0)
        assert (await agent.learn(max_steps=2)).steps_done == made + 2, "a person who goes back may learn on"
    assert world.learners[-1].shares == [0.125] * 2
    world.learning_rate = 2e-5
    await world.learn(max_steps=2)
    assert world.learners[-1].shares == [1.0] * 2, "another learning rate holds in full"


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ([], (5e-4, True, "auto")),
        (["learning.optimiser.collapse=ignore", "learning.optimiser.learning_rate=1e-4"], (1e-4, False, "auto")),
        (["learning.optimiser.live_group_scaling=off"], (5e-4, True, "off")),
    ],
)
def test_settings_of_the_optimiser_reach_the_step(sets: list[str], expected: tuple[float, bool, str]) -> None:
    settings = agent_settings(resolve(AgentConfig, sets=sets).config, "run")
    assert (settings.learning_rate, settings.watches_collapse, settings.live_group_scaling) == expected


async def test_collapse_that_is_ignored_changes_nothing(tmp_path: Path) -> None:
    world = fragile(tmp_path / "state", steps=40, watches=False)
    steps = await learned(world)
    assert [step.adapter.base_version for step in steps] == list(range(40))
    assert set(world.learners[0].shares) == {1.0}


async def test_the_version_to_go_back_to_stays_on_disk_and_no_other_old_one(tmp_path: Path) -> None:
    world = fragile(tmp_path / "state", steps=39, safe=1.0)
    await learned(world)
    kept = sorted(int(path.name.removeprefix("step-")) for path in (tmp_path / "state" / "checkpoints").iterdir())
    assert kept == [24, 32, 38, 39]


# --- steps with few live groups ---


@dataclass
class ScalingWorld(World):
    """Its questions are answered alike by all responses of a group, but for every third question."""

    scaling: Any = "auto"
    guided: bool = False

    def settings(self, run_id: str) -> AgentSettings:
        settings = super().settings(run_id)
        rollout = replace(settings.rollout, guided=self.guided, prompt_form="compact")
        return replace(settings, rollout=rollout, live_group_scaling=self.scaling)


def live_where_it_divides(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
    text = messages[-1].content
    number = number_in(text[text.index("What is") :])
    return local_answer(number + 1 + (number % 3 == 0 and stream(seed, "live").random() < 0.5))


@pytest.mark.parametrize(
    ("scaling", "guided", "shares"),
    [
        ("auto", True, [0.25, 0.25, 0.5]),
        ("on", False, [0.25, 0.25, 0.5]),
        ("auto", False, [1.0, 1.0, 1.0]),
        ("off", True, [1.0, 1.0, 1.0]),
    ],
)
async def test_step_is_shorter_by_its_groups_without_an_advantage(
    tmp_path: Path, scaling: str, guided: bool, shares: list[float]
) -> None:
    phases = (PhaseConfig(source="sums", target_rate=0.3, steps=3),)
    options: Any = {"script": live_where_it_divides, "prompts_per_step": 4, "group_size": 12}
    world = ScalingWorld(tmp_path / "state", phases=phases, scaling=scaling, guided=guided, **options)
    steps = await world.learn()
    assert [1.0 - step.update.frac_reward_zero_std for step in steps] == [0.25, 0.25, 0.5]
    assert world.learners[0].shares == shares


# --- the rules ---


def made(count: int, *, asked: float, right: float, dead: float = 0.2, rate: float = 0.3, prompts: int = 8) -> list[CountedStep]:
    """Steps of 8 responses a prompt; of those that do not ask `right` are right, from prompt to prompt more or less."""
    draws, steps = stream(5, "made", asked, right), []
    kept_each = 8 - round(8 * asked)
    for _ in range(count):
        shares = [draws.betavariate(2 * right, 2 - 2 * right) if 0.0 < right < 1.0 else right for _ in range(prompts)]
        correct = sum(draws.random() < share for share in shares for _ in range(kept_each))
        kept = prompts * kept_each
        steps.append(CountedStep("sums", 0, prompts, 8 * prompts, 8 * prompts - kept, kept, correct, dead, rate))
    return steps


ALIVE = {"asked": 0.3, "right": 0.5}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(ALIVE, {"asked": 0.0, "right": 1.0, "dead": 1.0}, id="all is learned"),
        pytest.param(ALIVE, {"asked": 0.02, "right": 0.55, "dead": 1.0}, id="half is known by heart, the rest never"),
        pytest.param(
            {"asked": 1.0, "right": 0.0, "dead": 1.0}, {"asked": 1.0, "right": 0.0, "dead": 1.0}, id="asks from the beginning"
        ),
        pytest.param(ALIVE, {"asked": 1.0, "right": 0.0, "dead": 0.5}, id="asks, with groups that learn"),
        pytest.param({**ALIVE, "rate": 1.0}, {"asked": 1.0, "right": 0.0, "dead": 1.0, "rate": 1.0}, id="is meant to ask"),
        pytest.param({"asked": 0.1, "right": 0.4}, {"asked": 0.7, "right": 0.75}, id="asks about what it has wrong"),
        pytest.param({"asked": 0.7, "right": 0.8}, {"asked": 0.1, "right": 0.45}, id="answers what it asked about"),
        pytest.param({"asked": 0.3, "right": 0.5}, {"asked": 0.3, "right": 0.45}, id="a little worse"),
    ],
)
def test_what_is_no_collapse_is_not_taken_for_one(before: dict[str, float], after: dict[str, float]) -> None:
    steps = [*made(24, **before), *made(16, **after)]  # type: ignore[arg-type]
    assert [collapse_of(steps[:count]) for count in range(len(steps) + 1)] == [""] * (len(steps) + 1)


@pytest.mark.parametrize(("prompts", "rate", "least"), [(8, 0.3, 5), (1, 0.3, 8), (2, 0.6, 10), (8, 0.9, 11)])
def test_asking_always_is_a_collapse_once_it_is_no_chance_at_this_target(prompts: int, rate: float, least: int) -> None:
    before = made(4, asked=rate, right=0.5, rate=rate, prompts=prompts)
    after = made(20, asked=1.0, right=0.0, dead=1.0, rate=rate, prompts=prompts)
    assert [bool(collapse_of([*before, *after[:count]])) for count in (least - 1, least)] == [False, True]


def test_model_that_only_ever_asked_and_stops_asking_has_collapsed() -> None:
    before, after = made(24, asked=0.3, right=0.0), made(8, asked=0.0, right=0.0, dead=1.0)
    assert "none is right" in collapse_of([*before, *after]) and not collapse_of([*before, *after[:4]])


@pytest.mark.parametrize(("before", "after", "within"), [(0.5, 0.2, 16), (0.3, 0.05, 16), (0.12, 0.02, 24), (0.9, 0.4, 8)])
def test_fall_of_right_alone_is_found_soon_after_it_began(before: float, after: float, within: int) -> None:
    steps = [*made(24, asked=0.3, right=before), *made(24, asked=0.3, right=after)]
    found = next(count for count in range(len(steps) + 1) if collapse_of(steps[:count]))
    assert 24 < found <= 24 + within


@pytest.mark.parametrize("likeness", [0.5, 2.0, 50.0])
def test_steady_noise_is_no_collapse(likeness: float) -> None:
    """`likeness`: small where the responses to one question are right or wrong together."""
    draws = stream(4, "steady", likeness)
    steps = []
    for number in range(300):
        shares = [draws.betavariate(0.5 * likeness, 0.5 * likeness) for _ in range(8)]
        kept = 8 * 6
        right = sum(draws.random() < share for share in shares for _ in range(6))
        steps.append(CountedStep("sums", number, 8, 64, 16, kept, right, 0.2, 0.3))
    assert not any(collapse_of(steps[max(0, end - 128) : end]) for end in range(len(steps)))
