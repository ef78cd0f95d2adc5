"""The real run of a validation, with a scripted model and cloud in place of the bundled ones, and the whole command behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from edge.config.schema import PhaseConfig
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.rng import stream
from edge.core.types import Message, Sampling
from edge.dagrpo.prompts import compact_question
from edge.inference.scripted import ScriptedBackend
from edge.rpc.client import CloudCall
from tests.unit.agent_world import HELP, World, local_answer
from tools.simulate.__main__ import main
from tools.simulate.validation.real import Measured, Plan, RealRun, facts_of, make_plan, with_cloud_tokens
from tools.simulate.validation.seen import Facts

MINUTES = 0.002


def script(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
    """Asks at every third question or so, and never where it must not."""
    asks = stream(7, messages[-1].content).random() < 0.35
    return HELP if asks and not sampling.suppress_help and sampling.help_bias > -10.0 else local_answer(7)


async def measured(folder: Path, plan: Plan) -> Measured:
    world = World(folder, script=script, phases=(PhaseConfig(source="sums", target_rate=0.3, steps=9),))
    world.clock = SystemClock()  # type: ignore[assignment]
    world.client = type(world.client)(cloud_answer, terms=world.terms)
    async with world.agent() as agent:
        run = RealRun(agent, plan, lambda line: None, SystemClock())
        return await run.measured(world.sink, 0.5)


def cloud_answer(call: CloudCall) -> str:
    return local_answer(len(call.messages[-1].content))


def test_a_plan_asks_each_question_once_and_calibrates_on_others() -> None:
    plan = make_plan(60, 2.0, 0.3, 5, 1)
    every = [compact_question(item) for item in (*plan.items, *plan.local_calibration, *plan.cloud_calibration)]
    assert len(set(every)) == len(every) == 60 + 24 + 24
    assert all(item.split == "test" for item in plan.items)
    assert list(plan.arrivals_s) == sorted(plan.arrivals_s)
    assert plan == make_plan(60, 2.0, 0.3, 5, 1) != make_plan(60, 2.0, 0.3, 5, 2)


def test_arrivals_come_at_the_rate_that_the_minutes_ask_for() -> None:
    assert make_plan(400, 2.0, 0.3, 0, 1).arrivals_s[-1] == pytest.approx(120.0, rel=0.15)


async def test_every_question_is_answered_in_order_and_never_before_it_arrives(tmp_path: Path) -> None:
    plan = make_plan(24, MINUTES, None, 0, 1)
    found = await measured(tmp_path, plan)
    answers = found.run.answers
    assert [each.number for each in answers] == list(range(24))
    assert all(each.began_s > each.arrived_s - 1e-6 and each.total_s >= each.first_s > 0.0 for each in answers)
    assert {each.source for each in answers} == {"local", "cloud"}
    assert [tokens is not None for tokens in found.cloud_tokens] == [each.asked for each in answers]


async def test_the_calibration_is_none_of_the_run_and_all_of_the_plan(tmp_path: Path) -> None:
    plan = make_plan(24, MINUTES, None, 0, 1)
    found = await measured(tmp_path, plan)
    assert (len(found.local), len(found.cloud)) == (len(plan.local_calibration), len(plan.cloud_calibration))
    assert all(timed.tokens > 1 for timed in (*found.local, *found.cloud))


async def test_learning_steps_are_told_with_the_price_that_the_coordinator_gave(tmp_path: Path) -> None:
    found = await measured(tmp_path, make_plan(8, MINUTES, None, 3, 1))
    assert len(found.run.steps) == 3
    before = found.run.dual_init
    for step in found.run.steps:
        assert step.dual == pytest.approx(before + 0.1 * (step.assist_rate - 0.3))
        before = step.dual


async def test_facts_are_both_lengths_of_each_question(tmp_path: Path) -> None:
    plan = make_plan(24, MINUTES, None, 0, 1)
    settings = World(tmp_path).answer_settings()
    facts = await facts_of(ScriptedBackend(script), plan.items, settings)
    asking = [each for each in facts if each.asking_tokens != each.local_tokens]
    assert 0 < len(asking) < len(facts)
    assert all(each.prompt_tokens > 0 and each.log_odds == -2.0 for each in facts)


def test_where_the_cloud_was_not_asked_its_usual_length_stands() -> None:
    facts = with_cloud_tokens([Facts(1, 2, 3, None), Facts(1, 2, 3, None)], [7, None], 40)
    assert [each.cloud_tokens for each in facts] == [7, 40]


@pytest.mark.parametrize(
    ("option", "value"), [("--minutes", "0"), ("--questions", "7"), ("--steps", "-1"), ("--dial", "1.5"), ("--seed", "-2")]
)
def test_what_cannot_be_run_is_refused_before_anything_is_measured(
    tmp_path: Path, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", option, value, "--out", str(tmp_path / "out")]) == UsageError.exit_code
    assert option in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
