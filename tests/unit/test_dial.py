"""The budget dial: for any model, 200 questions reach the requested rate, also across kills."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.agent import Agent
from edge.budget.dial import BIAS_BOUND, MOST_OTHER_DIALS, Dials, HelpDial, dial_step, stored_dials, threshold
from edge.core.errors import BudgetExhausted, CoordinatorUnavailable, UsageError
from edge.state.answer_record import AnswerRequest
from edge.state.folder import StateFolder
from edge.state.reader import reading
from edge.testing.clock import ManualClock
from tests.worlds.agent import HELP, QUESTION, World, local_answer

RATES = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7]
TOLERANCE = 0.03 + 1e-9
LogOdds = Callable[[random.Random, int], float | None]


def bimodal(rng: random.Random, number: int) -> float:
    return rng.gauss(15.0, 0.5) if rng.random() < 0.3 else rng.gauss(-15.0, 0.5)


def some_without_decision(rng: random.Random, number: int) -> float | None:
    return None if rng.random() < 0.15 else rng.gauss(-6.0, 3.0)


MODELS: dict[str, LogOdds] = {
    "far below": lambda rng, number: rng.gauss(-8.0, 2.0),
    "far above": lambda rng, number: rng.gauss(9.0, 1.0),
    "wide": lambda rng, number: rng.gauss(0.0, 8.0),
    "narrow": lambda rng, number: rng.gauss(-18.0, 0.05),
    "all equal": lambda rng, number: -5.0,
    "two values": lambda rng, number: rng.choice([-6.0, -6.0, 4.0]),
    "bimodal": bimodal,
    "bimodal and nearly always sure": lambda rng, number: rng.gauss(22.0 if rng.random() < 0.1 else -22.0, 0.01),
    "no decision in a share of answers": some_without_decision,
    "drifting": lambda rng, number: rng.gauss(-9.0 + 0.08 * number, 1.0),
    "shifting down": lambda rng, number: rng.gauss(7.5 if number < 100 else -7.5, 1.0),
    "shifting up": lambda rng, number: rng.gauss(-7.5 if number < 100 else 7.5, 1.0),
    "two kinds of questions by turns": lambda rng, number: rng.gauss(6.0 if number // 10 % 2 else -9.0, 1.0),
}


def ask(
    dial: HelpDial,
    rng: random.Random,
    model: LogOdds,
    questions: int,
    margin: Callable[[random.Random], float] = lambda rng: 0.7,
    at_once: int = 1,
) -> float:
    """The share that asked, with `at_once` questions under way at a time. The model asks where log-odds plus bias exceed a margin that the
    dial does not see."""
    asks, under_way = 0, []
    for number in range(questions):
        setting, log_odds = dial.setting(), model(rng, number)
        under_way.append((setting, log_odds is not None and log_odds + setting.bias > margin(rng), log_odds))
        while len(under_way) >= (at_once if number + 1 < questions else 1):
            answer = under_way.pop(0)
            dial.answered(*answer)
            asks += answer[1]
    return asks / questions


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("model", MODELS)
def test_from_a_cold_start_200_questions_realise_the_rate(model: str, rate: float) -> None:
    worst = max(abs(ask(HelpDial(rate), random.Random(seed), MODELS[model], 200) - rate) for seed in range(12))
    assert worst <= TOLERANCE


@pytest.mark.parametrize("rate", RATES)
def test_model_that_samples_its_decision_is_controlled_as_well(rate: float) -> None:
    for seed in range(12):
        realised = ask(HelpDial(rate), random.Random(seed), MODELS["far below"], 200, lambda rng: rng.uniform(-2.0, 2.0))
        assert abs(realised - rate) <= TOLERANCE


@pytest.mark.parametrize("rate", RATES)
def test_a_warm_dial_asks_at_its_rate_from_the_first_questions(rate: float) -> None:
    shares = []
    for seed in range(60):
        rng, dial = random.Random(seed), HelpDial(rate)
        dial.warm((0, rng.gauss(-8.0, 2.0), "") for _ in range(100))
        shares.append(ask(dial, rng, MODELS["far below"], 20, lambda rng: 0.0))
        later = ask(dial, rng, MODELS["far below"], 180, lambda rng: 0.0)
        assert abs((20 * shares[-1] + 180 * later) / 200 - rate) <= TOLERANCE
    assert abs(sum(shares) / len(shares) - rate) < 0.03


@pytest.mark.parametrize("first", RATES)
@pytest.mark.parametrize("then", RATES)
def test_rate_set_midway_is_reached_over_the_next_200_questions(first: float, then: float) -> None:
    for seed in range(4):
        rng, dial = random.Random(seed), HelpDial(first)
        ask(dial, rng, bimodal, 77)
        dial.set(then, own=True, at=1.0)
        assert abs(ask(dial, rng, bimodal, 200) - then) <= TOLERANCE
        assert (dial.snapshot().questions, dial.snapshot().realised_rate) == (200, dial.snapshot().realised_since_set)


def test_unreachable_rate_does_not_wind_up() -> None:
    """Six in ten reach no decision, so 0.7 is out of reach; when all do, the rate is not overshot to make up for it."""
    rng, dial = random.Random(1), HelpDial(0.7)
    assert ask(dial, rng, lambda r, n: None if r.random() < 0.6 else r.gauss(0.0, 2.0), 500) == pytest.approx(0.4, abs=0.06)
    assert dial.setting().bias <= BIAS_BOUND
    ask(dial, rng, MODELS["far below"], 100)
    assert abs(ask(dial, rng, MODELS["far below"], 200) - 0.7) <= TOLERANCE


@pytest.mark.parametrize("rate", RATES)
def test_many_concurrent_questions_reach_the_rate_nearly_as_well(rate: float) -> None:
    for seed in range(12):
        assert abs(ask(HelpDial(rate), random.Random(seed), MODELS["far below"], 200, at_once=8) - rate) <= 0.05


def test_log_odds_of_another_adapter_are_used_only_until_there_are_enough_current_ones() -> None:
    dial = HelpDial(0.5)
    dial.warm((1, -10.0 + number / 100, "") for number in range(60))
    assert dial.setting(2).bias == pytest.approx(9.7, abs=0.1)
    for number in range(20):
        dial.seen(4.0 + number / 100, 2)
    assert dial.setting(2).bias == pytest.approx(-4.1, abs=0.1)


def test_disabled_dial_adds_nothing_and_keeps_observing() -> None:
    dial, rng = HelpDial(None), random.Random(1)
    assert ask(dial, rng, MODELS["far below"], 50) == 0.0
    assert (dial.setting().bias, dial.snapshot().known_log_odds, dial.snapshot().questions) == (0.0, 50, 50)
    dial.set(0.3, own=False, at=0.0)
    assert 5.0 < dial.setting().bias < 9.0


def test_zero_never_asks_and_one_always_does() -> None:
    for rate in (0.0, 1.0):
        assert ask(HelpDial(rate), random.Random(1), MODELS["wide"], 200) == rate


def test_step_of_the_formula_is_bounded() -> None:
    assert dial_step(0.0, True, 0.2) == pytest.approx(-0.24)
    assert dial_step(-BIAS_BOUND, True, 0.0) == -BIAS_BOUND


@given(st.lists(st.floats(-40, 40), min_size=1, max_size=60), st.floats(0.001, 0.999), st.floats(0.001, 0.999))
def test_the_threshold_falls_as_the_rate_rises(log_odds: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert threshold(log_odds, high) <= threshold(log_odds, low) + 1e-9


ANSWERS = st.lists(st.tuples(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)), st.booleans()), max_size=60)


@settings(deadline=None)
@given(ANSWERS, st.one_of(st.none(), st.floats(0, 1)), st.integers(0, 60))
def test_bias_is_always_finite_and_a_reloaded_dial_continues_identically(
    answers: list[tuple[float | None, bool]], rate: float | None, cut: int
) -> None:
    dial = HelpDial(rate, "math")
    for number, (log_odds, asked) in enumerate(answers):
        if number == cut:
            dial = HelpDial.from_json("math", dial.to_json())
        setting = dial.setting()
        assert -BIAS_BOUND <= setting.bias <= BIAS_BOUND and 0.0 <= setting.rate <= 1.0
        dial.answered(setting, asked, log_odds)
    again = HelpDial.from_json("math", dial.to_json())
    assert (again.snapshot(), again.to_json()) == (dial.snapshot(), dial.to_json())
    assert dial.snapshot().asked == sum(asked for _, asked in answers)


@settings(deadline=None)
@given(st.sampled_from(RATES), st.integers(0, 10_000), st.floats(-12, 12), st.floats(0.2, 6))
def test_any_steady_model_is_held_to_its_rate(rate: float, seed: int, mean: float, spread: float) -> None:
    realised = ask(HelpDial(rate), random.Random(seed), lambda rng, number: rng.gauss(mean, spread), 200)
    assert abs(realised - rate) <= 0.05


def asks_at(log_odds: float):
    """A model whose decision follows the bias; the scripted engine makes up ±2 as its log-odds."""
    return lambda messages, sampling, seed: (
        local_answer(5) if sampling.suppress_help or log_odds + sampling.help_bias <= 0 else HELP
    )


async def answer(agent: Agent, times: int, task: str | None = None) -> None:
    for _ in range(times):
        await agent.answerer.answer(AnswerRequest(QUESTION, task=task))


async def test_every_task_has_its_own_dial_and_a_rate_for_all_replaces_them(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=asks_at(-1.0))
    async with world.agent() as agent:
        agent.access.dials.set(0.4, "code")
        assert (agent.access.dial("code").target_rate, agent.access.dial("math").target_rate) == (0.4, None)
        await answer(agent, 50, "code")
        assert abs((agent.access.dial("code").realised_rate or 0) - 0.4) < 0.1
        assert agent.access.dial("math").questions == 0
        agent.access.dials.set(0.2)
        assert [agent.access.dial(task).target_rate for task in ("code", "math")] == [0.2, 0.2]
        assert not agent.access.dial("code").own
        for rate in (1.2, -0.1, float("nan")):
            with pytest.raises(UsageError, match=r"\[0, 1\]"):
                agent.access.dials.set(rate)


async def test_killed_agent_continues_with_the_dial_exactly_where_its_records_end(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=asks_at(-1.0))
    async with world.agent() as agent:
        agent.access.dials.set(0.4)
        await answer(agent, 9)
        with reading(tmp_path / "state") as state:  # what a kill would leave, while the agent is still open
            assert state is not None
            [kept] = stored_dials(state, None)
            assert len(state.requests(100)) == kept.snapshot().questions == 9
        before = agent.access.dial()
    assert kept.snapshot() == before
    async with world.agent() as agent:
        assert agent.access.dial() == before
        record = await agent.answerer.answer(AnswerRequest(QUESTION))
        assert (record.help_bias, record.target_rate) == (before.bias, 0.4)


async def test_new_dial_starts_from_earlier_answers_to_its_task(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=asks_at(-1.0))
    async with world.agent() as agent:
        await answer(agent, 5, "code")
    with StateFolder(tmp_path / "state") as state:
        with state.database as database:
            database.execute("DELETE FROM dials")
        book = Dials(state, 0.3, ManualClock())
        assert (book.of("code").snapshot().known_log_odds, book.of("math").snapshot().known_log_odds) == (5, 0)


async def test_of_arbitrary_client_labels_only_the_last_ones_keep_a_dial(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=asks_at(-1.0))
    async with world.agent() as agent:
        agent.access.dials.set(0.2, "own")
        for number in range(MOST_OTHER_DIALS + 20):
            await agent.answerer.answer(AnswerRequest(QUESTION, task="often"))
            await agent.answerer.answer(AnswerRequest(QUESTION, task=f"made-up-{number}"))
        assert len(agent.access.tasks) <= MOST_OTHER_DIALS + 3
        assert {"own", "often", f"made-up-{number}"} < set(agent.access.tasks)
        assert (agent.access.dial("own").own, agent.access.dial("often").questions) == (True, MOST_OTHER_DIALS + 20)
    with StateFolder(tmp_path / "state") as state:
        kept = {str(task) for (task,) in state.rows("SELECT task FROM dials")}
        assert {"own", "often"} < kept
        assert len(kept) <= MOST_OTHER_DIALS + 2


async def test_refused_or_undeliverable_help_request_counts_as_demand(tmp_path: Path) -> None:
    for number, error in enumerate([BudgetExhausted("used up"), CoordinatorUnavailable("nobody there")]):
        world = World(tmp_path / str(number), script=asks_at(-1.0), dial=0.3)
        world.client.fail_next("stream_complete", error, times=1000)
        async with world.agent() as agent:
            await answer(agent, 60)
            assert abs((agent.access.dial().realised_rate or 0.0) - 0.3) < 0.08
        assert world.client.calls == []


async def test_while_the_cloud_is_paused_the_dial_neither_counts_nor_moves(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=asks_at(-1.0), dial=0.3)
    async with world.agent() as agent:
        await answer(agent, 30)
        before = agent.access.dial()
        agent.access.pause_cloud(True)
        await answer(agent, 30)
        after = agent.access.dial()
        assert (after.questions, after.asked) == (before.questions, before.asked)
        assert after.known_log_odds == before.known_log_odds + 30


def test_rate_rises_among_answers_with_a_decision_where_others_have_none() -> None:
    dial = HelpDial(0.3)
    dial.warm([(0, log_odds, "") for number in range(50) for log_odds in (float(number), None)])
    assert dial.setting().rate == pytest.approx(0.6)


def test_new_rate_restarts_the_count() -> None:
    dial = HelpDial(0.3)
    dial.answered(dial.setting(), True, 1.0)
    dial.set(0.1, own=True, at=1.0)
    found = dial.snapshot()
    assert (found.realised_rate, found.realised_since_set, found.questions, found.asked) == (None, None, 0, 0)
    assert found.known_log_odds == 1


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.6])
def test_forms_whose_log_odds_lie_nats_apart_ask_at_one_rate_each(rate: float) -> None:
    rng, dial = random.Random(1), HelpDial(rate)
    asked: dict[str, list[bool]] = {"plain": [], "reasoned": []}
    for number in range(600):
        form = "plain" if number % 3 else "reasoned"
        log_odds = rng.gauss(-25.0, 4.0) if form == "plain" else rng.gauss(-3.0, 0.5)
        setting = dial.setting(0, form)
        asks = rng.random() < 1.0 / (1.0 + math.exp(-(log_odds + setting.bias)))
        dial.answered(setting, asks, log_odds)
        asked[form].append(asks)
    for form, asks in asked.items():
        assert abs(sum(asks) / len(asks) - rate) <= 0.08, form
    assert HelpDial.from_json("", dial.to_json()).setting(0, "plain") == dial.setting(0, "plain")


def test_answers_in_a_form_that_could_not_ask_do_not_raise_the_rate_of_the_others() -> None:
    dial = HelpDial(0.3)
    dial.warm((0, float(number), "plain") for number in range(40))
    before = dial.setting(0, "plain")
    for _ in range(40):
        dial.seen(None, 0, "plain")
    assert dial.setting(0, "plain") == before
