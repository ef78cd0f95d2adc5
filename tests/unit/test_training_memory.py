"""The memory of learning, compared with hand-computed numbers for a small model, and the recommended batch."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from edge.core.errors import EdgeError
from edge.training.batching import live_rows, shared_bundles
from edge.training.learner import LORA_TARGETS
from edge.training.memory import (
    FREE_SHARE,
    MICRO_BATCH_TOKENS,
    SLACK,
    BatchLimits,
    MemoryNeed,
    MicroBatch,
    ModelShape,
    TrainingSetting,
    batch_advice,
    check_fits,
    lora_parameters,
    memory_need,
    probe_groups,
    rows_worth,
    worst_micro_batch,
)

SHAPE = ModelShape(parameters=1000, vocab_size=50, width=8, layers=2, heads=4, kv_heads=2, head_dim=2, ffn_width=16)
SETTING = TrainingSetting(rank=3, targets=LORA_TARGETS, rows=5, context_tokens=10)
BATCH = MicroBatch(prompts=1, prompt_tokens=6, rows=2, response_tokens=4)


def test_the_adapter_counts_inputs_and_outputs_of_every_target() -> None:
    # q 8+8, k 8+4, v 8+4, o 8+8, gate 8+16, up 8+16, down 16+8 = 128; 2 layers, rank 3
    assert lora_parameters(SHAPE, SETTING) == 2 * 3 * 128
    assert lora_parameters(SHAPE, replace(SETTING, targets=("q_proj", "v_proj"))) == 2 * 3 * (16 + 12)


def test_every_part_equals_the_hand_computed_value() -> None:
    need = memory_need(SHAPE, BATCH, SETTING)
    assert need.weights == 4 * 1000
    assert need.key_values == 5 * 10 * (2 * 2 * 2 * 4)  # K and V, 2 bytes, 2 layers, 4 wide
    assert (need.adapter, need.optimiser) == (2 * 4 * 768, 2 * 4 * 768)
    per_token = 4 * 8 + 2 * (8 + 4) + 3 * 16 + 7 * 3
    prompts = 6 * (per_token + 4 * 6)
    responses = 8 * (per_token + 4 * 10)
    between = 4 * 4 * (6 + 2 * 6)
    temporaries = 3 * 8 * 16 + 4 * 8 * 4 * 10
    assert need.activations == ceil(SLACK * 4 * (2 * (prompts + responses + between) + temporaries))
    assert need.logits == 4 * (3 * 8 * 50 + 2 * 8 * 8)
    assert need.total == sum((need.weights, need.key_values, need.adapter, need.optimiser, need.activations, need.logits))


def test_each_memory_option_saves_its_own_part() -> None:
    plain, streamed, half = (
        memory_need(SHAPE, BATCH, setting)
        for setting in (SETTING, replace(SETTING, weights="streamed"), replace(SETTING, value_bytes=2))
    )
    assert streamed.weights == 4 * 8 * 16, "the largest matrix of a block"
    assert streamed.logits == plain.logits + 4 * 50 * 8, "and a block of the projection"
    assert half.activations * 2 == pytest.approx(plain.activations, abs=2)
    assert half.weights == 2 * (1000 - 50 * 8) + 4 * 50 * 8, "all but the embedding"
    deep = replace(SHAPE, layers=40)
    again = memory_need(deep, BATCH, replace(SETTING, checkpointing=True))
    assert again.activations < memory_need(deep, BATCH, SETTING).activations / 3
    chunked = memory_need(replace(SHAPE, vocab_size=1_000_000), BATCH, replace(SETTING, vocab_chunk_elements=800))
    assert chunked.logits == 4 * (3 * 800 + 2 * 8 * 8)
    long = MicroBatch(prompts=1, prompt_tokens=2000, rows=1, response_tokens=1)
    assert memory_need(SHAPE, long, SETTING).activations < 4 * 2 * (2000 * 4 * 2000), "no attention weights of long rows"


def test_worst_micro_batch_costs_at_least_as_much_as_any_other_within_the_limits() -> None:
    limits = BatchLimits(context_tokens=64, max_tokens=20, prompts=4, group_size=4, tokens_per_slice=48)
    worst = worst_micro_batch(SHAPE, limits, SETTING)
    most = memory_need(SHAPE, worst, SETTING).total
    assert worst.prompt_tokens + worst.response_tokens == 64
    for tokens in range(1, 21):
        rows = min(4, 48 // tokens)
        assert memory_need(SHAPE, MicroBatch(1, 64 - tokens, rows, tokens), SETTING).total <= most
    assert worst == MicroBatch(1, 52, 4, 12)  # four responses fill the budget and look back at their prompt


@pytest.mark.parametrize(
    "limits",
    [
        BatchLimits(context_tokens=64, max_tokens=20, prompts=4, group_size=4, tokens_per_slice=48),
        BatchLimits(context_tokens=32, max_tokens=8, prompts=6, group_size=3, tokens_per_slice=200),
        BatchLimits(context_tokens=16, max_tokens=400, prompts=1, group_size=2, tokens_per_slice=8),
    ],
)
def test_probe_groups_become_exactly_the_worst_micro_batch(limits: BatchLimits) -> None:
    batch = worst_micro_batch(SHAPE, limits, SETTING)
    rows = live_rows(probe_groups(batch, SHAPE.vocab_size))
    bundles = shared_bundles(rows, limits.tokens_per_slice)
    assert [(len(bundle.prompts), [len(chunk) for chunk in bundle.chunks]) for bundle in bundles] == [
        (batch.prompts, [batch.rows])
    ]
    assert {len(row.prompt_ids) for row in rows} == {batch.prompt_tokens}
    assert {len(row.token_ids) for row in rows} == {batch.response_tokens}


def test_configuration_that_does_not_fit_is_refused_with_what_to_lower() -> None:
    need = MemoryNeed(weights=4 << 20, key_values=1 << 20, adapter=0, optimiser=0, activations=10 << 20, logits=0)
    assert not check_fits(need, BATCH, free_bytes=10 << 20, held_bytes=5 << 20)
    assert check_fits(need, BATCH, free_bytes=40 << 20, held_bytes=5 << 20)
    with pytest.raises(EdgeError, match="takes about 15 MiB, 12 MiB are free") as caught:
        check_fits(need, BATCH, free_bytes=12 << 20, held_bytes=0)
    assert "2 responses of 4 tokens to 1 prompt of 6" in str(caught.value)
    assert "learning.memory.micro_batch_tokens" in caught.value.hint


MODEL = ModelShape(2_000_000, 1000, width=192, layers=5, heads=6, kv_heads=2, head_dim=32, ffn_width=576)
LIMITS_OF_A_BATCH = BatchLimits(context_tokens=512, max_tokens=128, prompts=1, group_size=8, tokens_per_slice=1)
TRAINING = TrainingSetting(16, LORA_TARGETS, context_tokens=512)


def test_the_fewest_rows_that_are_about_as_fast_as_the_fastest() -> None:
    assert rows_worth({1: 100.0, 8: 600.0, 16: 970.0, 32: 1000.0, 64: 990.0}) == 16
    assert rows_worth({1: 100.0, 8: 600.0, 16: 1200.0}) == 16
    assert rows_worth({1: 100.0}) == 1
    with pytest.raises(ValueError):
        rows_worth({})


def test_with_less_memory_the_micro_batch_shrinks_before_activations_are_computed_again() -> None:
    needs = {
        (tokens, again): memory_need(MODEL, _worst(tokens, again), replace(TRAINING, rows=16, checkpointing=again)).total
        for tokens in MICRO_BATCH_TOKENS
        for again in (False, True)
    }
    smallest_kept, largest_again = needs[MICRO_BATCH_TOKENS[-1], False], needs[MICRO_BATCH_TOKENS[0], True]
    assert largest_again < smallest_kept * 4
    half = batch_advice(MODEL, LIMITS_OF_A_BATCH, TRAINING, 16, int(needs[512, False] / FREE_SHARE) + 2)
    assert (half.micro_batch_tokens, half.gradient_checkpointing, half.fits) == (512, False, True)
    assert half.memory_bytes == needs[512, False]
    short = batch_advice(MODEL, LIMITS_OF_A_BATCH, TRAINING, 16, int((smallest_kept - 1) / FREE_SHARE))
    assert (short.gradient_checkpointing, short.fits) == (True, True)
    none = batch_advice(MODEL, LIMITS_OF_A_BATCH, TRAINING, 16, 1 << 20)
    assert not none.fits


def _worst(tokens: int, again: bool):
    limits = replace(LIMITS_OF_A_BATCH, prompts=2, tokens_per_slice=tokens)
    return worst_micro_batch(MODEL, limits, replace(TRAINING, rows=16, checkpointing=again))
