"""Questions drawn by what they can teach: the probabilities are exact, and rates and shares still measure the whole source."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edge.app.agents import build_components
from edge.config.loader import resolve
from edge.config.schema import AgentConfig, PhaseConfig
from edge.core.events import MemorySink
from edge.core.rng import stream
from edge.dagrpo.advantages import mean
from edge.dagrpo.dual import dual_step
from edge.learning.curriculum import Curriculum
from edge.learning.teaching import (
    EVENLY,
    HALF_LIFE,
    Seen,
    draws,
    ignorance,
    inclusion_probabilities,
    seen,
    systematic_sample,
    variance,
)
from edge.state.folder import StateFolder
from edge.state.rows import Position
from edge.tasks.source import ListedItems
from tests.worlds.agent import HELP, Sums, World, item, local_answer, number_in
from tests.worlds.deciding import Decider, DecidingWorld


@pytest.mark.parametrize(
    "values_N",
    [
        [1.0] * 40,
        [0.25] + [0.01] * 39,  # one would be drawn for certain
        [0.2, 0.2, 0.2] + [0.001] * 9,
        [number / 100 for number in range(1, 60)],
    ],
)
@pytest.mark.parametrize("count", [1, 4, 8])
def test_each_question_is_drawn_with_its_probability_and_none_twice_in_a_step(values_N: list[float], count: int) -> None:
    probabilities_N = inclusion_probabilities(values_N, count)
    assert sum(probabilities_N) == pytest.approx(count) and max(probabilities_N) <= 1.0
    assert min(probabilities_N) >= EVENLY * count / len(values_N) * 0.999
    ordered = [probability for _, probability in sorted(zip(values_N, probabilities_N, strict=True))]
    assert ordered == sorted(ordered)
    times, rounds = Counter[int](), 3000
    for number in range(rounds):
        chosen = systematic_sample(probabilities_N, stream(number, "sample"))
        assert len(chosen) == len(set(chosen)) == count
        times.update(chosen)
    for place, probability in enumerate(probabilities_N):
        assert times[place] / rounds == pytest.approx(
            probability, abs=5 * (probability * (1 - probability) / rounds) ** 0.5 + 1e-9
        )


@pytest.mark.parametrize("values_N", [[1.0, 1.0], [1.0, 0.0, 1.0]])
def test_draw_that_cannot_be_made_is_refused(values_N: list[float]) -> None:
    with pytest.raises(ValueError, match="questions cannot be drawn"):
        inclusion_probabilities(values_N, 2)


def test_weighted_mean_of_draws_is_the_mean_of_the_source() -> None:
    asks_N = [0.05 * (place % 20) for place in range(100)]
    values_N = [0.01 + ask * (1.0 - ask) for ask in asks_N]
    drawn = [draws(values_N, 8, stream(number, "weighted")) for number in range(2000)]
    weighted = mean([sum(draw.weight * asks_N[place] for place, draw in one) / 8 for one in drawn])
    as_drawn = mean([mean([asks_N[place] for place, _ in one]) for one in drawn])
    middling = mean([mean([asks_N[place] * (1.0 - asks_N[place]) for place, _ in one]) for one in drawn])
    assert weighted == pytest.approx(mean(asks_N), abs=0.01)
    assert middling > 1.1 * mean([ask * (1.0 - ask) for ask in asks_N])
    assert as_drawn == pytest.approx(weighted, abs=0.05)


def test_what_teaches_most_is_what_is_sometimes_right() -> None:
    half, unknown, never, always = Seen(16, 8), Seen(), Seen(16, 0), Seen(16, 16)
    assert variance(half) > variance(unknown) > variance(never) == variance(always) > 0.0
    assert variance(never) > variance(Seen(64, 0))
    assert ignorance(never) > ignorance(unknown) == ignorance(half) > ignorance(always) > 0.0


def test_what_was_seen_counts_half_after_its_half_life() -> None:
    known = seen([(10, "a", 8, 8), (10 + HALF_LIFE, "a", 8, 0), (10 + HALF_LIFE, "b", 8, 4)], 10 + HALF_LIFE)
    assert known == {"a": Seen(12.0, 4.0), "b": Seen(8.0, 4.0)}


# --- steps ---


class ManySums(ListedItems):
    """Forty questions of a file for each label."""

    def __init__(self, name: str = "file", tasks: tuple[str, ...] = ("math",)) -> None:
        items = [item(number, task) for task in tasks for number in range(40)]
        super().__init__(items, name=name, order_name="file", hint="")


def by_difficulty(messages: Any, sampling: Any, seed: int) -> str:
    """Of ten questions six are always right, two never, where it asks half of the time; two are right in half of the responses."""
    text = messages[-1].content
    number, draw = number_in(text[text.index("What is") :]), stream(seed, "draw").random()
    kind = number % 10
    if kind < 6:
        return local_answer(number + 1)
    if kind < 8:
        return HELP if draw < 0.5 and not sampling.suppress_help else local_answer(number + 3)
    return local_answer(number + 1 + (draw < 0.5))


TRUE_RATE, TRUE_RIGHT = 0.1, 0.7


@dataclass
class Listed(World):
    script: Any = by_difficulty
    prompts_per_step: int = 6
    group_size: int = 8
    open_source: Any = field(default_factory=lambda: ManySums)
    teaching: bool = True


def listed(folder: Path, steps: int, **options: Any) -> World:
    return Listed(folder, phases=(PhaseConfig(source="file", target_rate=0.3, steps=steps),), **options)


async def test_more_groups_learn_while_rate_and_share_right_stay_those_of_the_whole_file(tmp_path: Path) -> None:
    world = listed(tmp_path / "state", steps=60)
    steps = await world.learn()
    plain = await listed(tmp_path / "plain", steps=60, teaching=False).learn()
    late, late_plain = steps[20:], plain[20:]
    dead, dead_plain = (mean([step.update.frac_reward_zero_std for step in some]) for some in (late, late_plain))
    assert dead < 0.75 * dead_plain
    rates = [step.control.source_rate for step in late]
    assert mean([rate or 0.0 for rate in rates]) == pytest.approx(TRUE_RATE, abs=0.03)
    assert mean([step.control.assist_rate for step in late_plain]) == pytest.approx(TRUE_RATE, abs=0.03)
    assert mean([step.scores.source_right or 0.0 for step in late]) == pytest.approx(TRUE_RIGHT, abs=0.05)
    assert mean([(step.scores.kept_accuracy or 0.0) * step.scores.coverage for step in late]) < TRUE_RIGHT - 0.05
    assert all((step.control.source_rate, step.scores.source_right, step.scores.drawn) == (None, None, ()) for step in plain)
    assert not any(step.adapter.gate for step in steps), "harder questions are no collapse"


async def test_the_record_of_a_step_has_the_probability_of_each_question_and_what_it_showed(tmp_path: Path) -> None:
    world = listed(tmp_path / "state", steps=2)
    first, second = await world.learn()
    assert [one.probability for one in first.scores.drawn] == pytest.approx([6 / 40] * 6), "nothing is known yet"
    assert all(one.responses == 8 for one in first.scores.drawn)
    assert len({one.question for one in second.scores.drawn}) == 6
    with StateFolder(tmp_path / "state") as state:
        rows = state.drawn_questions("file", 1)
        assert rows == [(2, one.question, one.responses, one.right) for one in second.scores.drawn]
        assert state.drawn_questions("other", 10) == []


async def test_the_coordinators_dual_moves_by_the_rate_of_the_file_and_its_counts_are_of_what_was_drawn(tmp_path: Path) -> None:
    world = listed(tmp_path / "state", steps=6)
    closed = list[Any]()
    real = world.client.close_step

    async def close_step(task: str, step: int, units: Any) -> Any:
        closed.append(units)
        return await real(task, step, units)

    world.client.close_step = close_step  # type: ignore[method-assign]
    steps = await world.learn()
    for step, units in zip(steps, closed, strict=True):
        assert (units.total, units.help) == (48, round(48 * step.control.assist_rate))
        assert units.own_rate == step.control.source_rate
        assert step.control.dual_after == dual_step(step.control.dual_before, units.own_rate, 0.3, 0.1)


@dataclass
class DecidingListed(DecidingWorld):
    prompts_per_step: int = 8
    group_size: int = 8
    open_source: Any = field(default_factory=lambda: ManySums)
    teaching: bool = True


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.6])
async def test_help_bias_holds_the_rate_of_the_file(tmp_path: Path, rate: float) -> None:
    phases = (PhaseConfig(source="file", target_rate=rate, steps=20),)
    steps = await DecidingListed(tmp_path / "state", phases=phases, decider=Decider()).learn()
    assert mean([step.control.held_rate for step in steps[4:]]) == pytest.approx(rate, abs=0.04)
    assert all(step.control.held_rate == step.control.source_rate for step in steps)


async def test_endless_and_small_sources_stay_a_stream(tmp_path: Path) -> None:
    class Few(ListedItems):
        def __init__(self, name: str) -> None:
            super().__init__([item(number) for number in range(6)], name=name, order_name="few", hint="")

    for name, source in (("endless", Sums), ("few", Few)):
        steps = await listed(tmp_path / name, steps=2, open_source=source).learn()
        assert [step.scores.drawn for step in steps] == [(), ()]


async def test_each_label_of_a_file_has_draws_of_its_own(tmp_path: Path) -> None:
    def two_labels(name: str) -> ManySums:
        return ManySums(name, tasks=("math", "code"))

    steps = await listed(tmp_path / "state", steps=6, open_source=two_labels).learn()
    for step in steps:
        assert {one.question.split("-")[0] for one in step.scores.drawn} == {step.task}
    assert {step.task for step in steps} == {"math", "code"}


@pytest.mark.parametrize("questions", ["stream", "teaching"])
def test_the_setting_chooses_how_a_task_file_is_learned(tmp_path: Path, questions: str) -> None:
    file = tmp_path / "sums.csv"
    file.write_text("question,answer,split\n" + "".join(f"What is {number} + 1?,{number + 1},train\n" for number in range(20)))
    sets = [f"state_folder={tmp_path / 'state'}", f"learning.questions={questions}", f"phases.0.source={file}"]
    components, _ = build_components(resolve(AgentConfig, sets=sets).config, MemorySink())
    with components.state:
        plan = components.curriculum.next_step()
        again = components.curriculum.next_step()
    assert plan is not None and plan == again and len(plan.items) == 8
    assert len(plan.draws) == (8 if questions == "teaching" else 0)


class Ahead:
    """A standing in which so many steps are done."""

    def __init__(self, steps_done: int) -> None:
        self._position = Position(steps_done, 0, steps_done)

    def position(self) -> Position:
        return self._position

    def cursor(self, source: str, seed: int) -> int:
        return 0


@pytest.mark.parametrize(("demonstrates", "least", "most"), [(True, 4.0, 40.0), (False, 0.7, 1.4)])
def test_what_is_never_right_is_drawn_more_where_its_answer_is_shown(demonstrates: bool, least: float, most: float) -> None:
    rows = [(1, f"math-{number}", 800, 800 if number < 20 else 0) for number in range(40)]
    never, always = 0, 0
    for done in range(1, 60):
        phases = [PhaseConfig(source="file", steps=400)]
        plan = Curriculum(
            phases, ManySums, Ahead(done), 0, 6, lambda source: demonstrates, drawn_questions=lambda source, last: rows
        ).next_step()
        assert plan is not None
        known = sum(int(one.id.split("-")[1]) < 20 for one in plan.items)
        never, always = never + len(plan.items) - known, always + known
    assert least < never / always < most
