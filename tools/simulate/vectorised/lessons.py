"""Learning steps of many devices at once. Knows groups, rewards, advantages and θ; knows nothing of time, tokens or λ's update.

Responses of one outcome in one group have the same reward, cost and gradient, so that a group is four numbers: how many asked, were right,
were wrong, were broken. Sampled as the exact simulation samples them; the formulas are those of `mind` and of `edge.dagrpo`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge.dagrpo.reward import BAD_FORMAT_REWARD
from tools.simulate.fleet.mind import Mind, Nature, Outcome, Rates, gradient_at, help_log_odds, moved, right_log_odds, sigmoid
from tools.simulate.vectorised.draws import Bools, Draws, Floats, Ints

NONE, RIGHT, WRONG, REFUSED, MASKED = 0, 1, 2, 3, 4
"""What became of a group's one call: none was made, the cloud was right or wrong, a budget refused it, nobody answered."""
LEAST = 1e-6
"""Advantages smaller than this are 0 but for the last bits."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups [S, P] of S steps with P prompts: the questions, the chances θ gave, and how many of G responses had which outcome."""

    difficulty: Floats
    asks: Floats
    rights: Floats
    asked: NDArray[np.int16]
    right: NDArray[np.int16]
    wrong: NDArray[np.int16]
    broken: NDArray[np.int16]

    @property
    def size(self) -> int:
        """G."""
        return int(self.asked.flat[0] + self.right.flat[0] + self.wrong.flat[0] + self.broken.flat[0]) if self.asked.size else 0

    def of(self, steps: Bools | Ints) -> Groups:
        """Those of some steps."""
        return Groups(*(getattr(self, name)[steps] for name in self.__slots__))


def sampled(mind: Mind, nature: Nature, difficulty: Floats, draws: Draws, size: int) -> Groups:
    """Groups of G = `size` responses at temperature 1; θ is [S], questions are [S, P]."""
    shape = difficulty.shape
    of_step = Mind(mind.skill[:, None], mind.ask[:, None], mind.ask_slope[:, None])
    noise = draws.normals(difficulty.size).reshape(shape)
    asks = sigmoid(help_log_odds(of_step, nature, difficulty, noise))
    rights = sigmoid(right_log_odds(of_step, nature, difficulty))
    sound = 1.0 - nature.broken
    chances = draws.thousandths((*shape, size))
    grain = np.float32(65536.0)
    asked = (chances < _grains(sound * asks * grain)).sum(axis=2, dtype=np.int16)
    kept = (chances < _grains(sound * (asks + (1.0 - asks) * rights) * grain)).sum(axis=2, dtype=np.int16)
    whole = size if nature.broken == 0.0 else (chances < np.uint16(min(65535, round(sound * 65536)))).sum(axis=2, dtype=np.int16)
    wrong, broken = (whole - kept).astype(np.int16), np.full(shape, size, np.int16) - np.int16(0) - whole
    return Groups(difficulty, asks, rights, asked, kept - asked, wrong, broken.astype(np.int16))


def learned(mind: Mind, nature: Nature, rates: Rates, groups: Groups, verdict: NDArray[np.int8], dual: Floats) -> Mind:
    """θ [S] after the steps, with λ [S] = `dual`; `verdict` [S, P] as NONE to MASKED above."""
    weighed, usable = _weighed(groups, verdict, dual)
    prompts = np.maximum(usable.sum(axis=1), 1)
    sums = [np.zeros(len(dual)) for _ in range(3)]
    for outcome, weights in weighed.items():
        if outcome == "broken":
            continue
        parts = gradient_at(groups.asks, groups.rights, groups.difficulty, outcome)
        for place, part in enumerate(parts):
            sums[place] += (weights * part).sum(axis=1) / prompts
    return moved(mind, nature, rates, *sums)


def live(groups: Groups, verdict: NDArray[np.int8], dual: Floats) -> Bools:
    """Groups [S, P] with any advantage that is not 0: only they are trained on."""
    weighed, _ = _weighed(groups, verdict, dual)
    return np.asarray(sum(np.abs(weights) for weights in weighed.values()) > LEAST)


def _weighed(groups: Groups, verdict: NDArray[np.int8], dual: Floats) -> tuple[dict[Outcome, Floats], Bools]:
    """Σ w Â of the responses of each outcome of each group, with w = 1/(G' - 1) for the G' that are not masked; and where G' >= 2."""
    asked = np.where(verdict == MASKED, 0, groups.asked).astype(np.float32)
    right, wrong, broken = (part.astype(np.float32) for part in (groups.right, groups.wrong, groups.broken))
    count = asked + right + wrong + broken
    usable, safe = count >= 2, np.maximum(count, 2.0)
    for_asking = np.where(verdict == RIGHT, 1.0, 0.0) - dual[:, None]
    mean = (asked * for_asking + right + BAD_FORMAT_REWARD * broken) / safe
    weight = np.where(usable, 1.0 / (safe - 1.0), 0.0)
    weighed: dict[Outcome, Floats] = {
        "asked": weight * asked * (for_asking - mean),
        "right": weight * right * (1.0 - mean),
        "wrong": weight * wrong * (0.0 - mean),
        "broken": weight * broken * (BAD_FORMAT_REWARD - mean),
    }
    return weighed, usable


def _grains(share: Floats) -> NDArray[np.uint16]:
    return np.minimum(share, 65535.0).astype(np.uint16)[..., None]
