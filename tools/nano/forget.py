"""How fast a bundled SLM forgets one group of families while it is fine-tuned on the other, without any care (the paper's Figure 2).

Knows plain supervised LoRA fine-tuning on worked solutions, first on one group and then on the other, and forced-local accuracy on both
along the way; knows nothing of rewards, clouds or budgets.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from edge.core.types import TaskItem
from edge.models.decoder import Decoder, load_decoder
from edge.models.gguf_reader import open_gguf
from edge.tasks.practice import FAMILIES, GROUPS
from edge.training.learner import LoraSpec
from edge.training.lora import inject_lora, lora_parameters
from tools.nano.data import BATCH_ROWS, Batch, Example, collate, prompt_text, shown_question
from tools.nano.evaluate import Responder
from tools.nano.tokenizer import tokenizer_from

DIRECTIONS = (("group1", "group2"), ("group2", "group1"))
LEARNING_RATE = 5e-3
"""Of AdamW on the adapter. Careless on purpose: at 1e-3, 50 steps on the other group cost nothing (`tools/experiments/LOG.md`)."""
TEST_SEED = 7_000_000


@dataclass(frozen=True, slots=True)
class Point:
    """Forced-local accuracy (T = 0, share of 1) of each group after `step` steps of fine-tuning on `trained_on`."""

    step: int
    trained_on: str
    accuracy: dict[str, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """One direction. `forgetting_points`: percentage points the first group lost while the second one was learned."""

    model: str
    first: str
    second: str
    items_per_group: int
    points: tuple[Point, ...]

    @property
    def forgetting_points(self) -> float:
        """during_task_acc - post_switch_acc of the first group, in percentage points."""
        during = [point for point in self.points if point.trained_on == self.first][-1]
        return 100 * (during.accuracy[self.first] - self.points[-1].accuracy[self.first])


@dataclass(frozen=True, slots=True)
class ForgetOptions:
    """Steps of 32 worked solutions on each group, how often to evaluate, test items of each group, AdamW's rate."""

    steps: int = 100
    every: int = 25
    items: int = 200
    seed: int = 0
    threads: int = 1
    learning_rate: float = LEARNING_RATE


def measure(path: Path, options: ForgetOptions) -> list[Curve]:
    """Both directions for one GGUF file."""
    torch.set_num_threads(options.threads)
    return [Run(path, options).curve(first, second) for first, second in DIRECTIONS]


class Run:
    """One model with a fresh adapter."""

    def __init__(self, path: Path, options: ForgetOptions) -> None:
        source = open_gguf(path)
        self._model = str(source.metadata("general.name"))
        self._options = options
        self._tokenizer = tokenizer_from(source.metadata("tokenizer.ggml.tokens"), source.metadata("tokenizer.ggml.merges"))
        self._decoder = load_decoder(path)
        inject_lora(self._decoder, LoraSpec(), options.seed)
        self._optimiser = torch.optim.AdamW(lora_parameters(self._decoder).values(), lr=options.learning_rate, weight_decay=0.0)

    def curve(self, first: str, second: str) -> Curve:
        """Fine-tune on `first`, then on `second`."""
        points = [self._point(0, first)]
        for group in (first, second):
            batches = group_batches(group, self._tokenizer, self._options.seed)
            for step in range(1, self._options.steps + 1):
                supervised_step(self._decoder, self._optimiser, next(batches))
                if step % self._options.every == 0:
                    points.append(self._point(step + self._options.steps * (group == second), group))
        return Curve(self._model, first, second, self._options.items, tuple(points))

    def _point(self, step: int, group: str) -> Point:
        responder = Responder(self._decoder, self._tokenizer, self._options.seed)
        accuracy = {name: group_accuracy(responder, name, self._options.items) for name in GROUPS}
        told = ", ".join(f"{name} {100 * share:.1f} %" for name, share in accuracy.items())
        print(f"{self._model} step {step}, learning {group}: {told}", file=sys.stderr, flush=True)
        return Point(step, group, accuracy)


def group_batches(group: str, tokenizer: Tokenizer, seed: int) -> Iterator[Batch]:
    """Worked solutions of one group's training questions without end, its families in turn, levels by the default mix."""
    rng = random.Random(f"forget/{group}/{seed}")
    families = itertools.cycle(FAMILIES[name] for name in GROUPS[group])
    (end,) = tokenizer.encode("<|im_end|>").ids
    while True:
        examples = []
        for family in itertools.islice(families, BATCH_ROWS):
            (level,) = rng.choices(family.levels, weights=list(family.level_weights.values()))
            drawn = family.draw(rng, "train", level)
            prompt = tokenizer.encode(prompt_text(shown_question(drawn))).ids
            examples.append(Example(prompt, [*tokenizer.encode(drawn.solution.text).ids, end]))
        yield collate(examples)


def supervised_step(decoder: Decoder, optimiser: torch.optim.Optimizer, batch: Batch) -> None:
    """One AdamW step on the mean loss of the response tokens."""
    wanted = batch.loss_BT[:, 1:]
    logits = decoder.lm_head(decoder.hidden_states(batch.ids_BT[:, :-1]).states_BTD[wanted])
    optimiser.zero_grad(set_to_none=True)
    torch.autograd.backward(F.cross_entropy(logits.float(), batch.ids_BT[:, 1:][wanted]))
    optimiser.step()


def group_accuracy(responder: Responder, group: str, items: int) -> float:
    """Forced-local accuracy at T = 0 on `items` test questions, the families in equal parts, levels by the default mix."""
    return sum(family_accuracy(responder, name, items // len(GROUPS[group])) for name in GROUPS[group]) / len(GROUPS[group])


def family_accuracy(responder: Responder, name: str, items: int) -> float:
    """Forced-local accuracy of one family."""
    family = FAMILIES[name]
    questions: list[TaskItem] = list(itertools.islice(family.stream(TEST_SEED, "test"), items))
    samples = responder.sample(questions, 0.0, family.max_steps, suppress_help=True)
    return sum(sample.correct for sample in samples) / items


def write_curves(curves: Sequence[Curve], folder: Path) -> None:
    """`forgetting.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    document = [asdict(curve) | {"forgetting_points": curve.forgetting_points} for curve in curves]
    (folder / "forgetting.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
