"""The floor of a learning step, compared with hand-computed numbers; reports relate a step to it where the device was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edge.core.events import FanOutSink
from edge.learning.run_folder import RunFolder
from edge.state.events import StepFinished
from edge.training.floor import DeviceSpeed, ModelCost, StepMeasure, StepWork, decode_call_floor, step_floor
from tests.worlds.agent import World

DEVICE = DeviceSpeed(bytes_per_s=10e9, infer_flop_per_s=100e9, train_flop_per_s=200e9)
MODEL = ModelCost(weights=1_000_000_000, block_weights=750_000_000, bytes_per_weight=0.5, kv_bytes_per_token=20_000)
WORK = StepWork(prompts=2, group_size=8, prompt_tokens=320, response_tokens=128, rows=8, dropped_share=0.25)


def test_every_part_equals_the_hand_computed_value() -> None:
    floor = step_floor(DEVICE, MODEL, WORK)
    assert floor.prefill_s == pytest.approx(9.6)  # the blocks alone: 1.5e9 * 2 * 320 / 100e9
    # one decode of 8 rows computes 2e9 * 8 / 100e9 = 0.16 s and reads (0.5e9 + 8 * 20000 * 384) / 10e9 = 0.056144 s; 256 of them
    assert (floor.decode_s, floor.decode_bound) == (pytest.approx(40.96), "compute")
    assert floor.training_s == pytest.approx(40.32)  # 4e9 * 0.75 * 2 * (320 + 1024) / 200e9
    assert step_floor(DEVICE, MODEL, replace(WORK, passes=6)).training_s == pytest.approx(1.5 * 40.32), "with checkpointing"
    assert floor.total_s == pytest.approx(9.6 + 40.96 + 40.32)


def test_few_rows_are_bound_by_reading_the_weights() -> None:
    work = replace(WORK, rows=1)
    reading_s, computing_s = decode_call_floor(DEVICE, MODEL, work)
    assert (reading_s, computing_s) == (pytest.approx(0.050768), pytest.approx(0.02))
    floor = step_floor(DEVICE, MODEL, work)
    assert (floor.decode_s, floor.decode_bound) == (pytest.approx(2 * 8 * 128 * 0.050768), "bandwidth")


def test_a_step_of_a_run_has_no_more_rows_than_responses() -> None:
    measure = StepMeasure(DEVICE, MODEL, most_rows=64)
    counts = {"prompts": 2, "responses": 16, "prompt_tokens": 320.0, "response_tokens": 128.0, "dropped_share": 0.25}
    assert measure.floor(**counts) == step_floor(DEVICE, MODEL, replace(WORK, rows=16))
    assert replace(measure, most_rows=8).floor(**counts) == step_floor(DEVICE, MODEL, WORK)


def test_step_without_samples_has_no_floor() -> None:
    measure = StepMeasure(DEVICE, MODEL, most_rows=8)
    assert measure.floor(prompts=0, responses=0, prompt_tokens=0.0, response_tokens=0.0, dropped_share=0.0) is None


MEASURE = StepMeasure(
    DeviceSpeed(1e6, 1e6, 1e6),
    ModelCost(weights=1000, block_weights=1000, bytes_per_weight=1.0, kv_bytes_per_token=8.0),
    most_rows=6,
)


async def run(tmp_path: Path, measure: StepMeasure | None) -> tuple[Path, list[StepFinished]]:
    world = World(tmp_path / "state", measure=measure)
    folder = RunFolder(tmp_path / "run", "")
    world.sink = FanOutSink([world.sink, folder])  # type: ignore[assignment]
    async with world.agent(lambda name: world.clock.advance(1.5) if name == "collected" else None) as agent:
        finished = await agent.learn(max_steps=2)
        folder.finish(agent.components.state.steps(), finished, None)
        folder.close()
        return folder.folder, agent.components.state.steps()


async def test_measured_device_reports_floor_seconds_and_multiples_of_the_floor(tmp_path: Path) -> None:
    folder, steps = await run(tmp_path, MEASURE)
    for one in steps:
        assert one.time.floor_s is not None and one.time.floor_s > 0
        assert one.time.times_floor == pytest.approx(one.time.seconds / one.time.floor_s)
        assert one.time.seconds == pytest.approx(1.5)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["floor_s_per_step"] == pytest.approx(sum(one.time.floor_s or 0 for one in steps) / 2)
    assert summary["times_floor"] == pytest.approx(3.0 / sum(one.time.floor_s or 0 for one in steps))
    assert "times_floor" in (folder / "metrics.csv").read_text()


async def test_floor_of_a_step_uses_its_own_counts(tmp_path: Path) -> None:
    _, steps = await run(tmp_path, MEASURE)
    first = steps[0]
    tokens = first.time.tokens / first.scores.responses
    parts = [
        step_floor(
            MEASURE.device, MEASURE.model, StepWork(3, 4, prompt_tokens, tokens, 6, first.update.frac_reward_zero_std)
        ).total_s
        for prompt_tokens in (1, 2)
    ]
    per_prompt_token = parts[1] - parts[0]
    prompt_tokens = 1 + ((first.time.floor_s or 0) - parts[0]) / per_prompt_token
    assert prompt_tokens > 1
    assert 3 * prompt_tokens == pytest.approx(round(3 * prompt_tokens))


async def test_without_a_measured_device_no_floor_is_reported(tmp_path: Path) -> None:
    folder, steps = await run(tmp_path, None)
    assert [(one.time.floor_s, one.time.times_floor) for one in steps] == [(None, None)] * 2
    summary = json.loads((folder / "summary.json").read_text())
    assert not [key for key in summary if "floor" in key]
    assert "floor" not in (folder / "metrics.csv").read_text()
