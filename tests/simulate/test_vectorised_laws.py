"""What the vectorised fleet reckons in arrays is what the product's own formulas give one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.calls.prices import Price
from coordinator.config import RatePoint, TaskConfig
from coordinator.ledger.fairness import highest_floor
from edge.budget.dial import HelpDial
from edge.core.errors import UsageError
from edge.core.types import TokenUsage
from edge.dagrpo.advantages import dual_advantages, estimator_weight
from edge.dagrpo.dual import dual_step
from tools.simulate.fleet.mind import Mind, Nature, Question, Rates, help_log_odds, learned, right_log_odds, sigmoid
from tools.simulate.fleet.scenario import CoordinatorPart, LearningPart
from tools.simulate.fleet.timetable import Timetable
from tools.simulate.vectorised import lessons
from tools.simulate.vectorised.dials import FleetDials
from tools.simulate.vectorised.draws import Draws
from tools.simulate.vectorised.money import charged, highest
from tools.simulate.vectorised.prices import Duals, held_walk
from tools.simulate.vectorised.schedule import FleetTimetable


@pytest.mark.parametrize("target_rate", [0.05, 0.3, 0.7, 0.0, 1.0])
def test_fleet_dials_move_as_the_dial_of_one_agent_does(target_rate: float) -> None:
    rng, devices = random.Random(7), 3
    fleet, dials = FleetDials(devices, target_rate), [HelpDial(target_rate) for _ in range(devices)]
    versions = [0] * devices
    for question in range(260):
        who = np.array([device for device in range(devices) if device == 0 or rng.random() < 0.6])
        if question in (30, 90, 95):
            fleet.new_adapter(who)
            for device in who:
                versions[device] += 1
        asked_with = fleet.settings(who)
        log_odds = [None if rng.random() < 0.1 else float(np.float32(rng.gauss(-1.0, 2.0))) for _ in who]
        asked = []
        for place, device in enumerate(who):
            own, odds = dials[device].setting(versions[device]), log_odds[place]
            assert asked_with.bias[place] == pytest.approx(own.bias, abs=2e-4)
            assert asked_with.rate[place] == pytest.approx(own.rate, abs=2e-5)
            asked.append(odds is not None and odds + own.bias > 0.0)
            dials[device].answered(own, asked[-1], odds, versions[device])
        fleet.answered(
            who, asked_with, np.array(asked), np.array([np.inf if odds is None else odds for odds in log_odds], np.float32)
        )


def test_a_dial_of_the_fleet_keeps_its_rate() -> None:
    fleet, draws, devices, asks = FleetDials(200, 0.2), Draws(3, "dial"), np.arange(200), 0
    for _ in range(100):
        asked_with, log_odds = fleet.settings(devices), draws.normals(200) - np.float32(3.0)
        asked = log_odds + asked_with.bias > 0.0
        fleet.answered(devices, asked_with, asked, log_odds)
        asks += int(asked.sum())
    assert asks / 20_000 == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("verdict", [lessons.RIGHT, lessons.WRONG, lessons.REFUSED, lessons.MASKED])
def test_groups_taken_together_move_theta_as_their_responses_one_by_one(verdict: int) -> None:
    nature, rates, dual, draws = Nature(broken=0.1), Rates(), 0.4, Draws(1, "groups")
    steps, prompts, size = 5, 3, 8
    mind = Mind(*(np.float32([0.2, 0.4, 2.9, 3.5, -1.0]) + np.float32(shift) for shift in (0.0, -1.5, 2.0)))
    difficulty = draws.within_unit(steps * prompts, 0.5, 0.2).reshape(steps, prompts)
    groups = lessons.sampled(mind, nature, difficulty, draws, size)
    verdicts = np.where(groups.asked > 0, verdict, lessons.NONE)
    found = lessons.learned(mind, nature, rates, groups, verdicts, np.full(steps, dual))
    live = lessons.live(groups, verdicts, np.full(steps, dual))
    for step in range(steps):
        own = Mind(*(float(part[step]) for part in (mind.skill, mind.ask, mind.ask_slope)))
        weighed, usable = [], 0
        for prompt in range(prompts):
            outcomes = _outcomes(groups, step, prompt)
            if verdict == lessons.MASKED:
                outcomes = [outcome for outcome in outcomes if outcome != "asked"]
            if len(outcomes) < 2:
                continue
            usable += 1
            rewards = [_reward(outcome, verdict) for outcome in outcomes]
            advantages = dual_advantages(rewards, [float(outcome == "asked") for outcome in outcomes], dual)
            assert bool(live[step, prompt]) == any(abs(advantage) > 1e-9 for advantage in advantages)
            question = Question(0, float(difficulty[step, prompt]), _noise(groups, own, nature, step, prompt), 0.0)
            weight = estimator_weight(len(outcomes))
            weighed += [(question, outcome, weight * each) for outcome, each in zip(outcomes, advantages, strict=True)]
        expected = learned(own, nature, rates, [(question, outcome, each / usable) for question, outcome, each in weighed])
        for name in ("skill", "ask", "ask_slope"):
            assert getattr(found, name)[step] == pytest.approx(getattr(expected, name), abs=1e-5)


def _outcomes(groups: lessons.Groups, step: int, prompt: int) -> list[str]:
    counts = {name: int(getattr(groups, name)[step, prompt]) for name in ("asked", "right", "wrong", "broken")}
    assert sum(counts.values()) == groups.size
    return [name for name, count in counts.items() for _ in range(count)]


def _reward(outcome: str, verdict: int) -> float:
    return {"asked": float(verdict == lessons.RIGHT), "right": 1.0, "wrong": 0.0, "broken": -0.1}[outcome]


def _noise(groups: lessons.Groups, mind: Mind, nature: Nature, step: int, prompt: int) -> float:
    """The question's own noise, from the probability of asking that it led to."""
    asks = float(groups.asks[step, prompt])
    return (
        np.log(asks / (1.0 - asks)) - help_log_odds(mind, nature, float(groups.difficulty[step, prompt]), 0.0)
    ) / nature.noise_share


