"""The real run of a validation, with a scripted model and cloud in place of the bundled ones, and the whole command."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edge.config.device import DecodeRate, DeviceConfig, SpeedConfig
from edge.config.schema import PhaseConfig
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.rng import stream
from edge.core.types import Message, Sampling
from edge.dagrpo.prompts import compact_question
from edge.rpc.client import CloudCall
from edge.testing.backend import ScriptedBackend
from tests.worlds.agent import HELP, World, local_answer
from tools.places import put_json
from tools.simulate.__main__ import main
from tools.simulate.fleet.profiles import load_device
from tools.simulate.validation.command import archive_of, config_for, read_archive, simulate
from tools.simulate.validation.comparison import compare
from tools.simulate.validation.real import Known, Measured, Plan, RealRun, facts_of, make_plan
from tools.simulate.validation.seen import Sampled

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
        return await run.measured(world.sink)


def cloud_answer(call: CloudCall) -> str:
    return local_answer(len(call.messages[-1].content))


def test_a_plan_asks_each_question_once_and_calibrates_on_others() -> None:
    plan = make_plan(60, 2.0, 0.3, 5, 1)
    every = [compact_question(item) for item in (*plan.items, *plan.local_calibration, *plan.cloud_calibration)]
    assert len(set(every)) == len(every) == 60 + 24 + 24
    assert all(item.split == "test" for item in plan.items)
    assert list(plan.arrivals_s) == sorted(plan.arrivals_s)
    assert plan == make_plan(60, 2.0, 0.3, 5, 1) != make_plan(60, 2.0, 0.3, 5, 2)


async def test_every_question_is_answered_in_order_and_never_before_it_arrives(tmp_path: Path) -> None:
    plan = make_plan(24, MINUTES, None, 0, 1)
    found = await measured(tmp_path, plan)
    answers = found.run.answers
    assert [each.arrived_s for each in answers] == list(plan.arrivals_s)
    assert [each.began_s for each in answers] == sorted(each.began_s for each in answers)
    assert all(each.began_s > each.arrived_s - 1e-6 and each.total_s >= each.first_s > 0.0 for each in answers)
    assert {each.source for each in answers} == {"local", "cloud"}
    assert [tokens is not None for tokens in found.cloud_tokens] == [each.asked for each in answers]
    assert (len(found.local), len(found.cloud)) == (len(plan.local_calibration), len(plan.cloud_calibration))


async def scripted(folder: Path, plan: Plan) -> tuple[Known, Measured]:
    """What a scripted model's run was, and what is known of its questions; whether it asks is in its script alone."""
    found = await measured(folder, plan)
    facts = await facts_of(ScriptedBackend(script), plan.items, World(folder).answer_settings())
    asks = [replace(each, log_odds=2.0 if seen.asked else -2.0) for each, seen in zip(facts, found.run.answers, strict=True)]
    return Known(tuple(asks), (Sampled(1, 3, 4, 0, 0.2, 12, 15.0),)), found


async def test_what_was_run_is_simulated_with_the_same_decisions_and_the_profile_that_was_written(tmp_path: Path) -> None:
    plan = make_plan(24, MINUTES, None, 2, 1)
    known, found = await scripted(tmp_path / "real", plan)
    archive = archive_of(faster_than_any(), known, found, plan, config_for(tmp_path / "state"), (99.0, 99.0))
    replayed = await asyncio.to_thread(simulate, archive, tmp_path, lambda line: None)
    assert [each.source for each in replayed.run.answers] == [each.source for each in found.run.answers]
    assert [each.local_tokens for each in replayed.run.answers] == [each.local_tokens for each in found.run.answers]
    assert len(replayed.run.steps) == 2
    assert load_device(str(tmp_path / "profile.yaml")).overhead_s == pytest.approx(replayed.local.overhead_s, rel=1e-3)
    assert "while the machine was busy" in (tmp_path / "profile.yaml").read_text(encoding="utf-8")
    assert {row.name.split(",")[0] for row in compare(found.run, replayed.run)} >= {"realised rate", "λ after the last step"}


async def test_an_archived_validation_is_simulated_again_with_the_same_result(tmp_path: Path) -> None:
    plan = make_plan(24, MINUTES, None, 2, 1)
    known, found = await scripted(tmp_path / "real", plan)
    archive = archive_of(faster_than_any(), known, found, plan, config_for(tmp_path / "state"), (0.0, 0.0))
    put_json(archive, tmp_path / "kept.json")
    assert read_archive(tmp_path / "kept.json") == archive
    results = []
    for name in ("one", "two"):
        arguments = ["validate", "--again", str(tmp_path / "kept.json"), "--out", str(tmp_path / name)]
        assert await asyncio.to_thread(main, arguments) == 0
        results.append(read_archive(tmp_path / name / "validation.json"))
    assert results[0] == results[1]
    assert results[0].result["rows"] and results[0].measured == archive.measured


@pytest.mark.parametrize("content", [None, '{"format": 1}'])
def test_what_is_no_archive_is_refused_in_one_line(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "kept.json").write_text(content)
    assert main(["validate", "--again", str(tmp_path / "kept.json"), "--out", str(tmp_path / "out")]) == UsageError.exit_code
    assert len(capsys.readouterr().err.splitlines()) == 1


def faster_than_any() -> DeviceConfig:
    decode = (DecodeRate(rows=1, tokens_per_s=1e5),)
    return DeviceConfig(speeds=(SpeedConfig(model="m", prefill_tokens_per_s=1e5, decode=decode, training_tokens_per_s=1e5),))


@pytest.mark.parametrize(
    ("option", "value"), [("--minutes", "0"), ("--questions", "7"), ("--steps", "-1"), ("--dial", "1.5"), ("--seed", "-2")]
)
def test_what_cannot_be_run_is_refused_before_anything_is_measured(
    tmp_path: Path, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", option, value, "--out", str(tmp_path / "out")]) == UsageError.exit_code
    assert option in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
