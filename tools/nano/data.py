"""Training data of the bundled models: chats about practice items, as token ids.

Knows what each model is shown; knows nothing of optimisers. Everything follows from a seed, and a cursor (the number of pools
taken so far) is all the state there is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from edge.tasks.practice import FAMILIES
from edge.tasks.practice.family import Drawn, Family, format_help
from tools.nano.exercises import draw_exercise

ModelName = Literal["nano-edge", "nano-edge-llama", "nano-cloud"]

SYSTEM_TEXT = "Think in steps."
"""The compact system text; the chat template inside the GGUF file always writes it and drops any other system message."""

EDGE_FAMILY_WEIGHTS: Mapping[str, float] = {"arith": 0.32, "science": 0.22, "code": 0.22, "facts": 0.24}
CLOUD_FAMILY_WEIGHTS: Mapping[str, float] = {"arith": 0.36, "science": 0.24, "code": 0.27, "facts": 0.13}
CLOUD_LATE_FAMILY_WEIGHTS: Mapping[str, float] = {"arith": 0.24, "science": 0.08, "code": 0.60, "facts": 0.08}
"""What nano-cloud sees from pool `CLOUD_LATE_POOL` on: mostly programs, which it learns last."""
CLOUD_LATE_POOL = 38
CLOUD_LEVEL_SLOPE = 1.8
"""nano-cloud sees the hardest level of a family this many times as often as the easiest."""
HELP_SHARES: tuple[float, float] = (0.04, 0.16)
"""How often nano-edge is shown asking for help at the easiest level, and at the last one that its steps suffice for."""
HELP_SHARE_BEYOND = 0.28
"""How often it is shown asking for help at levels beyond the step limit."""

BATCH_ROWS = 32
POOL_BATCHES = 64
"""Batches drawn at once and sorted by length, so that a batch holds rows of similar length."""

WIDTH_MULTIPLE = 16
EXERCISE_POOLS: Mapping[ModelName, int] = {"nano-edge": 21, "nano-edge-llama": 0, "nano-cloud": 0}
"""How many of the first pools (64 steps each) hold finger exercises only; the others grow out of a model that has done them."""


class Batch(NamedTuple):
    """Right-padded rows [B, T]; `loss_BT` is true where the token is part of a response."""

    ids_BT: Tensor
    mask_BT: Tensor
    loss_BT: Tensor


@dataclass(frozen=True, slots=True)
class Example:
    """One chat: the ids of the prompt, and of the response with its end of turn."""

    prompt_ids: list[int]
    response_ids: list[int]

    @property
    def length(self) -> int:
        """Tokens of the whole chat."""
        return len(self.prompt_ids) + len(self.response_ids)


def prompt_text(question: str) -> str:
    """The chat template applied to one question, up to where the response begins."""
    return f"<|im_start|>system\n{SYSTEM_TEXT}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def help_share(family: Family, level: int) -> float:
    """How often nano-edge is shown asking for help at a level."""
    if level > family.max_steps:
        return HELP_SHARE_BEYOND
    low, high = HELP_SHARES
    return low + (high - low) * (level - 1) / (family.max_steps - 1)


def edge_response(rng: random.Random, family: Family, drawn: Drawn) -> str:
    """What nano-edge is shown: one operation a step, within the step limit; beyond it a hasty answer, or help."""
    if rng.random() < help_share(family, drawn.level):
        return format_help(drawn.plain_lines[: family.max_steps])
    return drawn.hasty.text


def cloud_response(drawn: Drawn) -> str:
    """What nano-cloud is shown: as many steps as it takes, each with its intermediate results."""
    return drawn.detailed.text


def family_weights(model: ModelName, pool_number: int) -> Mapping[str, float]:
    """How often a model is shown each family in a pool of its training."""
    if model != "nano-cloud":
        return EDGE_FAMILY_WEIGHTS
    return CLOUD_FAMILY_WEIGHTS if pool_number < CLOUD_LATE_POOL else CLOUD_LATE_FAMILY_WEIGHTS


def cloud_level_weights(family: Family) -> list[float]:
    """Weights that rise linearly from the easiest to the hardest level."""
    last = len(family.levels) - 1
    return [1 + (CLOUD_LEVEL_SLOPE - 1) * index / last for index in range(last + 1)]


def shown_question(drawn: Drawn) -> str:
    """The question with its options, as the compact prompt form has it."""
    options = (f"{chr(ord('A') + index)}. {option}" for index, option in enumerate(drawn.options))
    return "\n".join([drawn.question, *options])


class ExampleSource:
    """Batches without end for one model."""

    def __init__(self, model: ModelName, tokenizer: Tokenizer, seed: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._seed = seed
        (self._end_of_turn,) = tokenizer.encode("<|im_end|>").ids

    def batches(self, cursor: int) -> Iterator[Batch]:
        """Batch number `cursor` and all after it, the same ones whatever was taken before."""
        pool_number, skipped = divmod(cursor, POOL_BATCHES)
        while True:
            yield from self._pool(pool_number)[skipped:]
            pool_number, skipped = pool_number + 1, 0

    def _pool(self, number: int) -> list[Batch]:
        rng = random.Random(f"{self._model}/{self._seed}/{number}")
        examples = sorted((self._drawn(rng, number) for _ in range(POOL_BATCHES * BATCH_ROWS)), key=lambda e: e.length)
        batches = [collate(examples[i : i + BATCH_ROWS]) for i in range(0, len(examples), BATCH_ROWS)]
        rng.shuffle(batches)
        return batches

    def _drawn(self, rng: random.Random, pool_number: int) -> Example:
        if pool_number < EXERCISE_POOLS[self._model]:
            return self._chat(*draw_exercise(rng))
        return self._example(rng, family_weights(self._model, pool_number))

    def _chat(self, question: str, response: str) -> Example:
        response_ids = [*self._tokenizer.encode(response).ids, self._end_of_turn]
        return Example(self._tokenizer.encode(prompt_text(question)).ids, response_ids)

    def _example(self, rng: random.Random, weights: Mapping[str, float]) -> Example:
        cloud = self._model == "nano-cloud"
        (name,) = rng.choices(list(weights), weights=list(weights.values()))
        family = FAMILIES[name]
        level_weights = cloud_level_weights(family) if cloud else list(family.level_weights.values())
        (level,) = rng.choices(family.levels, weights=level_weights)
        drawn = family.draw(rng, "train", level)
        response = cloud_response(drawn) if cloud else edge_response(rng, family, drawn)
        return self._chat(shown_question(drawn), response)


def collate(examples: list[Example]) -> Batch:
    """Rows padded on the right to one width: few different widths, because the CPU kernels keep a cache for each."""
    width = -(-max(example.length for example in examples) // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    mask = torch.zeros(len(examples), width, dtype=torch.bool)
    loss = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        ids[row, : example.length] = torch.tensor(example.prompt_ids + example.response_ids)
        mask[row, : example.length] = True
        loss[row, len(example.prompt_ids) : example.length] = True
    return Batch(ids, mask, loss)
