"""Training data of the bundled models: chats about practice items, as token ids. Everything follows from a seed, and a cursor (the number
of pools taken so far) is all the state there is.
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
from edge.tasks.practice.family import Band, Drawn, Family, format_help
from tools.nano.exercises import draw_exercise

ModelName = Literal["nano-edge", "nano-edge-llama", "nano-cloud"]

SYSTEM_TEXT = "Think in steps."
"""The compact system text; the chat template inside the GGUF file always writes it and drops any other system message."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The training data of nano-edge from pool `first_pool` on: weights of the families (and of EXERCISE), and the share of the careful
    way next to the habit. `whole`: with as many steps as it takes, beyond the step limit too."""

    first_pool: int
    families: Mapping[str, float]
    careful: float
    whole: bool = False


EXERCISE = "exercise"
EDGE_STAGES = (
    Stage(0, {EXERCISE: 1.0}, 1.0),
    Stage(16, {"science": 0.7, EXERCISE: 0.3}, 1.0, whole=True),
    Stage(30, {"arith": 0.38, "science": 0.33, "code": 0.17, "facts": 0.12}, 1.0),
    Stage(64, {"arith": 0.34, "science": 0.24, "code": 0.22, "facts": 0.20}, 0.35),
)
"""Copying and looking up come first, from exercises in which every token follows from the question, then looking up in sentences, then all
families, and habits last: a skill that is seldom used while it forms does not form (tools/experiments/LOG.md). The careful share of the
last stage is what it samples at T = 1; the habit is what it does at T = 0."""


@dataclass(frozen=True, slots=True)
class Mix:
    """How often each family is shown from pool `first_pool` on, and how many times as often its hardest level as its easiest."""

    first_pool: int
    families: Mapping[str, float]
    level_slope: float


CLOUD_MIXES = (
    Mix(0, {"arith": 0.36, "science": 0.24, "code": 0.27, "facts": 0.13}, 1.8),
    Mix(38, {"arith": 0.24, "science": 0.08, "code": 0.60, "facts": 0.08}, 1.8),
    Mix(54, {"arith": 0.40, "science": 0.05, "code": 0.50, "facts": 0.05}, 4.0),
)
"""nano-cloud learns long programs and long chains of arithmetic last, so it is shown more of them late."""

HELP_SHARES: Mapping[Band, float] = {"known": 0.07, "learnable": 0.11, "beyond": 0.17}
"""How often nano-edge is shown asking for help: seldom, and hardly more where it needs it. When to ask is left to learn."""
BATCH_ROWS = 32
POOL_BATCHES = 64
"""Batches drawn at once and sorted by length, so that a batch holds rows of similar length."""

WIDTH_MULTIPLE = 16


class TokenBatch(NamedTuple):
    """Right-padded rows [B, T]; `loss_BT` is true where the token is part of a response."""

    ids_BT: Tensor
    mask_BT: Tensor
    loss_BT: Tensor


@dataclass(frozen=True, slots=True)
class ChatExample:
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


def edge_stage(pool_number: int) -> Stage:
    """The stage of nano-edge in a pool of its training."""
    return [stage for stage in EDGE_STAGES if stage.first_pool <= pool_number][-1]


def edge_response(rng: random.Random, family: Family, drawn: Drawn, stage: Stage) -> str:
    """A training response of nano-edge: steps the careful way or by habit, then an answer, or a request for help."""
    if stage.whole:
        return drawn.detailed.text
    shown = drawn.careful if rng.random() < stage.careful else drawn.habit
    asks = rng.random() < HELP_SHARES[family.bands[drawn.level]]
    return format_help(shown.lines) if asks else shown.text


def cloud_mix(pool_number: int) -> Mix:
    """The mix of nano-cloud in a pool of its training."""
    return [mix for mix in CLOUD_MIXES if mix.first_pool <= pool_number][-1]


def cloud_level_weights(family: Family, slope: float) -> list[float]:
    """Weights that rise linearly from 1 at the easiest level to `slope` at the hardest."""
    last = len(family.levels) - 1
    return [1 + (slope - 1) * index / last for index in range(last + 1)]


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

    def batches(self, cursor: int) -> Iterator[TokenBatch]:
        """Batch number `cursor` and all later ones, independent of earlier batches."""
        pool_number, skipped = divmod(cursor, POOL_BATCHES)
        while True:
            yield from self._pool(pool_number)[skipped:]
            pool_number, skipped = pool_number + 1, 0

    def _pool(self, number: int) -> list[TokenBatch]:
        rng = random.Random(f"{self._model}/{self._seed}/{number}")
        examples = sorted((self._drawn(rng, number) for _ in range(POOL_BATCHES * BATCH_ROWS)), key=lambda e: e.length)
        batches = [collate(examples[i : i + BATCH_ROWS]) for i in range(0, len(examples), BATCH_ROWS)]
        rng.shuffle(batches)
        return batches

    def _drawn(self, rng: random.Random, pool_number: int) -> ChatExample:
        """One chat of a pool."""
        question, response = (
            self._cloud_chat(rng, pool_number) if self._model == "nano-cloud" else self._edge_chat(rng, pool_number)
        )
        prompt_ids = self._tokenizer.encode(prompt_text(question)).ids
        return ChatExample(prompt_ids, [*self._tokenizer.encode(response).ids, self._end_of_turn])

    def _cloud_chat(self, rng: random.Random, pool_number: int) -> tuple[str, str]:
        mix = cloud_mix(pool_number)
        family = FAMILIES[drawn_name(rng, mix.families)]
        (level,) = rng.choices(family.levels, weights=cloud_level_weights(family, mix.level_slope))
        drawn = family.draw(rng, "train", level)
        return shown_question(drawn), drawn.detailed.text  # as many steps as it takes, each with its intermediate results

    def _edge_chat(self, rng: random.Random, pool_number: int) -> tuple[str, str]:
        stage = EDGE_STAGES[-1] if self._model == "nano-edge-llama" else edge_stage(pool_number)
        name = drawn_name(rng, stage.families)
        if name == EXERCISE:
            return draw_exercise(rng)
        family = FAMILIES[name]
        (level,) = rng.choices(family.levels, weights=list(family.level_weights.values()))
        drawn = family.draw(rng, "train", level)
        return shown_question(drawn), edge_response(rng, family, drawn, stage)


def drawn_name(rng: random.Random, weights: Mapping[str, float]) -> str:
    """A name by its weight."""
    (name,) = rng.choices(list(weights), weights=list(weights.values()))
    return name


def collate(examples: list[ChatExample]) -> TokenBatch:
    """Rows padded on the right to one width: few different widths, because the CPU kernels keep a cache for each."""
    width = -(-max(example.length for example in examples) // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    mask = torch.zeros(len(examples), width, dtype=torch.bool)
    loss = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        ids[row, : example.length] = torch.tensor(example.prompt_ids + example.response_ids)
        mask[row, : example.length] = True
        loss[row, len(example.prompt_ids) : example.length] = True
    return TokenBatch(ids, mask, loss)
