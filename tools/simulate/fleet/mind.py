"""What a simulated SLM is: a few numbers in place of a model.

A question has a difficulty d in [0, 1] and two numbers of its own, drawn once: `ask_noise` (standard normal) and `right_noise` (standard
logistic). With θ = (skill, ask, ask_slope) and the constants of `Nature`:

    help log-odds    z(q) = ask + ask_slope (d - 1/2) + noise_share * ask_noise
    right log-odds   s(d) = skill - hardness (d - 1/2)

At temperature 0 the model asks where z + bias > 0, and a local answer is right where s + right_noise > 0, so that over questions of one
difficulty it is right with probability σ(s). At temperature 1 it asks with σ(z + bias) and is right with σ(s). A learner that follows
advantages moves θ along Σ Â ∇ log π, whose parts are here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from edge.config.section import NotNegative, Positive, Rate, Section
from edge.core.rng import stream

MindOutcome = Literal["asked", "right", "wrong", "broken"]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Mind(Section):
    """θ of the simulated model, in nats. Defaults are about those of the bundled model: half of the questions right, few asked for."""

    skill: Finite = Field(0.4, description="Log-odds of a right local answer at difficulty 1/2.")
    ask: Finite = Field(-2.5, description="Log-odds of asking for help at difficulty 1/2.")
    ask_slope: Finite = Field(3.0, description="How fast these grow with the difficulty.")


class Nature(Section):
    """What learning does not change."""

    hardness: Finite = Field(8.0, description="Nats by which a right local answer gets unlikelier from difficulty 0 to 1.")
    noise_share: NotNegative = Field(1.0, description="Spread of the help log-odds between equally hard questions, nats.")
    broken: Rate = Field(0.0, description="Share of responses that lack the format.")
    skill_limit: Positive = Field(3.0, description="The skill that training can come near, nats.")
    cloud_skill: Finite = Field(4.0, description="Log-odds of a right cloud answer at difficulty 0, nats.")
    cloud_hardness: Finite = Field(2.0, description="Nats by which it gets unlikelier from difficulty 0 to 1.")


class Rates(Section):
    """How far one learning step moves each number of θ for a unit of its gradient."""

    skill: NotNegative = Field(0.3, description="Of skill.")
    ask: NotNegative = Field(0.3, description="Of ask.")
    ask_slope: NotNegative = Field(0.3, description="Of ask_slope.")


_FURTHER = " and"
"""One more token of a question."""


@dataclass(frozen=True, slots=True)
class SimulatedQuestion:
    """One question; its text is all that the agent sees. `further`: tokens by which it is longer than the least."""

    number: int
    difficulty: float
    ask_noise: float
    right_noise: float
    further: int = 0

    @classmethod
    def of(cls, number: int, difficulty: float, seed: int, further: int = 0) -> SimulatedQuestion:
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
    def read(cls, text: str) -> SimulatedQuestion:
        """The question of a text. Raises ValueError for another one."""
        bare = text.partition("?")[0]
        words = bare.replace("(", " ").replace(")", " ").replace(",", " ").split()
        if len(words) != 7 or words[0] != "Question":
            raise ValueError("not a simulated question")
        further = (len(text) - len(bare) - 1) // len(_FURTHER)
        return cls(int(words[1]), float(words[4]), float(words[5]), float(words[6]), further)


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), without overflow."""
    return float(0.5 * (1.0 + np.tanh(0.5 * x)))


def help_log_odds(mind: Mind, nature: Nature, difficulty: float, ask_noise: float) -> float:
    """z, in nats."""
    return mind.ask + mind.ask_slope * (difficulty - 0.5) + nature.noise_share * ask_noise


def right_log_odds(mind: Mind, nature: Nature, difficulty: float) -> float:
    """s of a local answer, in nats."""
    return mind.skill - nature.hardness * (difficulty - 0.5)


def cloud_right(nature: Nature, difficulty: float) -> float:
    """Probability that the cloud LLM is right."""
    return sigmoid(nature.cloud_skill - nature.cloud_hardness * (difficulty - 0.5))


def log_likelihood(mind: Mind, nature: Nature, question: SimulatedQuestion, outcome: MindOutcome) -> float:
    """log π of a response at temperature 1, in nats; its gradient is `gradient`. Of a broken one 0: nothing here changes its chance."""
    if outcome == "broken":
        return 0.0
    asks = sigmoid(help_log_odds(mind, nature, question.difficulty, question.ask_noise))
    if outcome == "asked":
        return math.log(asks)
    right = sigmoid(right_log_odds(mind, nature, question.difficulty))
    return math.log1p(-asks) + math.log(right if outcome == "right" else 1.0 - right)


def gradient(mind: Mind, nature: Nature, question: SimulatedQuestion, outcome: MindOutcome) -> tuple[float, float, float]:
    """∇ log π of a response at temperature 1 by (skill, ask, ask_slope); zero for a broken one, whose chance nothing here changes."""
    if outcome == "broken":
        return (0.0, 0.0, 0.0)
    asks = sigmoid(help_log_odds(mind, nature, question.difficulty, question.ask_noise))
    right = sigmoid(right_log_odds(mind, nature, question.difficulty))
    by_ask = 1.0 - asks if outcome == "asked" else -asks
    by_skill = {"asked": 0.0, "right": 1.0 - right, "wrong": -right}[outcome]
    return (by_skill, by_ask, by_ask * (question.difficulty - 0.5))


def learned(mind: Mind, nature: Nature, rates: Rates, weighed: Iterable[tuple[SimulatedQuestion, MindOutcome, float]]) -> Mind:
    """θ after one step over (question, outcome, weight): the weight is Â times what its group counts. Skill gains fade at its limit."""
    by_skill = by_ask = by_slope = 0.0
    for question, outcome, weight in weighed:
        parts = gradient(mind, nature, question, outcome)
        by_skill, by_ask, by_slope = by_skill + weight * parts[0], by_ask + weight * parts[1], by_slope + weight * parts[2]
    room = max(0.0, 1.0 - mind.skill / nature.skill_limit) if by_skill > 0 else 1.0
    return Mind(
        skill=mind.skill + rates.skill * by_skill * room,
        ask=mind.ask + rates.ask * by_ask,
        ask_slope=mind.ask_slope + rates.ask_slope * by_slope,
    )
