"""The recommended batch: rows that still gain speed, prompts that fill them, and a micro-batch that fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge.training.learner import LORA_TARGETS
from edge.training.memory import (
    FREE_SHARE,
    MICRO_BATCH_TOKENS,
    BatchLimits,
    ModelShape,
    TrainingSetting,
    batch_advice,
    memory_need,
    rows_worth,
    worst_micro_batch,
)

SHAPE = ModelShape(2_000_000, 1000, width=192, layers=5, heads=6, kv_heads=2, head_dim=32, ffn_width=576)
LIMITS = BatchLimits(context_tokens=512, max_tokens=128, prompts=1, group_size=8, tokens_per_slice=1)
SETTING = TrainingSetting(16, LORA_TARGETS, context_tokens=512)


def test_the_fewest_rows_that_are_about_as_fast_as_the_fastest() -> None:
    assert rows_worth({1: 100.0, 8: 600.0, 16: 970.0, 32: 1000.0, 64: 990.0}) == 16
    assert rows_worth({1: 100.0, 8: 600.0, 16: 1200.0}) == 16
    assert rows_worth({1: 100.0}) == 1
    with pytest.raises(ValueError):
        rows_worth({})


def test_with_less_memory_the_micro_batch_shrinks_before_activations_are_computed_again() -> None:
    needs = {
        (tokens, again): memory_need(SHAPE, _worst(tokens, again), replace(SETTING, rows=16, checkpointing=again)).total
        for tokens in MICRO_BATCH_TOKENS
        for again in (False, True)
    }
    smallest_kept, largest_again = needs[MICRO_BATCH_TOKENS[-1], False], needs[MICRO_BATCH_TOKENS[0], True]
    assert largest_again < smallest_kept * 4
    half = batch_advice(SHAPE, LIMITS, SETTING, 16, int(needs[512, False] / FREE_SHARE) + 2)
    assert (half.micro_batch_tokens, half.gradient_checkpointing, half.fits) == (512, False, True)
    assert half.memory_bytes == needs[512, False]
    short = batch_advice(SHAPE, LIMITS, SETTING, 16, int((smallest_kept - 1) / FREE_SHARE))
    assert (short.gradient_checkpointing, short.fits) == (True, True)
    none = batch_advice(SHAPE, LIMITS, SETTING, 16, 1 << 20)
    assert not none.fits


def _worst(tokens: int, again: bool):
    limits = replace(LIMITS, prompts=2, tokens_per_slice=tokens)
    return worst_micro_batch(SHAPE, limits, replace(SETTING, rows=16, checkpointing=again))
