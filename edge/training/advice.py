"""Which batch suits a device, from what was measured there.

Rows: as many as still make generation faster. Prompts: as many as fill those rows with their responses, so that no decode reads the weights
for fewer rows than it could. Micro-batch: as large as fits in half of what is free, up to where more gains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from edge.training.memory import BatchLimits, ModelShape, TrainingSetting, memory_need, worst_micro_batch

WORTH_IT = 1.05
"""More rows are taken only for at least so many times the tokens/s."""
MICRO_BATCH_TOKENS = (1024, 512, 256, 128, 64)
FREE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class BatchAdvice:
    """A batch. `memory_bytes` is what learning with it takes at its fullest, weights and rows included; `fits` where that is free."""

    rows: int
    prompts: int
    group_size: int
    micro_batch_tokens: int
    gradient_checkpointing: bool
    memory_bytes: int
    fits: bool


def rows_worth(tokens_per_s: Mapping[int, float]) -> int:
    """The fewest rows that reach the best measured speed to within WORTH_IT. Raises ValueError without a measurement."""
    best = max(tokens_per_s.values())
    return min(rows for rows, speed in tokens_per_s.items() if speed * WORTH_IT >= best)


def batch_advice(shape: ModelShape, limits: BatchLimits, setting: TrainingSetting, rows: int, free_bytes: int) -> BatchAdvice:
    """The batch for so many rows together; group size and lengths stay as `limits` has them, `free_bytes` is with nothing loaded."""
    prompts = max(1, math.ceil(rows / limits.group_size))
    advice: BatchAdvice | None = None
    for checkpointing in (False, True):
        for tokens in MICRO_BATCH_TOKENS:
            held = replace(setting, rows=rows, checkpointing=checkpointing)
            limited = replace(limits, prompts=prompts, tokens_per_slice=tokens)
            need = memory_need(shape, worst_micro_batch(shape, limited, held), held).total
            fits = need <= FREE_SHARE * free_bytes
            advice = BatchAdvice(rows, prompts, limits.group_size, tokens, checkpointing, need, fits)
            if fits:
                return advice
    assert advice is not None
    return advice
