"""Budget dials of many devices: the law of `edge.budget.dial` for arrays.

The law and its constants are those of `HelpDial`; a test holds both against each other, question by question.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge.budget.dial import BIAS_BOUND, DIAL_LR, STEADINESS, WINDOW
from tools.simulate.vectorised.draws import Bools, Floats, Ints

LEAST_SPREAD = 1.0
"""As the dial's own: nats by which log-odds fall off beyond those that were seen, at the least."""
FIRST_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """What each question is asked with: the bias in nats, and the rate it was made for."""

    bias: Floats
    rate: Floats


class FleetDials:
    """One dial for each device, all with one τ. The log-odds seen are kept in a ring for each device, +inf where nothing was seen or
    an answer reached no decision; it grows as far as the busiest device needs it."""

    def __init__(self, devices: int, target_rate: float) -> None:
        self.target_rate = target_rate
        self._correction = np.zeros(devices, np.float32)
        self._owed = np.zeros(devices, np.float32)
        self._count = np.zeros(devices, np.int32)
        self._seen = np.full((devices, FIRST_COLUMNS), np.inf, np.float32)

    def settings(self, who: Ints) -> Settings:
        """What these devices (each once) ask their next question with."""
        rate = self._wanted(who)
        ordered, seen = self._ordered(who)
        known = np.isfinite(ordered).sum(axis=1)
        rate = np.where(known > 0, np.minimum(1.0, rate * seen / np.maximum(known, 1)), rate).astype(np.float32)
        inner = (rate > 0.0) & (rate < 1.0)
        ordered[known == 0, 0] = 0.0
        ask = np.where(rate >= 1.0, BIAS_BOUND, -BIAS_BOUND)
        level = np.where(known > 0, thresholds(ordered, known, np.where(inner, rate, 0.5)), 0.0)
        bias = np.where(inner, np.clip(self._correction[who] - level, -BIAS_BOUND, BIAS_BOUND), ask)
        return Settings(bias.astype(np.float32), rate)

    def answered(self, who: Ints, settings: Settings, asked: Bools, log_odds: Floats) -> None:
        """Learn from one question each; log-odds of +inf: no decision was reached."""
        decided = np.isfinite(log_odds) | asked
        inner = decided & (settings.rate > 0.0) & (settings.rate < 1.0)
        moved = self._correction[who] - DIAL_LR * (asked - settings.rate)
        self._correction[who] = np.where(inner, np.clip(moved, -BIAS_BOUND, BIAS_BOUND), self._correction[who])
        self._see(who, log_odds)
        if 0.0 < self.target_rate < 1.0:
            most, least = STEADINESS / self.target_rate, -STEADINESS / (1.0 - self.target_rate)
            self._owed[who] = np.clip(self._owed[who] + self.target_rate - asked, least, most)

    def _wanted(self, who: Ints) -> Floats:
        rate = self.target_rate
        return np.asarray(np.clip(rate + self._owed[who] * np.float32(rate * (1.0 - rate) / STEADINESS), 0.0, 1.0))

    def _see(self, who: Ints, log_odds: Floats) -> None:
        columns = self._seen.shape[1]
        count = self._count[who]
        if columns < WINDOW and count.size and int(count.max()) >= columns:
            more = min(WINDOW, 2 * columns) - columns
            self._seen = np.hstack([self._seen, np.full((len(self._seen), more), np.inf, np.float32)])
            columns += more
        self._seen[who, count % columns] = log_odds
        self._count[who] = count + 1

    def _ordered(self, who: Ints) -> tuple[Floats, Floats]:
        """The log-odds to go by in ascending order, what is unknown as +inf behind them, and how many answers they are of."""
        seen = np.minimum(self._count[who], WINDOW)
        width = max(1, int(seen.max(initial=0)))
        rows = self._seen[who, :width] if width < self._seen.shape[1] else self._seen[who]
        rows.sort(axis=1)
        return rows, seen.astype(np.float32)


def thresholds(ordered: Floats, known: Ints, rate: Floats) -> Floats:
    """`edge.budget.dial.threshold` for each row: of its first `known` (at least one) ascending log-odds, for its rate in (0, 1)."""
    rows, count = np.arange(len(ordered)), np.maximum(known, 1)
    position = (1.0 - rate.astype(np.float64)) * (count + 1) - 1.0
    lowest, highest = ordered[:, 0], ordered[rows, count - 1]
    spread = np.maximum(LEAST_SPREAD, (highest - lowest) / 4.0)
    below = np.clip(position.astype(np.int64), 0, count - 1)
    above = np.minimum(below + 1, count - 1)
    at_below = ordered[rows, below]
    between = at_below + (position - below) * (ordered[rows, above] - at_below)
    beyond = highest - spread * np.log(rate * (count + 1))
    before = lowest + spread * np.log((1.0 - rate) * (count + 1))
    return np.asarray(np.where(position > count - 1, beyond, np.where(position < 0.0, before, between)))
