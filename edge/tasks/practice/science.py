"""Practice family `science`: multiple choice by small deductions from what the question states.

A question states the links of one chain and of a short second one in mixed order, and asks where the chain from a given start ends.
Worked solutions box the option's text (a letter would do as well, see edge.verifiers.choice_answer): a small decoder then needs no
look-up of letters.
The level is the number of links to follow; the step limit is 4, so at levels 5 and 6 one link a step does not reach the end. By
habit an SLM stops after two links, also where more are asked for. What is reached after two or four steps is always among the options.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass

from edge.core.types import AnswerKind
from edge.tasks.practice.family import Drawn, Family, Solution, boxed, joined_beyond, letter_of

MAX_STEPS = 4
HABIT_STEPS = 2
LEVEL_WEIGHTS: Mapping[int, float] = {1: 0.19, 2: 0.19, 3: 0.17, 4: 0.17, 5: 0.14, 6: 0.14}
OPTIONS = 4
SIDE_CHAIN = 3
"""Things of the second chain, which has nothing to do with the answer."""
TURNED_SHARE = 0.15
"""How often a link is stated from its other end, in the themes that can."""


@dataclass(frozen=True, slots=True)
class ChainTheme:
    """One kind of chain. `{a}` leads to `{b}`; `turned` states the same link from the other end; `step` is its wording in a solution."""

    things: tuple[str, ...]
    link: tuple[str, ...]
    turned: tuple[str, ...]
    question: tuple[str, ...]
    step: str


MACHINES = ChainTheme(
    things=("lamp", "pump", "fan", "motor", "bell", "valve", "heater", "drill", "crane", "siren", "gate", "printer"),
    link=("The {a} starts the {b}.", "The {a} switches on the {b}."),
    turned=("The {b} is started by the {a}.",),
    question=(
        "Someone switches on the {a}. What starts last?",
        "The {a} is turned on. Which machine is the last to start?",
    ),
    step="the {a} starts the {b}",
)
ANIMALS = ChainTheme(
    things=("owl", "fox", "hawk", "snake", "frog", "beetle", "spider", "trout", "mouse", "lizard", "moth", "crab"),
    link=("The {a} eats the {b}.", "The {a} hunts the {b}."),
    turned=("The {b} is eaten by the {a}.",),
    question=(
        "Follow the food chain down from the {a}. What is at its end?",
        "Which animal is at the bottom of the food chain of the {a}?",
    ),
    step="the {a} eats the {b}",
)
HEAT = ChainTheme(
    things=("rod", "plate", "pan", "stone", "wire", "coil", "brick", "pipe", "spoon", "kettle", "tank", "cup"),
    link=("The {a} warms the {b}.", "Heat flows from the {a} to the {b}."),
    turned=("The {b} is warmed by the {a}.",),
    question=(
        "A flame heats the {a}. Where does the heat end up?",
        "The {a} gets hot. Which thing gets warm last?",
    ),
    step="the {a} warms the {b}",
)
KINDS = ChainTheme(
    things=("wug", "dax", "zorp", "blick", "fep", "toma", "rell", "nim", "gorp", "vint", "sork", "plim"),
    link=("Every {a} is a {b}.", "Each {a} is a kind of {b}."),
    turned=(),
    question=(
        "Pip is a {a}. What is Pip in the widest sense?",
        "Mo is a {a}. What is the most general thing that Mo is?",
    ),
    step="every {a} is a {b}",
)
WEIGHTS = ChainTheme(
    things=("cork", "coin", "book", "shoe", "lemon", "brush", "ball", "clock", "chair", "bottle", "drum", "rope"),
    link=("The {a} is heavier than the {b}.", "The {a} weighs more than the {b}."),
    turned=("The {b} is lighter than the {a}.",),
    question=(
        "Of all things known to be lighter than the {a}, which is the lightest?",
        "Which is the lightest of the things that must weigh less than the {a}?",
    ),
    step="the {a} is heavier than the {b}",
)
THEMES = (MACHINES, ANIMALS, HEAT, KINDS, WEIGHTS)


def draw(rng: random.Random, level: int) -> Drawn:
    """A question with `level` links to follow."""
    theme = rng.choice(THEMES)
    things = rng.sample(theme.things, level + 1 + SIDE_CHAIN)
    chain, side = things[: level + 1], things[level + 1 :]
    links = [*itertools.pairwise(chain), *itertools.pairwise(side)]
    rng.shuffle(links)
    links_text = " ".join(sentence_of(rng, theme, a, b) for a, b in links)
    options = draw_options(rng, chain, side)
    lines = tuple(theme.step.format(a=a, b=b) for a, b in itertools.pairwise(chain))
    answer = boxed(chain[-1])

    def after(steps: int) -> Solution:
        return Solution(lines[:steps], boxed(chain[min(steps, level)]))

    return Drawn(
        level=level,
        question=f"{links_text} {rng.choice(theme.question).format(a=chain[0])}",
        answer=letter_of(options, chain[-1]),
        solution=Solution(joined_beyond(lines, MAX_STEPS, ", "), answer),
        detailed=Solution(lines, answer),
        careful=after(MAX_STEPS),
        habit=after(HABIT_STEPS),
        options=options,
    )


def sentence_of(rng: random.Random, theme: ChainTheme, a: str, b: str) -> str:
    """One sentence for one link."""
    turned = theme.turned and rng.random() < TURNED_SHARE
    return rng.choice(theme.turned if turned else theme.link).format(a=a, b=b)


def draw_options(rng: random.Random, chain: list[str], side: list[str]) -> tuple[str, ...]:
    """The end of the chain among other things, in random order; what two and four steps reach are among them."""
    reached = [chain[min(len(chain) - 1, steps)] for steps in (HABIT_STEPS, MAX_STEPS)]
    chosen = list(dict.fromkeys([chain[-1], *reached]))
    others = [thing for thing in (*chain, *side) if thing not in chosen]
    chosen += rng.sample(others, OPTIONS - len(chosen))
    rng.shuffle(chosen)
    return tuple(chosen)


SCIENCE = Family(
    name="science",
    task="qa",
    kind=AnswerKind.CHOICE,
    max_steps=MAX_STEPS,
    level_weights=LEVEL_WEIGHTS,
    draw_any=draw,
    about="multiple choice by 1 to 6 small deductions from what the question says",
    bands={1: "known", 2: "known", 3: "learnable", 4: "learnable", 5: "beyond", 6: "beyond"},
)