def test_sampled_groups_ask_and_are_right_as_often_as_theta_says() -> None:
    nature, steps = Nature(broken=0.2), 4000
    mind = Mind(np.full(steps, 0.4), np.full(steps, -1.0), np.full(steps, 3.0))
    groups = lessons.sampled(mind, nature, np.full((steps, 2), 0.6, np.float32), Draws(2, "sampled"), 8)
    responses = steps * 2 * 8
    right = float(sigmoid(right_log_odds(Mind(0.4), nature, 0.6)))
    assert groups.broken.sum() / responses == pytest.approx(0.2, abs=0.01)
    assert groups.asked.sum() / responses == pytest.approx(0.8 * groups.asks.mean(), abs=0.01)
    assert groups.right.sum() / (groups.right.sum() + groups.wrong.sum()) == pytest.approx(right, abs=0.01)


@settings(deadline=None)
@given(st.floats(0.0, 2.0), st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=40))
def test_a_walk_held_at_zero_is_the_dual_update_again_and_again(start: float, reports: list[tuple[float, float]]) -> None:
    expected, dual = [], start
    for rate, target in reports:
        dual = dual_step(dual, rate, target, 0.7)
        expected.append(dual)
    assert held_walk(start, np.array([0.7 * (rate - target) for rate, target in reports])) == pytest.approx(expected, abs=1e-9)


def test_a_shared_price_moves_by_each_reports_share_of_a_round_and_forgets_who_is_idle() -> None:
    part = CoordinatorPart(tasks={"math": TaskConfig(dual_scope="fleet", dual_lr=0.1, dual_init=0.5)})
    duals, who = Duals(part, ("math",), np.zeros(4, np.int64)), np.array([0, 1, 2])
    assert duals.open(0, who, 32, 0.0).tolist() == [0.5] * 3
    duals.close(0, who, np.full(3, 10.0), np.array([1.0, 1.0, 1.0]), np.full(3, 0.3), np.full(3, 32))
    assert duals.fleet() == pytest.approx(0.5 + 0.1 * 0.7)
    alone = np.array([3])
    duals.open(0, alone, 32, 8000.0)
    duals.close(0, alone, np.array([8000.0]), np.array([0.0]), np.array([0.3]), np.array([32]))
    assert duals.fleet() == pytest.approx(0.57 - 0.1 * 0.3)


@pytest.mark.parametrize("terms", [{"dual_proportional": 0.1}, {"dual_ceiling": 1.0}])
def test_a_rule_that_the_fleet_does_not_play_is_refused_and_not_played_otherwise(terms: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="knows neither dual_proportional nor dual_ceiling"):
        Duals(CoordinatorPart(tasks={"math": TaskConfig.model_validate(terms)}), ("math",), np.zeros(1, np.int64))


def test_target_rates_and_credits_are_those_of_the_tasks_terms() -> None:
    terms = TaskConfig(
        target_rate=0.1, target_rate_schedule=(RatePoint(from_step=2, target_rate=0.5), RatePoint(from_step=5, target_rate=0.2))
    )
    duals, steps = Duals(CoordinatorPart(tasks={"math": terms}), ("math",), np.zeros(1, np.int64)), np.arange(8)
    targets = duals.targets(0, steps, 0.0)
    assert targets.tolist() == [terms.rate_at(int(step), 0.0) for step in steps]
    assert duals.credits(0, targets, 4).tolist() == [1, 1, 4, 4, 4, 2, 2, 2]


@settings(deadline=None)
@given(st.integers(0, 300), st.lists(st.integers(0, 200), min_size=1, max_size=12), st.integers(0, 500))
def test_the_highest_floor_of_sorted_amounts_is_the_ledgers(target: int, used: list[int], free: int) -> None:
    assert highest(target, np.sort(np.array(used)), free) == highest_floor(target, used, free)


def test_calls_cost_what_the_ledger_charges() -> None:
    price, usages = Price(150_000, 600_000), [(120, 250), (1, 1), (0, 0), (999, 4096)]
    amounts = charged(*(np.array([usage[place] for usage in usages]) for place in (0, 1)), 150_000, 600_000)
    expected = [price.charge(TokenUsage(*usage)) for usage in usages]
    assert amounts.T.tolist() == [[each.calls, each.tokens, each.uusd] for each in expected]


@pytest.mark.parametrize("starts_at_h", [0.0, 9.5])
@pytest.mark.parametrize("hours", [(22.0, 7.0), (0.0, 24.0), (3.0, 5.0)])
def test_turns_of_the_fleet_are_those_of_a_device(starts_at_h: float, hours: tuple[float, float]) -> None:
    part, now = LearningPart(steps_per_day=5, from_hour=hours[0], until_hour=hours[1], at_once=True), [0.0]
    fleet = FleetTimetable(part, 1, starts_at_h, Draws(1, "turns"))
    one = Timetable(part, starts_at_h, 0.0, lambda: now[0], lambda: False)
    for _ in range(12):
        who, due = fleet.due(1e9)
        if one.waiting_for(0.0, 0.0):
            now[0] += one.check_s
            assert one.waiting_for(0.0, 0.0) == ""
        assert due[0] == pytest.approx(now[0], abs=1e-6)
        fleet.taken(who, np.array([now[0]]))
        now[0] += 1.0
