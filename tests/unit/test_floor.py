"""The floor of a learning step, compared with hand-computed numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge.training.floor import DeviceSpeed, ModelCost, StepMeasure, StepWork, decode_call_floor, step_floor

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
