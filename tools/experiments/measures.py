"""Measures on held-out items: who answers which item under a rule, and the resulting accuracy.

A rule gives for each item the probability that the cloud answers it. Random routing is not sampled, so that its accuracy is the expected
one. Items with tied scores share the rest of the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from tools.experiments.stats import Sums

Evaluation = Mapping[str, Any]
By = Literal["help", "router"]
_CERTAIN = 1000.0


class Share(NamedTuple):
    """One item under a rule: the chance that the cloud answers it, that it is kept and right, and that it is right in the end."""

    asked: float
    kept_right: float
    right: float

    @property
    def columns(self) -> tuple[float, float, float, float]:
        """As the statistics below take sums of it: item, asked, kept and right, right in the end."""
        return (1.0, self.asked, self.kept_right, self.right)


Rule = Callable[[Evaluation], list[Share]]


def own_decision(evaluation: Evaluation) -> list[Share]:
    """The model asks or answers, as it has learned."""
    bits = zip(_bits(evaluation["asked"]), _bits(evaluation["own"]), _bits(evaluation["joint"]), strict=True)
    return [Share(asked, (1.0 - asked) * own, joint) for asked, own, joint in bits]


def never(evaluation: Evaluation) -> list[Share]:
    """Nothing is asked."""
    return [Share(0.0, right, right) for right in _bits(evaluation["forced"])]


def at_random(rate: float) -> Rule:
    """Each item goes to the cloud with the same chance."""
    return lambda evaluation: [_mixed(rate, local, cloud) for local, cloud in _pairs(evaluation)]


def routed(evaluation: Evaluation) -> list[Share]:
    """A trained classifier sends the items it expects to fail; items without a score (an unfinished response) stay."""
    threshold = evaluation["router_fit"]["threshold"]
    sent = [float(p is not None and p > threshold) for p in evaluation["router"]]
    return [_mixed(chance, local, cloud) for chance, (local, cloud) in zip(sent, _pairs(evaluation), strict=True)]


@dataclass(frozen=True, slots=True)
class _Threshold:
    rate: float
    by: By

    def __call__(self, evaluation: Evaluation) -> list[Share]:
        chances = _highest(_asking_first(evaluation) if self.by == "help" else evaluation[self.by], self.rate)
        return [_mixed(chance, local, cloud) for chance, (local, cloud) in zip(chances, _pairs(evaluation), strict=True)]


def by_threshold(rate: float, by: By = "help") -> Rule:
    """The items with the highest scores are sent to the cloud until this share is reached; items without a score stay.

    By log-odds of asking, the items the model asks about itself come first: the log-odds are of its first decision, and it may ask later.
    """
    return _Threshold(rate, by)


def ranks(rule: Rule) -> bool:
    """Whether an item's outcome under a rule depends on the other items."""
    return isinstance(rule, _Threshold)


def accuracy(sums: Sums) -> float | None:
    """Right in the end; None of no items."""
    return sums[3] / sums[0] if sums[0] else None


def rate(sums: Sums) -> float | None:
    """Share that the cloud answers; None of no items."""
    return sums[1] / sums[0] if sums[0] else None


def kept_accuracy(sums: Sums) -> float | None:
    """Accuracy of the local answers; None without any."""
    kept = sums[0] - sums[1]
    return sums[2] / kept if kept > 1e-9 else None


def forgetting(of: Callable[[Sums], float | None]) -> Callable[[Sums], float | None]:
    """(during - after) / during of sums of both evaluations, the earlier one's first."""

    def value(sums: Sums) -> float | None:
        half = len(sums) // 2
        during, after = of(sums[:half]), of(sums[half:])
        return None if not during or after is None else (during - after) / during

    return value


def difference(of: Callable[[Sums], float | None]) -> Callable[[Sums], float | None]:
    """First minus second of sums of two."""

    def value(sums: Sums) -> float | None:
        half = len(sums) // 2
        first, second = of(sums[:half]), of(sums[half:])
        return None if first is None or second is None else first - second

    return value


def second(of: Callable[[Sums], float | None]) -> Callable[[Sums], float | None]:
    """The second alone of sums of two."""
    return lambda sums: of(sums[len(sums) // 2 :])


def side_by_side(first: Sequence[Share], second: Sequence[Share]) -> list[tuple[float, ...]]:
    """The columns of two evaluations of the same items."""
    return [(*one.columns, *other.columns) for one, other in zip(first, second, strict=True)]


def oracle(evaluation: Evaluation, share: float) -> float:
    """The maximum accuracy at this rate: items that fail locally and that the cloud answers rightly are sent first."""
    pairs = _pairs(evaluation)
    gained = sum(cloud > local for local, cloud in pairs)
    return (sum(local for local, _ in pairs) + min(share * len(pairs), gained)) / len(pairs)


def ranking(evaluation: Evaluation) -> float | None:
    """How well asking ranks: the chance that an item that fails locally scores higher than one that does not (AUC; ties are half).

    None where all fail or none does. Items without a score are left out.
    """
    scored = [
        (score, local)
        for score, (local, _) in zip(_asking_first(evaluation), _pairs(evaluation), strict=True)
        if score is not None
    ]
    failing = [score for score, local in scored if not local]
    right = [score for score, local in scored if local]
    if not failing or not right:
        return None
    above = sum((one > other) + 0.5 * (one == other) for one in failing for other in right)
    return above / (len(failing) * len(right))


def cloud_accuracy(evaluation: Evaluation) -> float:
    """The cloud LLM alone."""
    bits = _bits(evaluation["cloud"])
    return sum(bits) / len(bits)


def _mixed(chance: float, local: float, cloud: float) -> Share:
    kept = (1.0 - chance) * local
    return Share(chance, kept, kept + chance * cloud)


def _pairs(evaluation: Evaluation) -> list[tuple[float, float]]:
    return list(zip(_bits(evaluation["forced"]), _bits(evaluation["cloud"]), strict=True))


def _asking_first(evaluation: Evaluation) -> list[float | None]:
    """Log-odds of asking, those of items that were asked for above all others."""
    scores: list[float | None] = []
    for log_odds, asked in zip(evaluation["help"], _bits(evaluation["asked"]), strict=True):
        scores.append(_CERTAIN + (log_odds or 0.0) if asked else log_odds)
    return scores


def _highest(scores: Sequence[float | None], rate: float) -> list[float]:
    """The chance of each item to be among the highest `rate · N`; tied ones share it."""
    left, chances = rate * len(scores), [0.0] * len(scores)
    known = sorted((-score, index) for index, score in enumerate(scores) if score is not None)
    begin = 0
    while begin < len(known) and left > 0.0:
        end = begin + 1
        while end < len(known) and known[end][0] == known[begin][0]:
            end += 1
        share = min(1.0, left / (end - begin))
        for _, index in known[begin:end]:
            chances[index] = share
        left -= share * (end - begin)
        begin = end
    return chances


def _bits(text: Sequence[str]) -> list[float]:
    """Not known counts as not right, as in the reward."""
    return [float(character == "1") for character in text]
