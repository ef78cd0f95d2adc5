"""Measures on held-out items: who answers which item under a rule, and what that is worth, with and without each part of the items.

A rule gives for each item the probability that the cloud answers it. Random routing is not sampled, so that its accuracy is the expected
one. Items with tied scores share the rest of the rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, Literal, NamedTuple

from edge.dagrpo.ranking import area_under_curve
from tools.experiments.stats import Estimate, estimate

Evaluation = Mapping[str, Any]
By = Literal["help", "doubt", "router"]
Sums = Sequence[float]
"""Sums over items of the columns of their shares; of two sides one follows the other."""
Statistic = Callable[[Sums], float | None]
"""A number made of sums over items, None where it is not defined."""
GROUPS = 20
"""In a simulation twenty groups give the standard error of an accuracy at a set rate within 2 %, that of a difference a fifth too wide."""
_CERTAIN = 1000.0
_COLUMNS = ("forced", "cloud", "asked", "help", "doubt", "router")
_Content = tuple[Sequence[Any], ...]


class ItemShare(NamedTuple):
    """One item under a rule: the chance that the cloud answers it, that it is kept and right, and that it is right in the end."""

    asked: float
    kept_right: float
    right: float

    @property
    def columns(self) -> tuple[float, float, float, float]:
        """As statistics take sums of it: item, asked, kept and right, right in the end."""
        return (1.0, self.asked, self.kept_right, self.right)


Rule = Callable[[Evaluation], list[ItemShare]]


def own_decision(evaluation: Evaluation) -> list[ItemShare]:
    """The model asks or answers, as it has learned."""
    bits = zip(_bits(evaluation["asked"]), _bits(evaluation["own"]), _bits(evaluation["joint"]), strict=True)
    return [ItemShare(asked, (1.0 - asked) * own, joint) for asked, own, joint in bits]


def never(evaluation: Evaluation) -> list[ItemShare]:
    """Nothing is asked."""
    return [ItemShare(0.0, right, right) for right in _bits(evaluation["forced"])]


def at_random(rate: float) -> Rule:
    """Each item goes to the cloud with the same chance."""
    return lambda evaluation: [_mixed(rate, local, cloud) for local, cloud in _pairs(evaluation)]


def routed(evaluation: Evaluation) -> list[ItemShare]:
    """A trained classifier sends the items it expects to fail; items without a score (an unfinished response) stay."""
    threshold = evaluation["router_fit"]["threshold"]
    sent = [float(p is not None and p > threshold) for p in evaluation["router"]]
    return [_mixed(chance, local, cloud) for chance, (local, cloud) in zip(sent, _pairs(evaluation), strict=True)]


@dataclass(frozen=True, slots=True)
class _Threshold:
    rate: float
    by: By

    def __call__(self, evaluation: Evaluation) -> list[ItemShare]:
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


# -- statistics of sums ------------------------------------------------------------------------------------------------------------------


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


def forgetting(of: Statistic) -> Statistic:
    """(during - after) / during of sums of both evaluations, the earlier one's first."""
    return _of_two(of, lambda during, after: (during - after) / during if during else None)


def difference(of: Statistic) -> Statistic:
    """First minus second of sums of two."""
    return _of_two(of, lambda first, second: first - second)


def _of_two(of: Statistic, combined: Callable[[float, float], float | None]) -> Statistic:
    def value(sums: Sums) -> float | None:
        half = len(sums) // 2
        first, second = of(sums[:half]), of(sums[half:])
        return None if first is None or second is None else combined(first, second)

    return value


def value_of(evaluation: Evaluation, rule: Rule, statistic: Statistic) -> float:
    """A statistic of one whole evaluation under a rule; 0 where it is not defined."""
    return statistic(_sums([share.columns for share in rule(evaluation)])) or 0.0


# -- sums with and without each part of the items ----------------------------------------------------------------------------------------


class ItemSums(NamedTuple):
    """The sums of all items, and those without each part of them, by the part's name."""

    whole: Sums
    without: Mapping[Hashable, Sums]


def tally(evaluation: Evaluation, rule: Rule, *, grouped: bool) -> ItemSums:
    """The sums of an evaluation under a rule. Each item is a part, or with `grouped` each of twenty random groups, the same ones in every
    evaluation with as many items.

    A ranking needs groups, without which it is done anew: another item takes a missing one's place at the threshold, and one item moves a
    threshold too little and too unevenly.
    """
    if ranks(rule):
        return _ranked(rule, _content(evaluation))
    columns = [share.columns for share in rule(evaluation)]
    parts = _groups(len(columns)) if grouped else [(evaluation["source"], index) for index in range(len(columns))]
    whole, without = _sums(columns), dict[Hashable, Sums]()
    for part, column in zip(parts, columns, strict=True):
        without[part] = [left - own for left, own in zip(without.get(part, whole), column, strict=True)]
    return ItemSums(whole, without)


