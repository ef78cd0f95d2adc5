"""What every practice family has in common: drawn questions, their split, items and endless streams.

Everything is a pure function of a seed; the supply is unlimited. Train and test are disjoint by a hash of the question's text.

Every level belongs to a band: what the bundled SLM knows, what it can learn on the device, and what only the cloud can do. Two ways
of working make the difference. By *habit* (what it does at T = 0) group 1 stops thinking too early and group 2 goes on too long; the
*careful* way, which it samples now and then, takes one step for each thing asked for and then stops. So what is learned in one group
pulls against the other.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from edge.core.types import AnswerKind, Split, TaskItem
from edge.dagrpo.prompts import HELP_PHRASE

Band = Literal["known", "learnable", "beyond"]

TEST_SHARE = 0.1
"""Share of all possible questions that belongs to the test split."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Reasoning lines, and the text between `<answer>` and `</answer>`."""

    lines: tuple[str, ...]
    answer: str

    @property
    def text(self) -> str:
        """The response that answers."""
        return f"{format_steps(self.lines)}<answer>{self.answer}</answer>"


@dataclass(frozen=True, slots=True)
class Drawn:
    """One question with its worked solutions.

    `answer` is the reference by which a response is judged (for a program: its tests). `solution` keeps to the family's step limit
    and is right. `detailed` is right too, with as many steps as it takes. `careful` takes a step for each operation and stops at the
    limit with what it has: right unless the level is beyond the SLM. `habit` is right at known levels only.
    """

    level: int
    question: str
    answer: str
    solution: Solution
    detailed: Solution
    careful: Solution
    habit: Solution
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """One family of practice questions. `level_weights` is the default mix; its keys are the levels, from 1. `bands`: the band of each
    level, for the bundled SLMs (none for a family that they were not trained on)."""

    name: str
    task: str
    kind: AnswerKind
    max_steps: int
    level_weights: Mapping[int, float]
    draw_any: Callable[[random.Random, int], Drawn]
    about: str
    bands: Mapping[int, Band] = field(default_factory=dict)

    @property
    def levels(self) -> tuple[int, ...]:
        """The difficulty levels, easiest first."""
        return tuple(self.level_weights)

    def draw(self, rng: random.Random, split: Split, level: int) -> Drawn:
        """A question of `level`, drawn until its hash falls into `split`. Raises ValueError on an unknown level."""
        if level not in self.level_weights:
            raise ValueError(f"{self.name} has levels {self.levels[0]} to {self.levels[-1]}, not {level}")
        while True:
            drawn = self.draw_any(rng, level)
            if split_of(drawn.question) == split:
                return drawn

    def generate(self, seed: int, split: Split, level: int) -> TaskItem:
        """The item of `seed`: the same arguments give the same item everywhere. Raises ValueError on an unknown level."""
        return self.as_item(self.draw(random.Random(f"{self.name}/{split}/{level}/{seed}"), split, level), split)

    def stream(self, seed: int, split: Split, weights: Mapping[int, float] | None = None) -> Iterator[TaskItem]:
        """Items without end, their levels drawn by `weights` (level -> weight; the family's own mix when None)."""
        mix = self.level_weights if weights is None else weights
        rng = random.Random(f"{self.name}/stream/{split}/{seed}")
        while True:
            (level,) = rng.choices(list(mix), weights=list(mix.values()))
            yield self.generate(rng.getrandbits(48), split, level)

    def as_item(self, drawn: Drawn, split: Split) -> TaskItem:
        """The item of a drawn question; its solution keeps to the step limit."""
        text = "\n".join([drawn.question, *drawn.options])
        return TaskItem(
            id=f"{self.name}-{drawn.level}-{hashlib.sha256(text.encode()).hexdigest()[:12]}",
            task=self.task,
            family=self.name,
            level=drawn.level,
            split=split,
            question=drawn.question,
            answer=drawn.answer,
            kind=self.kind,
            max_steps=self.max_steps,
            options=drawn.options,
            solution=drawn.solution.text,
        )


def split_of(question: str) -> Split:
    """The split a question belongs to: a hash of its text decides, numbers included, options aside."""
    bucket = int.from_bytes(hashlib.sha256(question.encode()).digest()[:4]) / 2**32
    return "test" if bucket < TEST_SHARE else "train"


def boxed(answer: int | str) -> str:
    """The final result as the response format wants it."""
    return f"\\boxed{{{answer}}}"


def letter_of(options: Sequence[str], option: str) -> str:
    """The letter of an option. Raises ValueError when it is not among them."""
    return chr(ord("A") + options.index(option))


def format_help(lines: Sequence[str]) -> str:
    """A response that asks for help after its steps."""
    return f"{format_steps(lines)}{HELP_PHRASE}"


def format_steps(lines: Sequence[str]) -> str:
    """`<think>`, the lines as `Step 1:`, `Step 2:`, ..., `</think>` and a line break."""
    numbered = "".join(f"Step {number}: {line}\n" for number, line in enumerate(lines, start=1))
    return f"<think>\n{numbered}</think>\n"


def joined_beyond(lines: Sequence[str], limit: int, joint: str) -> tuple[str, ...]:
    """At most `limit` lines: the last one holds all the remaining ones, joined by `joint`."""
    if len(lines) <= limit:
        return tuple(lines)
    return (*lines[: limit - 1], joint.join(lines[limit - 1 :]))
