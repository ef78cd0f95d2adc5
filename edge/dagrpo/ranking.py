"""How well a score that should be high where an answer is wrong, such as the help log-odds, orders right and wrong answers."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LEAST_JUDGED = 10
"""Judged answers below which nothing is said of the order."""
_Z = 1.959963984540054
_HALVINGS = 50


def area_under_curve(wrong: Sequence[float], right: Sequence[float]) -> float | None:
    """AUC: the probability that a wrong answer has a higher score than a right one, ties half; None without both (Mann-Whitney U / mn)."""
    if not wrong or not right:
        return None
    ordered = sorted(right)
    doubled = sum(bisect_left(ordered, score) + bisect_right(ordered, score) for score in wrong)
    return doubled / (2 * len(wrong) * len(right))


@dataclass(frozen=True, slots=True)
class RankedAnswers:
    """Judged answers of one adapter: how many were right and wrong, and how their scores order them. Scores of different adapters are not
    compared: log-odds drift by several nats while a model learns."""

    right: int
    wrong: int
    right_questions: int
    """Questions with at least one right answer: samples of one question are no independent evidence."""
    wrong_questions: int
    auc: float | None


def ranked(answers: Iterable[tuple[Hashable, float, bool]]) -> RankedAnswers:
    """From (question, score, whether right) of each answer."""
    known = list(answers)
    right, wrong = ([one for one in known if one[2] is is_right] for is_right in (True, False))
    return RankedAnswers(
        len(right),
        len(wrong),
        len({question for question, _, _ in right}),
        len({question for question, _, _ in wrong}),
        area_under_curve([score for _, score, _ in wrong], [score for _, score, _ in right]),
    )


@dataclass(frozen=True, slots=True)
class Ranking:
    """The order of judged answers over several adapters."""

    adapters: tuple[RankedAnswers, ...] = ()

    @property
    def right(self) -> int:
        """Right answers, also of adapters whose wrong ones are not known."""
        return sum(one.right for one in self.adapters)

    @property
    def wrong(self) -> int:
        """Wrong answers likewise."""
        return sum(one.wrong for one in self.adapters)

    @property
    def auc(self) -> float | None:
        """The mean AUC of the adapters, weighted by m n / (m + n) for m wrong and n right questions (van Elteren 1960); None where no
        adapter has answers of both kinds."""
        weights = [(_weight(one), one.auc) for one in self.adapters if one.auc is not None]
        total = sum(weight for weight, _ in weights)
        return sum(weight * auc for weight, auc in weights) / total if total else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of `auc`: the θ with |θ - AUC| <= z sqrt(V(θ)), V the variance of Hanley and McNeil (1982) at θ with both sample
        sizes replaced by their mean (Newcombe 2006, Statistics in Medicine 25:559, method 5). For one wrong and one right question of
        each adapter this is the Wilson interval.
        """
        auc = self.auc
        return None if auc is None else (self._bound(auc, 0.0), self._bound(auc, 1.0))

    def _bound(self, auc: float, end: float) -> float:
        inside, outside = auc, end
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            if abs(middle - auc) <= _Z * math.sqrt(self._variance(middle)):
                inside = middle
            else:
                outside = middle
        return outside

    def _variance(self, auc: float) -> float:
        """V(θ) of the weighted mean."""
        total, weights = 0.0, 0.0
        for one in self.adapters:
            if one.auc is not None:
                m, n, weight = one.wrong_questions, one.right_questions, _weight(one)
                others = (m + n) / 2 - 1
                variance = auc * (1 - auc) * (1 + others * (1 - auc) / (2 - auc) + others * auc / (1 + auc)) / (m * n)
                total, weights = total + weight * weight * variance, weights + weight
        return total / (weights * weights)

    def to_json(self) -> dict[str, Any]:
        """What is reported of it."""
        return {"right": self.right, "wrong": self.wrong, "auc": self.auc, "interval": self.interval, "words": self.words}

    @property
    def words(self) -> str:
        """What the order says, for people."""
        answers, auc, interval = self.right + self.wrong, self.auc, self.interval
        if answers < LEAST_JUDGED:
            return f"too few judged answers ({answers})"
        if auc is None or interval is None:
            if self.right and self.wrong:
                return f"of {answers} judged answers no adapter has both right and wrong ones: nothing to compare yet"
            return f"all {answers} judged answers were {'right' if self.right else 'wrong'}: nothing to compare yet"
        low, high = interval
        found = "says nothing about right and wrong yet"
        if low > 0.5:
            found = "tells right from wrong better than chance"
        elif high < 0.5:
            found = "worse than chance: it is higher where the answer is right"
        return f"AUC {auc:.2f} ({low:.2f} to {high:.2f}) over {answers} judged answers: {found}"


def _weight(one: RankedAnswers) -> float:
    return one.wrong_questions * one.right_questions / (one.wrong_questions + one.right_questions)
