"""The least time a learning step can take on a device, by one formula.

    T >= 2N_b·B·P/F_i + (B·G·C/R)·max((N·q + R·κ·(P+C/2))/BW, 2N·R/F_i) + a·N·(1-z)·B·(P+G·C)/F_t

N counts the weights that a token is computed with: those of the blocks and the output projection once, tied to the embedding or not. A
prompt's tokens go through the blocks alone (N_b): only the last one's logits are wanted. The prompts are prefilled once each, not once
per response; every token decoded reads the weights and the rows' key/value memory, or is bound by arithmetic; the prompt that a group
shares counts once in training. Attention, element-wise work, the optimiser and waiting for the cloud are left out: they are part of how
far from the floor a step is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PASSES, PASSES_WITH_CHECKPOINTING = 4, 5
"""a: FLOP per weight and token of a LoRA update (forward, and the gradient with respect to activations), without and with recomputing.
The latter takes neither a block's last product again, which is some 30 % of its weights, nor the output projection."""


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """What a device reaches: BW (bytes/s), F_i and F_t (FLOP/s of inference and of training)."""

    bytes_per_s: float
    infer_flop_per_s: float
    train_flop_per_s: float


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a token costs: N weights, N_b of them in the blocks, q bytes per weight in the file, κ key/value bytes per token of a row."""

    weights: int
    block_weights: int
    bytes_per_weight: float
    kv_bytes_per_token: float


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step does: B prompts of P tokens, G responses each of C tokens (means), R rows in flight, z share of dropped groups.

    `passes` is a.
    """

    prompts: float
    group_size: float
    prompt_tokens: float
    response_tokens: float
    rows: float
    dropped_share: float = 0.0
    passes: float = PASSES


@dataclass(frozen=True, slots=True)
class Floor:
    """The floor by part, in seconds, and what bounds decoding."""

    prefill_s: float
    decode_s: float
    decode_bound: Literal["bandwidth", "compute"]
    training_s: float

    @property
    def total_s(self) -> float:
        """T."""
        return self.prefill_s + self.decode_s + self.training_s


def step_floor(device: DeviceSpeed, model: ModelCost, work: StepWork) -> Floor:
    """The floor of a learning step by the formula above, part by part."""
    prefill_s = 2 * model.block_weights * work.prompts * work.prompt_tokens / device.infer_flop_per_s
    reading_s, computing_s = decode_call_floor(device, model, work)
    calls = work.prompts * work.group_size * work.response_tokens / work.rows
    # Groups that are dropped (all Â = 0) cost no training; a group's prompt counts once, because its responses share it.
    trained_tokens = (1 - work.dropped_share) * work.prompts * (work.prompt_tokens + work.group_size * work.response_tokens)
    return Floor(
        prefill_s=prefill_s,
        decode_s=calls * max(reading_s, computing_s),  # memory is read while the processor computes, so the slower one decides
        decode_bound="bandwidth" if reading_s >= computing_s else "compute",
        training_s=work.passes * model.weights * trained_tokens / device.train_flop_per_s,
    )


def decode_call_floor(device: DeviceSpeed, model: ModelCost, work: StepWork) -> tuple[float, float]:
    """Seconds of one decode of R rows for reading, (N·q + R·κ·(P+C/2))/BW, and for computing, 2N·R/F_i."""
    # A response grows from 0 to C tokens while it is decoded: on average half of it is in the key/value memory.
    kv_bytes = work.rows * model.kv_bytes_per_token * (work.prompt_tokens + work.response_tokens / 2)
    reading_s = (model.weights * model.bytes_per_weight + kv_bytes) / device.bytes_per_s
    return reading_s, 2 * model.weights * work.rows / device.infer_flop_per_s


@dataclass(frozen=True, slots=True)
class StepMeasure:
    """The floor of a run's steps: the device, the model, how many rows there are at most, and a."""

    device: DeviceSpeed
    model: ModelCost
    most_rows: int
    passes: float = PASSES

    def floor(
        self, *, prompts: int, responses: int, prompt_tokens: float, response_tokens: float, dropped_share: float
    ) -> Floor | None:
        """The floor of a step with these counts (tokens are means); None for a step that sampled nothing."""
        if not prompts or not responses:
            return None
        rows, group_size = min(self.most_rows, responses), responses / prompts
        work = StepWork(prompts, group_size, prompt_tokens, response_tokens, rows, dropped_share, self.passes)
        return step_floor(self.device, self.model, work)
