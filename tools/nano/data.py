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

from edge.tasks.practice import arith
from edge.tasks.practice.arith import Problem

ModelName = Literal["nano-edge", "nano-cloud"]

SYSTEM_TEXT = "Think in steps."
"""The compact system text; the chat template inside the GGUF file always writes it and drops any other system message."""

EDGE_LEVEL_WEIGHTS: Mapping[int, float] = {1: 0.22, 2: 0.20, 3: 0.18, 4: 0.14, 5: 0.10, 6: 0.08, 7: 0.08}
CLOUD_LEVEL_WEIGHTS: Mapping[int, float] = {1: 0.10, 2: 0.11, 3: 0.13, 4: 0.15, 5: 0.16, 6: 0.17, 7: 0.18}
HELP_SHARES: Mapping[int, float] = {1: 0.04, 2: 0.08, 3: 0.12, 4: 0.16, 5: 0.28, 6: 0.28, 7: 0.28}
"""How often nano-edge is shown asking for help, by level."""

BATCH_ROWS = 32
POOL_BATCHES = 64
"""Batches drawn at once and sorted by length, so that a batch holds rows of similar length."""


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


def edge_response(rng: random.Random, problem: Problem) -> str:
    """What nano-edge is shown: one operation a step; beyond the step limit a last step that takes all the rest, or help."""
    level = len(problem.operations)
    if rng.random() < HELP_SHARES[level]:
        return arith.format_help(arith.plain_lines(problem)[: arith.MAX_STEPS])
    return arith.format_answer(arith.merged_lines(problem), problem.answer)


def cloud_response(problem: Problem) -> str:
    """What nano-cloud is shown: as many steps as it takes, each with its intermediate results."""
    return arith.format_answer(arith.detailed_lines(problem), problem.answer)


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
        examples = sorted((self._example(rng) for _ in range(POOL_BATCHES * BATCH_ROWS)), key=lambda e: e.length)
        batches = [collate(examples[i : i + BATCH_ROWS]) for i in range(0, len(examples), BATCH_ROWS)]
        rng.shuffle(batches)
        return batches

    def _example(self, rng: random.Random) -> Example:
        cloud = self._model == "nano-cloud"
        weights = CLOUD_LEVEL_WEIGHTS if cloud else EDGE_LEVEL_WEIGHTS
        (level,) = rng.choices(list(weights), weights=list(weights.values()))
        problem, question = arith.draw_question(rng, "train", level)
        response = cloud_response(problem) if cloud else edge_response(rng, problem)
        response_ids = self._tokenizer.encode(response).ids
        return Example(self._tokenizer.encode(prompt_text(question)).ids, [*response_ids, self._end_of_turn])


def collate(examples: list[Example]) -> Batch:
    """Rows padded on the right to the longest."""
    width = max(example.length for example in examples)
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    mask = torch.zeros(len(examples), width, dtype=torch.bool)
    loss = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        ids[row, : example.length] = torch.tensor(example.prompt_ids + example.response_ids)
        mask[row, : example.length] = True
        loss[row, len(example.prompt_ids) : example.length] = True
    return Batch(ids, mask, loss)
