"""How much memory learning takes: estimated from shapes, made sure of before the first step, and the batch that suits a device.

The estimate is for the torch learner; it counts what autograd keeps and the largest temporaries, not the interpreter or libraries.

Letters: D width, Q = heads x head_dim, K = kv_heads x head_dim, F feed-forward width, H heads, S tokens attended to, r rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from edge.core.errors import EdgeError
from edge.core.types import TrainingGroup, TrainingSample
from edge.training.learner import LOGITS_AT_ONCE, Probing, prompt_budget

PLAIN_SCORES = 512 * 512
"""Largest T x S for which attention keeps its weights [H, T, S] (edge.models.decoder.MAX_PLAIN_SCORES)."""
SLACK = 1.3
"""Resident memory over the sum of an update's tensors: what the allocator keeps in addition. Measured 1.26, 1.25, 1.42 at three shapes."""
SAFE_SHARE = 0.25
"""A need of at most this share of what is free is not tried: the estimate is not wrong by a factor of four."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that memory depends on; `parameters` counts every weight."""

    parameters: int
    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_width: int

    @property
    def q_width(self) -> int:
        """Q."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """K."""
        return self.kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Key/value bytes of one token of a row in half precision."""
        return self.kv_bytes(2)

    def kv_bytes(self, value_bytes: int) -> int:
        """Key/value bytes of one token of a row whose numbers take this many bytes."""
        return 2 * value_bytes * self.layers * self.kv_width

    @property
    def block_weights(self) -> int:
        """Weights of the linear layers of all blocks: what a prompt's token is computed with."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linear_sizes().values())

    @property
    def token_weights(self) -> int:
        """Weights that a sampled token is computed with: those of the blocks and the output projection, tied or not."""
        return self.block_weights + self.vocab_size * self.width

    def linear_sizes(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of the linear layers of a block."""
        return {
            "q_proj": (self.width, self.q_width),
            "k_proj": (self.width, self.kv_width),
            "v_proj": (self.width, self.kv_width),
            "o_proj": (self.q_width, self.width),
            "gate_proj": (self.width, self.ffn_width),
            "up_proj": (self.width, self.ffn_width),
            "down_proj": (self.ffn_width, self.width),
        }


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What bounds a batch: context of a row, longest response, prompts a step, responses a prompt, padded tokens of a micro-batch."""

    context_tokens: int
    max_tokens: int
    prompts: int
    group_size: int
    tokens_per_slice: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """`rows` responses of C tokens to `prompts` prompts of P tokens, computed together with the prompts' own graph still alive."""

    prompts: int
    prompt_tokens: int
    rows: int
    response_tokens: int

    def __str__(self) -> str:
        rows, prompts = ("" if count == 1 else "s" for count in (self.rows, self.prompts))
        return f"{self.rows} response{rows} of {self.response_tokens} tokens to {self.prompts} prompt{prompts} of {self.prompt_tokens}"


