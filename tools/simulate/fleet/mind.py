"""What a simulated SLM is: a few numbers in place of a model.

A question has a difficulty d in [0, 1] and two numbers of its own, drawn once: `ask_noise` (standard normal) and `right_noise` (standard
logistic). With θ = (skill, ask, ask_slope) and the constants of `Nature`:

    help log-odds    z(q) = ask + ask_slope (d - 1/2) + noise_share * ask_noise
    right log-odds   s(d) = skill - hardness (d - 1/2)

At temperature 0 the model asks where z + bias > 0, and a local answer is right where s + right_noise > 0, so that over questions of one
difficulty it is right with probability σ(s). At temperature 1 it asks with σ(z + bias) and is right with σ(s). A learner that follows
advantages moves θ along Σ Â ∇ log π, whose parts are here. All functions take floats and numpy arrays alike, so that the exact simulation
and the vectorised fleet share them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from edge.core.rng import stream

Number = Any
"""A float, or an array of them."""
Outcome = Literal["asked", "right", "wrong", "broken"]


@dataclass(frozen=True, slots=True)
class Nature:
    """What learning does not change. `hardness` and `noise_share` in nats; `broken`: share of responses without the format.

    `skill_limit`: the skill that training can come near. The cloud LLM is right with σ(cloud_skill - cloud_hardness (d - 1/2)).
    """

    hardness: float = 8.0
    noise_share: float = 1.0
    broken: float = 0.0
    skill_limit: float = 3.0
    cloud_skill: float = 4.0
    cloud_hardness: float = 2.0


@dataclass(frozen=True, slots=True)
class Mind:
    """θ, in nats. Defaults are about those of the bundled model: half of the questions right, few asked for."""

    skill: Number = 0.4
    ask: Number = -2.5
    ask_slope: Number = 3.0


@dataclass(frozen=True, slots=True)
class Rates:
    """How far a step moves each number for a unit of its gradient."""

    skill: float = 0.3
    ask: float = 0.3
    ask_slope: float = 0.3


_FURTHER = " and"
"""One more token of a question."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question; its text is all that the agent sees. `further`: tokens by which it is longer than the least."""

    number: int
    difficulty: float
    ask_noise: float
    right_noise: float
    further: int = 0

    @classmethod
    def of(cls, number: int, difficulty: float, seed: int, further: int = 0) -> Question:
        """The question of this number, with what is its own drawn from the seed."""
        rng, rounded = stream(seed, "question", number), round(min(max(difficulty, 0.0), 1.0), 6)
        uniform = min(max(rng.random(), 1e-9), 1 - 1e-9)
        return cls(number, rounded, round(rng.gauss(0.0, 1.0), 6), round(float(np.log(uniform / (1 - uniform))), 6), further)

    @property
    def text(self) -> str:
        """As a person asks it."""
        noises = f"({self.ask_noise:.6f}, {self.right_noise:.6f})?"
        return f"Question {self.number} of difficulty {self.difficulty:.6f} {noises}{_FURTHER * self.further}"

    @classmethod
    def read(cls, text: str) -> Question:
        """The question of a text. Raises ValueError for another one."""
        bare = text.partition("?")[0]
        words = bare.replace("(", " ").replace(")", " ").replace(",", " ").split()
        if len(words) != 7 or words[0] != "Question":
            raise ValueError("not a simulated question")
        further = (len(text) - len(bare) - 1) // len(_FURTHER)
        return cls(int(words[1]), float(words[4]), float(words[5]), float(words[6]), further)


def sigmoid(x: Number) -> Number:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def help_log_odds(mind: Mind, nature: Nature, difficulty: Number, ask_noise: Number) -> Number:
    """z, in nats."""
    return mind.ask + mind.ask_slope * (difficulty - 0.5) + nature.noise_share * ask_noise


def right_log_odds(mind: Mind, nature: Nature, difficulty: Number) -> Number:
    """s of a local answer, in nats."""
    return mind.skill - nature.hardness * (difficulty - 0.5)


def cloud_right(nature: Nature, difficulty: Number) -> Number:
    """Probability that the cloud LLM is right."""
    return sigmoid(nature.cloud_skill - nature.cloud_hardness * (difficulty - 0.5))


def log_likelihood(mind: Mind, nature: Nature, question: Question, outcome: Outcome) -> float:
    """log π of a response at temperature 1, in nats; its gradient is `gradient`. Of a broken one 0: nothing here changes its chance."""
    if outcome == "broken":
        return 0.0
    asks = float(sigmoid(help_log_odds(mind, nature, question.difficulty, question.ask_noise)))
    if outcome == "asked":
        return math.log(asks)
    right = float(sigmoid(right_log_odds(mind, nature, question.difficulty)))
    return math.log1p(-asks) + math.log(right if outcome == "right" else 1.0 - right)


def gradient(mind: Mind, nature: Nature, question: Question, outcome: Outcome) -> tuple[float, float, float]:
    """∇ log π of a response at temperature 1 by (skill, ask, ask_slope); zero for a broken one, whose chance nothing here changes."""
    if outcome == "broken":
        return (0.0, 0.0, 0.0)
    asks = float(sigmoid(help_log_odds(mind, nature, question.difficulty, question.ask_noise)))
    right = float(sigmoid(right_log_odds(mind, nature, question.difficulty)))
    by_skill, by_ask, by_slope = gradient_at(asks, right, question.difficulty, outcome)
    return (by_skill, by_ask, by_slope)


def gradient_at(asks: Number, right: Number, difficulty: Number, outcome: Outcome) -> tuple[Number, Number, Number]:
    """The same for a response that is not broken, from its probability of asking and, where it does not, of being right."""
    by_ask = 1.0 - asks if outcome == "asked" else -asks
    by_skill = {"asked": 0.0, "right": 1.0 - right, "wrong": -right}[outcome]
    return (by_skill, by_ask, by_ask * (difficulty - 0.5))


def learned(mind: Mind, nature: Nature, rates: Rates, weighed: Iterable[tuple[Question, Outcome, float]]) -> Mind:
    """θ after one step over (question, outcome, weight): the weight is Â times what its group counts. Skill gains fade at its limit."""
    sums = [0.0, 0.0, 0.0]
    for question, outcome, weight in weighed:
        for place, part in enumerate(gradient(mind, nature, question, outcome)):
            sums[place] += weight * part
    after = moved(mind, nature, rates, sums[0], sums[1], sums[2])
    return Mind(float(after.skill), float(after.ask), float(after.ask_slope))


def moved(mind: Mind, nature: Nature, rates: Rates, by_skill: Number, by_ask: Number, by_slope: Number) -> Mind:
    """θ after a step whose weighed gradients sum to these."""
    room = np.where(by_skill > 0, np.maximum(0.0, 1.0 - mind.skill / nature.skill_limit), 1.0)
    return Mind(
        mind.skill + rates.skill * by_skill * room, mind.ask + rates.ask * by_ask, mind.ask_slope + rates.ask_slope * by_slope
    )
