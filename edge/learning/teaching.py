"""Which questions a step takes, where they are drawn by what they can teach.

A group whose responses are all right, or all wrong, has no advantage. So a question is drawn the more often the more its responses varied
in the past; where a given answer is shown to a model that does not know it, the less of them were right. The probability of each draw is
known and kept with the step: with its inverse as weight, rates and shares measure all questions of the source and not those drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

HALF_LIFE = 50
"""Steps after which what was seen of a question counts half: the policy has changed."""
LOOKED_BACK = 4 * HALF_LIFE
"""Steps before which nothing counts."""
EVENLY = 0.2
"""Share of the draws that goes to all questions alike. So each is drawn with a fifth of the usual probability at the least, and no weight
is above 5."""


@dataclass(frozen=True, slots=True)
class Draw:
    """That a question was drawn: with which probability it was to be among those of the step, and its weight, 1 on average."""

    probability: float
    weight: float


@dataclass(frozen=True, slots=True)
class Seen:
    """How many responses to a question there were, and how many of them were right alone, both decayed."""

    responses: float = 0.0
    right: float = 0.0


NOTHING_SEEN = Seen()


def seen(rows: Iterable[tuple[int, str, int, int]], step: int) -> dict[str, Seen]:
    """What is known of questions before `step`, from (step, question, responses, right) of earlier steps."""
    known: dict[str, Seen] = {}
    for then, question, responses, right in rows:
        counts, before = 0.5 ** ((step - then) / HALF_LIFE), known.get(question, NOTHING_SEEN)
        known[question] = Seen(before.responses + counts * responses, before.right + counts * right)
    return known


def variance(known: Seen) -> float:
    """E[p (1 - p)] of a response's share right p, whose prior is uniform: what sampling can teach."""
    right, wrong = 1.0 + known.right, 1.0 + known.responses - known.right
    whole = right + wrong
    return right * wrong / (whole * (whole + 1.0))


def ignorance(known: Seen) -> float:
    """E[1 - p]: what a given answer can teach."""
    return (1.0 + known.responses - known.right) / (2.0 + known.responses)


def inclusion_probabilities(values_N: Sequence[float], count: int) -> list[float]:
    """The probabilities, proportional to the values but for the even share and at most 1, with which `count` of N questions are drawn.

    Raises ValueError unless there are more questions than are drawn, and on values that are not above 0.
    """
    if not 0 < count < len(values_N) or min(values_N) <= 0.0:
        raise ValueError(f"{count} of {len(values_N)} questions cannot be drawn by their values")
    whole = math.fsum(values_N)
    shares = [EVENLY / len(values_N) + (1.0 - EVENLY) * value / whole for value in values_N]
    certain: set[int] = set()
    while True:
        scale = (count - len(certain)) / math.fsum(share for place, share in enumerate(shares) if place not in certain)
        more = {place for place, share in enumerate(shares) if place not in certain and scale * share >= 1.0}
        if not more:
            return [1.0 if place in certain else scale * share for place, share in enumerate(shares)]
        certain |= more


def systematic_sample(probabilities_N: Sequence[float], rng: Random) -> list[int]:
    """Places of different questions, each with exactly its probability (Madow 1949): equidistant points on their probabilities, laid end to
    end in a random order. As many as the probabilities add up to; in a random order, too."""
    order = list(range(len(probabilities_N)))
    rng.shuffle(order)
    ends = list(accumulate(probabilities_N[place] for place in order))
    count, first = round(ends[-1]), rng.random()
    drawn, place = list[int](), 0
    for number in range(count):
        while place < len(order) - 1 and ends[place] <= first + number:
            place += 1
        drawn.append(order[place])
        place += 1
    rng.shuffle(drawn)
    return drawn


def draws(values_N: Sequence[float], count: int, rng: Random) -> list[tuple[int, Draw]]:
    """The places of `count` questions by their values, with the draw of each."""
    probabilities_N = inclusion_probabilities(values_N, count)
    usual = count / len(values_N)
    return [
        (place, Draw(probabilities_N[place], usual / probabilities_N[place])) for place in systematic_sample(probabilities_N, rng)
    ]
