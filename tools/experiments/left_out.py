"""The sums of an evaluation, whole and with each group of its items left out, the rule applied anew.

A ranking of items has a value only as a whole: without an item another one takes its place at the threshold. So its interval comes from
leaving out random groups, the same in every evaluation with as many items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any

from tools.experiments.measures import Evaluation, Rule, Share, by_threshold, ranks, rate
from tools.experiments.stats import Estimate, Statistic, Sums, over_seeds_and_groups

GROUPS = 20
"""In a simulation twenty groups give the standard error of an accuracy at a set rate within 2 %, that of a difference a fifth too wide."""
LeftOut = Sequence[Sums]
"""1 + GROUPS sums: of all items, then without each group."""
_COLUMNS = ("forced", "cloud", "asked", "help", "router")
_Content = tuple[Sequence[Any], ...]


def left_out(evaluation: Evaluation, rule: Rule) -> LeftOut:
    """The sums of a rule, whole and with each group left out."""
    if ranks(rule):
        return _ranked(rule, _content(evaluation))
    columns = [share.columns for share in rule(evaluation)]
    groups = _groups(len(columns))
    kept = ([one for one, own in zip(columns, groups, strict=True) if own != group] for group in range(GROUPS))
    return [_sums(columns), *map(_sums, kept)]


def left_out_at_the_rate_of(other: LeftOut, evaluation: Evaluation) -> LeftOut:
    """The threshold that sends the share that was sent elsewhere, in the whole and again without each group."""
    content = _content(evaluation)
    return [_without(by_threshold(rate(sums) or 0.0), content, group) for group, sums in enumerate(other, -1)]


def side_by_side(first: LeftOut, second: LeftOut) -> LeftOut:
    """The sums of two evaluations of the same items."""
    return [[*one, *other] for one, other in zip(first, second, strict=True)]


def together(parts: Sequence[LeftOut]) -> LeftOut:
    """The sums of several evaluations together."""
    return [[math.fsum(column) for column in zip(*sums, strict=True)] for sums in zip(*parts, strict=True)]


def estimated(left_S: Sequence[LeftOut], statistic: Statistic) -> Estimate | None:
    """The mean over seeds of a statistic of the sums."""
    if not left_S:
        return None
    whole, *groups = left_S[0]
    filled = [group for group, sums in enumerate(groups, 1) if sums[0] < whole[0]]
    without = [[statistic(left[group]) for left in left_S] for group in filled]
    return over_seeds_and_groups([statistic(left[0]) for left in left_S], without)


def estimated_of(evaluations: Sequence[Evaluation], value: Callable[[Evaluation], float | None]) -> Estimate | None:
    """The mean over seeds of a statistic of a whole evaluation, one for each seed. None where it is not defined."""
    if not evaluations:
        return None
    contents = [_content(evaluation) for evaluation in evaluations]
    without = [[value(_cut(content, group)) for content in contents] for group in range(GROUPS)]
    return over_seeds_and_groups([value(evaluation) for evaluation in evaluations], without)


def as_one(evaluations: Sequence[Evaluation]) -> Evaluation:
    """The items of several evaluations as one, so that one threshold ranks them all."""
    columns = zip(*map(_content, evaluations), strict=True)
    return {name: [one for part in parts for one in part] for name, parts in zip(_COLUMNS, columns, strict=True)}


def _content(evaluation: Evaluation) -> _Content:
    return tuple(column if isinstance(column, str) else tuple(column or ()) for column in map(evaluation.get, _COLUMNS))


@lru_cache(maxsize=20_000)
def _ranked(rule: Rule, content: _Content) -> LeftOut:
    return [_without(rule, content, group) for group in range(-1, GROUPS)]


def _without(rule: Rule, content: _Content, group: int) -> Sums:
    """Without one group; -1: of all items."""
    return _sums([share.columns for share in rule(_cut(content, group))])


def _cut(content: _Content, group: int) -> Evaluation:
    kept = [index for index, own in enumerate(_groups(len(content[0]))) if own != group]
    return {name: [column[index] for index in kept] if column else [] for name, column in zip(_COLUMNS, content, strict=True)}


def _sums(columns: Sequence[Sequence[float]]) -> Sums:
    return [math.fsum(column) for column in zip(*columns, strict=True)] or [0.0] * len(Share(0.0, 0.0, 0.0).columns)


@lru_cache
def _groups(items: int) -> tuple[int, ...]:
    groups = [index % GROUPS for index in range(items)]
    Random(items).shuffle(groups)
    return tuple(groups)
