"""The budget dial: a bias on the help phrase that makes a frozen model ask at a chosen rate. Knows log-odds; knows nothing of ledgers."""

from __future__ import annotations

DIAL_LR = 0.3
BIAS_BOUND = 30.0


def dial_step(bias: float, asked: bool, target_rate: float, lr: float = DIAL_LR) -> float:
    """b ← b - η_b (asked - τ), held within ±30 nats so that it cannot wind up while the rate cannot move."""
    return min(BIAS_BOUND, max(-BIAS_BOUND, bias - lr * (float(asked) - target_rate)))


class HelpDial:
    """The bias in use and the rate it steers to (None: no bias, the model decides alone)."""

    def __init__(self, target_rate: float | None, bias: float = 0.0) -> None:
        self.target_rate = target_rate
        self._bias = bias

    @property
    def bias(self) -> float:
        """What is added to the logit of the help phrase's first token, in nats."""
        return 0.0 if self.target_rate is None else self._bias

    def answered(self, asked: bool) -> None:
        """Learn from one served question whether the model asked."""
        if self.target_rate is not None:
            self._bias = dial_step(self._bias, asked, self.target_rate)
