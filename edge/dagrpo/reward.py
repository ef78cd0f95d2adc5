"""Rewards r and costs c of one response."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from edge.dagrpo.numbers import require_finite

BAD_FORMAT_REWARD = -0.1
"""Reward of a response that violates the format (paper, reward section)."""


class FormatPenalty(StrEnum):
    """When a format violation is penalised: always, or only when the answer is otherwise correct.

    No setting: rollouts take the default of `task_reward`, so that is the place to change it. `hierarchical_reward` always penalises.
    """

    ALWAYS = "always"
    WHEN_CORRECT = "when_correct"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known about one response after composition: `correct` judges the composed response, the rest the local one."""

    correct: bool
    format_ok: bool
    asked: bool = False


def task_reward(outcome: Outcome, penalty: FormatPenalty = FormatPenalty.ALWAYS) -> float:
    """r: 1 when correct and well formatted; -0.1 when the format is violated; 0 otherwise."""
    if outcome.format_ok:
        return 1.0 if outcome.correct else 0.0
    if penalty is FormatPenalty.ALWAYS or outcome.correct:
        return BAD_FORMAT_REWARD
    return 0.0


def hierarchical_reward(outcome: Outcome, assist_reward: float) -> float:
    """The baselines' fixed reward: 1 local and correct, `assist_reward` asked and the cloud is correct, -0.1 bad format, 0 otherwise."""
    require_finite("assist_reward", assist_reward)
    if not outcome.format_ok:
        return BAD_FORMAT_REWARD
    if not outcome.correct:
        return 0.0
    return assist_reward if outcome.asked else 1.0


def response_cost(asked: bool) -> int:
    """c: 1 when the response validly asked for help, else 0. A malformed request is not a request."""
    return 1 if asked else 0
