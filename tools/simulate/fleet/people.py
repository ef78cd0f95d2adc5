"""What people and practice ask, and when."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

from edge.core.rng import stream
from edge.core.types import AnswerKind, Split, TaskItem
from tools.simulate.fleet.backend import right_answer
from tools.simulate.fleet.mind import SimulatedQuestion
from tools.simulate.fleet.scenario import HOUR_S, DifficultyPart, GroupPart

NUMBERS_OF_A_DEVICE = 1_000_000
"""Questions are numbered device by device; the second half is practice."""
PRACTICE_FROM = 500_000
MOST_STEPS = 4


def arrivals(group: GroupPart, starts_at_h: float, rng: random.Random) -> Iterator[float]:
    """Virtual seconds at which a person has a question, in order: a Poisson process whose rate changes with the hour. Without end, unless
    nothing is ever asked."""
    per_hour = [weight * group.questions_per_day / 24.0 for weight in group.hour_weights]
    if not any(per_hour) or not any(group.by_weekday) or (group.demand and group.demand[-1].factor == 0.0):
        return
    at_h, left = starts_at_h, rng.expovariate(1.0)
    while True:
        rate, ends_h = per_hour[int(at_h) % 24] * group.demand_at(at_h - starts_at_h, int(at_h) // 24), float(int(at_h) + 1)
        if rate * (ends_h - at_h) <= left:
            left -= rate * (ends_h - at_h)
            at_h = ends_h
            continue
        at_h += left / rate
        left = rng.expovariate(1.0)
        yield (at_h - starts_at_h) * HOUR_S


def draw_difficulty(part: DifficultyPart, virtual_s: float, rng: random.Random) -> float:
    """Of a question at this time: normal, drawn again beyond [0, 1]."""
    mean = part.mean_at(virtual_s)
    for _ in range(1000):
        drawn = rng.gauss(mean, part.spread)
        if 0.0 <= drawn <= 1.0:
            return drawn
    return mean


def draw_question(group: GroupPart, seed: int, number: int, virtual_s: float) -> SimulatedQuestion:
    """The question of this number, as difficult and as long as the group's are at this time."""
    further = group.tokens.prompt_further
    tokens = round(stream(seed, "length", number).expovariate(1.0 / further)) if further else 0
    return SimulatedQuestion.of(
        number, draw_difficulty(group.difficulty, virtual_s, stream(seed, "difficulty", number)), seed, tokens
    )


class Practice:
    """A TaskSource: questions of a device that it has the answers to, as difficult as they are at the time."""

    name = "practice"

    def __init__(self, group: GroupPart, task: str, first: int, seed: int, time: Callable[[], float]) -> None:
        """`first`: the number of the first one; `time`: virtual seconds."""
        self._group = group
        self._task = task
        self._first = first
        self._seed = seed
        self._time = time

    def train(self, seed: int, start: int = 0) -> Iterator[TaskItem]:
        """Endless."""
        return (self._item(place, "train") for place in itertools.count(start))

    def test(self, limit: int) -> Sequence[TaskItem]:
        """Held-out ones, always the same."""
        return [self._item(PRACTICE_FROM // 2 + place, "test") for place in range(limit)]

    def _question(self, place: int) -> SimulatedQuestion:
        return draw_question(self._group, self._seed, self._first + place, self._time())

    def _item(self, place: int, split: Split) -> TaskItem:
        question = self._question(place)
        return TaskItem(
            id=f"practice-{place}",
            task=self._task,
            family="simulated",
            level=1,
            split=split,
            question=question.text,
            answer=right_answer(question),
            kind=AnswerKind.MATH,
            max_steps=MOST_STEPS,
        )
