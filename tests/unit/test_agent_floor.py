"""Reports relate a step to its floor where the device was measured, and do not mention it elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge.core.events import FanOutSink
from edge.learning.run_folder import RunFolder
from edge.state.events import StepFinished
from edge.training.floor import DeviceSpeed, ModelCost, StepMeasure, StepWork, step_floor
from tests.worlds.agent import World

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