@dataclass(frozen=True, slots=True)
class TrainingSetting:
    """How training holds things. `value_bytes` is 4 for fp32 and 2 for bf16.

    `rows` x `context_tokens` is what the sampler keeps, in numbers of `row_value_bytes`.
    """

    rank: int
    targets: tuple[str, ...]
    weights: Literal["resident", "streamed"] = "resident"
    value_bytes: int = 4
    vocab_chunk_elements: int = LOGITS_AT_ONCE
    checkpointing: bool = False
    rows: int = 0
    context_tokens: int = 0
    row_value_bytes: int = 2

    def row_bytes(self, shape: ModelShape) -> int:
        """What the sampler's rows take."""
        return self.rows * self.context_tokens * shape.kv_bytes(self.row_value_bytes)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes by purpose. `weights` are the trainer's floats: of the model, or of the one matrix in use where they stay in the file.

    `adapter` is the LoRA with its gradient, `optimiser` AdamW's two moments, `key_values` the sampler's rows.
    """

    weights: int
    key_values: int
    adapter: int
    optimiser: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.key_values + self.training

    @property
    def training(self) -> int:
        """What an update takes in addition to weights and key/value rows."""
        return self.adapter + self.optimiser + self.activations + self.logits


def memory_need(shape: ModelShape, batch: MicroBatch, setting: TrainingSetting) -> MemoryNeed:
    """What the micro-batch needs at its peak, in bytes."""
    adapter = 4 * lora_parameters(shape, setting)
    # In float32 three slabs of logits, two rows of the hidden states' gradient a token (edge.training.loss), and the rows of the
    # projection that a slab is computed with, where these stay in the file.
    tokens = max(1, batch.rows * batch.response_tokens)
    columns = min(shape.vocab_size, max(1, setting.vocab_chunk_elements // tokens))
    block = columns * shape.width if setting.weights == "streamed" else 0
    return MemoryNeed(
        weights=_weight_bytes(shape, setting),
        key_values=setting.row_bytes(shape),
        adapter=2 * adapter,
        optimiser=2 * adapter,
        activations=_activation_bytes(shape, batch, setting),
        logits=4 * (3 * tokens * columns + 2 * tokens * shape.width + block),
    )


def held_before_learning(shape: ModelShape, setting: TrainingSetting) -> int:
    """Bytes of the need that are in use once sampler and trainer are open: key/value rows, and weights held as floats."""
    loaded = _weight_bytes(shape, setting) if setting.weights == "resident" else 0
    return loaded + setting.row_bytes(shape)


def lora_parameters(shape: ModelShape, setting: TrainingSetting) -> int:
    """Weights of the adapter: r (inputs + outputs) of every target layer."""
    sizes = shape.linear_sizes()
    return shape.layers * setting.rank * sum(sum(sizes[target]) for target in setting.targets)


def _weight_bytes(shape: ModelShape, setting: TrainingSetting) -> int:
    if setting.weights == "streamed":
        return setting.value_bytes * max(inputs * outputs for inputs, outputs in shape.linear_sizes().values())
    return resident_bytes(shape, setting.value_bytes)


def resident_bytes(shape: ModelShape, value_bytes: int) -> int:
    """The trainer's weights where they are held in memory: the blocks' in the type of their products, the embedding in float32."""
    table = shape.vocab_size * shape.width
    return value_bytes * (shape.parameters - table) + 4 * table


def _activation_bytes(shape: ModelShape, batch: MicroBatch, setting: TrainingSetting) -> int:
    """The graphs of the prompts and of the responses, the keys and values between them, and a block's temporaries in backward."""
    prompt_tokens, response_tokens = batch.prompts * batch.prompt_tokens, batch.rows * batch.response_tokens
    attended = batch.prompt_tokens + batch.response_tokens
    between = 4 * shape.kv_width * (prompt_tokens + batch.rows * batch.prompt_tokens)
    prompts = _graph_elements(shape, prompt_tokens, batch.prompt_tokens, batch.prompt_tokens, setting.rank)
    responses = _graph_elements(shape, response_tokens, batch.response_tokens, attended, setting.rank)
    temporaries = 3 * max(prompt_tokens, response_tokens) * max(shape.ffn_width, shape.q_width)
    temporaries += 4 * response_tokens * _scores(shape, batch.response_tokens, attended)
    layers = shape.layers
    if setting.checkpointing:
        held = shape.width * (prompt_tokens + response_tokens) * layers
        elements = held + layers * between + max(prompts, responses) + temporaries
    else:
        elements = layers * (prompts + responses + between) + temporaries
    return math.ceil(SLACK * setting.value_bytes * elements)


def _graph_elements(shape: ModelShape, tokens: int, length: int, attended: int, rank: int) -> int:
    """What one block keeps of `tokens` tokens in rows of `length` that attend to `attended`: 4D + 2Q + 2K + 3F + 7r and H·S scores a token.

    Two residual sums and two norms (D); queries and what was attended to (Q); keys and values (K); gate, up and their product (F).
    """
    per_token = 4 * shape.width + 2 * (shape.q_width + shape.kv_width) + 3 * shape.ffn_width + 7 * rank
    return tokens * (per_token + _scores(shape, length, attended))


def _scores(shape: ModelShape, length: int, attended: int) -> int:
    """H·S a token where attention keeps its weights."""
    return shape.heads * attended if length * attended <= PLAIN_SCORES else 0


