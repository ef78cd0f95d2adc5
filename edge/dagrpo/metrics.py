"""What is reported about accuracy and asking. Every accuracy travels with its rate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from edge.dagrpo.numbers import require_share


@dataclass(frozen=True, slots=True)
class ResponseTally:
    """Counts over responses: all, kept local, kept and correct, jointly correct (after composition)."""

    responses: int
    kept: int
    kept_correct: int
    joint_correct: int

    @property
    def coverage(self) -> float:
        """Share of responses kept local."""
        return self.kept / self.responses if self.responses else 0.0

    @property
    def assist_rate(self) -> float:
        """Share of responses that asked."""
        return 1.0 - self.coverage if self.responses else 0.0

    @property
    def kept_accuracy(self) -> float:
        """Accuracy of the responses kept local; 0 when none was kept."""
        return self.kept_correct / self.kept if self.kept else 0.0

    @property
    def joint_accuracy(self) -> float:
        """Accuracy over all responses, assisted ones included."""
        return self.joint_correct / self.responses if self.responses else 0.0


def tally(outcomes: Iterable[tuple[bool, bool]]) -> ResponseTally:
    """Counts from (asked, correct) pairs, `correct` judging the composed response."""
    pairs = list(outcomes)
    kept = [correct for asked, correct in pairs if not asked]
    return ResponseTally(len(pairs), len(kept), sum(kept), sum(correct for _, correct in pairs))


def forgetting_rate(during_task_acc: float, post_switch_acc: float) -> float:
    """(during - post) / during. Raises ValueError on shares outside [0, 1] or during = 0."""
    during = require_share("during_task_acc", during_task_acc)
    post = require_share("post_switch_acc", post_switch_acc)
    if during == 0.0:
        raise ValueError("forgetting_rate is undefined for during_task_acc = 0")
    return (during - post) / during


def oracle_router_bound(rate: float, forced_local_accuracy: float, cloud_accuracy: float) -> float:
    """Best joint accuracy at this rate: forced-local + min(q, 1 - forced-local) · cloud."""
    share = require_share("rate", rate)
    local = require_share("forced_local_accuracy", forced_local_accuracy)
    return local + min(share, 1.0 - local) * require_share("cloud_accuracy", cloud_accuracy)


def wilson_interval(successes: int, trials: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """95 % Wilson score interval of a share. (0, 1) when there was no trial; raises ValueError on impossible counts."""
    if trials < 0 or not 0 <= successes <= max(trials, 0):
        raise ValueError(f"impossible counts: {successes} of {trials}")
    return wilson_interval_of_share(successes / trials, trials, z) if trials else (0.0, 1.0)


def wilson_interval_of_share(share: float, trials: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """The same for a share and a number of trials that need not be whole: that of a weighted mean is `effective_trials`.

    Raises ValueError on a share outside [0, 1] or trials that are not positive.
    """
    if not trials > 0.0:
        raise ValueError(f"trials must be positive, not {trials}")
    share, square = require_share("share", share), z * z
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    half = z * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials)) / (1 + square / trials)
    return (max(0.0, centre - half), min(1.0, centre + half))


def effective_trials(weights: Iterable[float]) -> float:
    """Kish's effective sample size (Σw)² / Σw²: how many equally weighted trials are worth as much. 0 of none."""
    values = list(weights)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / squares if squares else 0.0
