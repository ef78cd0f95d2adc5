"""Rewards r and costs c of one response."""

from __future__ import annotations

from dataclasses import dataclass

from edge.dagrpo.numbers import require_finite

BAD_FORMAT_REWARD = -0.1
"""Reward of a response that violates the format, whether or not its answer is correct (paper, reward section)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known about one response after composition: `correct` judges the composed response, the rest the local one."""

    correct: bool
    format_ok: bool
    asked: bool = False


def task_reward(outcome: Outcome) -> float:
    """r: 1 when correct and well formatted; -0.1 when the format is violated; 0 otherwise."""
    if not outcome.format_ok:
        return BAD_FORMAT_REWARD
    return 1.0 if outcome.correct else 0.0


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