def worst_micro_batch(shape: ModelShape, limits: BatchLimits, setting: TrainingSetting) -> MicroBatch:
    """Of all micro-batches that the limits allow, with prompts as long as the context leaves room for, the one that needs most.

    The longest responses are not always it: more, shorter ones fit the same budget, and each attends to its whole prompt.
    """
    candidates = []
    for response_tokens in range(
        1, min(limits.max_tokens, limits.context_tokens - 1) + 1
    ):  # each cut as edge.training.batching cuts
        prompt_tokens = limits.context_tokens - response_tokens
        prompts = min(limits.prompts, max(1, prompt_budget(limits.tokens_per_slice) // prompt_tokens))
        rows = min(prompts * limits.group_size, max(1, limits.tokens_per_slice // response_tokens))
        candidates.append(MicroBatch(min(prompts, rows), prompt_tokens, rows, response_tokens))
    return max(candidates, key=lambda batch: memory_need(shape, batch, setting).total)


def probe_groups(batch: MicroBatch, vocab_size: int) -> list[TrainingGroup]:
    """Groups of made-up tokens of the micro-batch's shape, with a gradient in every response, none of it meant to be learned."""

    def tokens(start: int, length: int) -> tuple[int, ...]:  # distinct starts below the vocabulary's size give distinct texts
        return tuple((start + place) % vocab_size for place in range(length))

    groups, length = [], batch.response_tokens
    for index in range(batch.prompts):
        starts = range(index * batch.rows, index * batch.rows + len(range(index, batch.rows, batch.prompts)))
        samples = (TrainingSample(tokens(start, length), (-1.0,) * length, 1.0 if start % 2 else -1.0) for start in starts)
        groups.append(TrainingGroup(tokens(index, batch.prompt_tokens), tuple(samples), 1.0))
    return groups


# --- making sure before the first step ---


class OutOfMemory(EdgeError):
    """Learning as configured takes more memory than there is."""


def check_fits(need: MemoryNeed, batch: MicroBatch, free_bytes: int, held_bytes: int) -> bool:
    """Whether it certainly fits, so that there is nothing to try; `held_bytes` (weights, rows) are not free any more.

    Raises OutOfMemory when the estimate is larger than what is free.
    """
    missing = need.total - held_bytes
    if missing > free_bytes:
        raise does_not_fit(
            f"the longest micro-batch ({batch}) takes about {missing / _MIB:.0f} MiB, {free_bytes / _MIB:.0f} MiB are free"
        )
    return missing <= SAFE_SHARE * free_bytes


def does_not_fit(why: str) -> OutOfMemory:
    """The error, with what to lower."""
    return OutOfMemory(
        f"learning does not fit in memory: {why}",
        hint="lower learning.memory.micro_batch_tokens, learning.max_tokens, learning.context_tokens or engine.max_rows, leave "
        "learning.memory.gradient_checkpointing on auto, set engine.weights to streamed, or take a smaller model "
        "(learning.memory.memory_probe off tries anyway)",
    )


Choice = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What to make sure of. `probe` auto tries only what is uncertain, off nothing; `checkpointing` auto is off unless only on fits.

    `held_bytes` of the estimate are in use already. `estimated`: the estimate is made for this learner's engine; for another one it only
    shows what is certain to fit, and rejects nothing.
    """

    shape: ModelShape
    limits: BatchLimits
    setting: TrainingSetting
    held_bytes: int
    probe: Choice = "auto"
    checkpointing: Choice = "auto"
    estimated: bool = True


async def make_fit(learner: Probing, plan: ProbePlan, free_bytes: Callable[[], int]) -> None:
    """Choose the way to hold activations and try the longest micro-batch. Raises OutOfMemory when no way that is allowed fits.

    Each way (activations kept, or computed again in the backward pass) is judged on paper first, so that a machine that swaps or kills
    instead of failing is not pushed there, and then for real where the estimate is not certain.
    """
    ways = [plan.checkpointing == "on"]
    if plan.checkpointing == "auto" and plan.estimated and plan.probe != "off":
        ways = [False, True]
    shortage: OutOfMemory | None = None
    for checkpointing in ways:
        learner.use_checkpointing(checkpointing)
        if plan.probe == "off":
            return
        setting = replace(plan.setting, checkpointing=checkpointing)
        batch = worst_micro_batch(plan.shape, plan.limits, setting)
        need = memory_need(plan.shape, batch, setting)
        try:
            if plan.estimated:
                certain = check_fits(need, batch, free_bytes(), plan.held_bytes)
            else:
                certain = need.total <= SAFE_SHARE * free_bytes()
            if plan.probe == "on" or not certain:
                await learner.probe(probe_groups(batch, plan.shape.vocab_size))
            return
        except OutOfMemory as error:
            shortage = error
    assert shortage is not None
    raise shortage


# --- the batch that suits a device ---

WORTH_IT = 1.05
"""More rows are taken only where the tokens/s grow by at least this factor."""
MICRO_BATCH_TOKENS = (1024, 512, 256, 128, 64)
FREE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class BatchAdvice:
    """A batch. `memory_bytes` is what learning with it takes at its peak, weights and rows included; `fits` where that is free."""

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
    """The batch for this many rows together; group size and lengths stay as `limits` has them, `free_bytes` is with nothing loaded.

    Prompts: as many as fill the rows with their responses, so that no decode reads the weights for fewer rows than it could. Micro-batch:
    as large as fits in half of what is free, up to where more gains nothing.
    """
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