def tally_at_the_rate_of(other: ItemSums, evaluation: Evaluation) -> ItemSums:
    """The threshold that sends the share that was sent elsewhere, in the whole and again without each group."""
    content = _content(evaluation)

    def sent(sums: Sums, group: Hashable = None) -> Sums:
        return _sums([share.columns for share in by_threshold(rate(sums) or 0.0)(_cut(content, group))])

    return ItemSums(sent(other.whole), {group: sent(sums, group) for group, sums in other.without.items()})


def side_by_side(*sides: ItemSums) -> ItemSums:
    """The sums of several evaluations of the same items."""
    first = sides[0]
    without = {part: [value for side in sides for value in side.without[part]] for part in first.without}
    return ItemSums([value for side in sides for value in side.whole], without)


def together(tallies: Sequence[ItemSums]) -> ItemSums:
    """The sums of several evaluations together."""
    parts = dict.fromkeys(part for one in tallies for part in one.without)
    without = {part: _sums([one.without.get(part, one.whole) for one in tallies]) for part in parts}
    return ItemSums(_sums([one.whole for one in tallies]), without)


def estimated(tallies_S: Sequence[ItemSums], statistic: Statistic) -> Estimate | None:
    """The mean over seeds of a statistic of the sums; None where it is not defined."""
    parts = tallies_S[0].without if tallies_S else ()
    without = [[statistic(one.without[part]) for one in tallies_S] for part in parts]
    return estimate([statistic(one.whole) for one in tallies_S], without)


def estimated_of(evaluations_S: Sequence[Evaluation], value: Callable[[Evaluation], float | None]) -> Estimate | None:
    """The mean over seeds of a statistic of a whole evaluation; None where it is not defined."""
    contents_S = [_content(evaluation) for evaluation in evaluations_S]
    groups = sorted(set(_groups(len(contents_S[0][0])))) if contents_S else ()
    without = [[value(_cut(content, group)) for content in contents_S] for group in groups]
    return estimate([value(evaluation) for evaluation in evaluations_S], without)


def as_one(evaluations: Sequence[Evaluation]) -> Evaluation:
    """The items of several evaluations as one, so that one threshold ranks them all."""
    columns = zip(*map(_content, evaluations), strict=True)
    return {name: [one for part in parts for one in part] for name, parts in zip(_COLUMNS, columns, strict=True)}


def _content(evaluation: Evaluation) -> _Content:
    return tuple(column if isinstance(column, str) else tuple(column or ()) for column in map(evaluation.get, _COLUMNS))


@lru_cache(maxsize=20_000)
def _ranked(rule: Rule, content: _Content) -> ItemSums:
    def sums(group: int | None = None) -> Sums:
        return _sums([share.columns for share in rule(_cut(content, group))])

    return ItemSums(sums(), {group: sums(group) for group in sorted(set(_groups(len(content[0]))))})


def _cut(content: _Content, group: Hashable) -> Evaluation:
    """Without one group; None: all items."""
    kept = [index for index, own in enumerate(_groups(len(content[0]))) if own != group]
    return {name: [column[index] for index in kept] if column else [] for name, column in zip(_COLUMNS, content, strict=True)}


def _sums(columns: Sequence[Sequence[float]]) -> Sums:
    return [math.fsum(column) for column in zip(*columns, strict=True)] or [0.0] * len(ItemShare(0.0, 0.0, 0.0).columns)


@lru_cache
def _groups(items: int) -> tuple[int, ...]:
    groups = [index % GROUPS for index in range(items)]
    Random(items).shuffle(groups)
    return tuple(groups)


# -- what else an evaluation shows -------------------------------------------------------------------------------------------------------


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
    return area_under_curve(failing, right)


def cloud_accuracy(evaluation: Evaluation) -> float:
    """The cloud LLM alone."""
    bits = _bits(evaluation["cloud"])
    return sum(bits) / len(bits)


def _mixed(chance: float, local: float, cloud: float) -> ItemShare:
    kept = (1.0 - chance) * local
    return ItemShare(chance, kept, kept + chance * cloud)


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
