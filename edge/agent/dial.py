"""The budget dial: a bias on the help phrase that makes a frozen model ask at a chosen rate. Knows log-odds; knows nothing of ledgers.

The base is the formula b ← b - η_b (asked - τ). By itself it needs dozens of questions to travel to where the model's log-odds are, and
what it missed on the way stays missed. So two things are put around it, and it corrects what they leave:

- the help log-odds of the last answers tell where the threshold lies: their quantile at the wanted rate;
- the wanted rate is τ plus a share of what is owed so far, Σ(τ - asked) / H with H = STEADINESS / (τ(1 - τ)), which keeps the standard
  deviation of what is owed near sqrt(STEADINESS / 2) questions whatever τ is.

Nothing winds up: what is owed is held where the wanted rate meets 0 or 1, and an answer in which no decision could be taken moves no bias.
A request for help counts as asked whatever became of it (refused, offline): it is demand, and making up for an outage would ask for
everything at its end. Answers for which asking was impossible from the start are seen, and not counted.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from edge.core.errors import UsageError

DIAL_LR = 0.3
BIAS_BOUND = 30.0
STEADINESS = 4.0
"""H·τ(1 - τ): larger leaves the choice of questions more to the model, smaller holds the rate more tightly."""
WINDOW = 100
"""Answers whose log-odds tell where the threshold lies."""
RATE_WINDOW = 200
"""Answers over which the realised rate is told."""
ENOUGH_OF_ONE_ADAPTER = 20
"""So many log-odds of the adapter in use, and older adapters' are left out."""
_LEAST_SPREAD = 1.0
"""Nats by which the log-odds are taken to fall off beyond those that were seen, at the least."""


def dial_step(bias: float, asked: bool, target_rate: float, lr: float = DIAL_LR) -> float:
    """b ← b - η_b (asked - τ), held within ±30 nats so that it cannot wind up while the rate cannot move."""
    return _bounded(bias - lr * (float(asked) - target_rate))


def wanted_rate(target_rate: float, owed: float) -> float:
    """τ corrected by what is owed, Σ(τ - asked): τ + owed / H, within [0, 1]. τ itself at τ = 0 and 1."""
    return min(1.0, max(0.0, target_rate + owed * target_rate * (1.0 - target_rate) / STEADINESS))


def threshold(log_odds_N: Sequence[float], rate: float) -> float:
    """The log-odds (nats) above which a share `rate` in (0, 1) of a next one is expected; needs at least one.

    Between order statistics linear; beyond the outermost ones the tail is taken as exponential.
    """
    ordered = sorted(log_odds_N)
    count = len(ordered)
    position = (1.0 - rate) * (count + 1) - 1.0
    spread = max(_LEAST_SPREAD, (ordered[-1] - ordered[0]) / 4.0)
    if position > count - 1:
        return ordered[-1] + spread * math.log(1.0 / (rate * (count + 1)))
    if position < 0.0:
        return ordered[0] - spread * math.log(1.0 / ((1.0 - rate) * (count + 1)))
    below = min(int(position), count - 1)
    above = min(below + 1, count - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


@dataclass(frozen=True, slots=True)
class Setting:
    """What one question is asked with: the bias b (nats) and the rate it was made for among answers that reach a decision."""

    bias: float
    rate: float


@dataclass(frozen=True, slots=True)
class DialReading:
    """A dial at a moment. `realised_rate` is over the last 200 counted answers, `realised_since_set` over all since τ was set (None before
    the first one); `questions` and `asked` are since then. `without_decision`: share of the last answers that no bias could make ask.
    """

    task: str
    target_rate: float | None
    own: bool
    bias: float
    realised_rate: float | None
    realised_since_set: float | None
    questions: int
    asked: int
    without_decision: float | None
    known_log_odds: int
    set_at: float | None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


class HelpDial:
    """The dial of one task: the bias for the next question, and the rate it steers to (None: no bias, the model decides alone).

    `own`: τ was set for this task alone. `set_at`: seconds since the epoch, None where τ comes from the configuration.
    """

    def __init__(self, target_rate: float | None, task: str = "", *, own: bool = False, set_at: float | None = None) -> None:
        self.task = task
        self.own = own
        self.set_at = set_at
        self.target_rate = check_rate(target_rate)
        self._correction = 0.0
        self._owed = 0.0
        self._questions = 0
        self._asks = 0
        self._asked: deque[bool] = deque(maxlen=RATE_WINDOW)
        self._seen: deque[tuple[int, float | None]] = deque(maxlen=WINDOW)

    def set(self, target_rate: float | None, *, own: bool, at: float | None) -> None:
        """Steer to another rate from the next question on; counting begins anew, what is known of the model stays.

        Raises UsageError outside [0, 1].
        """
        self.target_rate, self.own, self.set_at = check_rate(target_rate), own, at
        self._owed, self._questions, self._asks = 0.0, 0, 0
        self._asked.clear()

    def setting(self, adapter_version: int = 0) -> Setting:
        """What to ask the next question with, answered by this adapter."""
        if self.target_rate is None:
            return Setting(0.0, 0.0)
        rate = wanted_rate(self.target_rate, self._owed)
        seen = self._of_adapter(adapter_version)
        known = [log_odds for log_odds in seen if log_odds is not None]
        rate = min(1.0, rate * len(seen) / len(known)) if known else rate
        if rate in (0.0, 1.0):
            return Setting(BIAS_BOUND if rate else -BIAS_BOUND, rate)
        return Setting(_bounded(self._correction - (threshold(known, rate) if known else 0.0)), rate)

    def answered(self, setting: Setting, asked: bool, log_odds: float | None, adapter_version: int = 0) -> None:
        """Learn from one question that was asked with `setting` whether the model asked; `log_odds` None: it reached no decision."""
        if self.target_rate is not None and (log_odds is not None or asked) and 0.0 < setting.rate < 1.0:
            self._correction = dial_step(self._correction, asked, setting.rate)
        self.seen(log_odds, adapter_version)
        self._questions += 1
        self._asks += asked
        self._asked.append(asked)
        self._owe(asked)

    def seen(self, log_odds: float | None, adapter_version: int = 0) -> None:
        """Take note of an answer for which asking was impossible: it tells about the model, and does not count."""
        usable = log_odds is not None and math.isfinite(log_odds)
        self._seen.append((adapter_version, log_odds if usable else None))

    def warm(self, earlier: Iterable[tuple[int, float | None]]) -> None:
        """Begin with what earlier answers showed, oldest first, as (adapter version, log-odds); for a dial that has seen nothing."""
        if not self._seen:
            for adapter_version, log_odds in earlier:
                self.seen(log_odds, adapter_version)

    def reading(self, adapter_version: int = 0) -> DialReading:
        """The dial now."""
        reached = sum(log_odds is not None for _, log_odds in self._seen)
        return DialReading(
            task=self.task,
            target_rate=self.target_rate,
            own=self.own,
            bias=self.setting(adapter_version).bias,
            realised_rate=sum(self._asked) / len(self._asked) if self._asked else None,
            realised_since_set=self._asks / self._questions if self._questions else None,
            questions=self._questions,
            asked=self._asks,
            without_decision=1.0 - reached / len(self._seen) if self._seen else None,
            known_log_odds=reached,
            set_at=self.set_at,
        )

    def to_json(self) -> str:
        """All of it, to be kept."""
        return json.dumps(
            {
                "target_rate": self.target_rate,
                "own": self.own,
                "set_at": self.set_at,
                "correction": self._correction,
                "owed": self._owed,
                "questions": self._questions,
                "asks": self._asks,
                "asked": "".join("1" if asked else "0" for asked in self._asked),
                "seen": list(self._seen),
            }
        )

    @classmethod
    def from_json(cls, task: str, text: str) -> HelpDial:
        """The dial that `to_json` was made of."""
        kept = json.loads(text)
        dial = cls(kept["target_rate"], task, own=kept["own"], set_at=kept["set_at"])
        dial._correction, dial._owed = kept["correction"], kept["owed"]
        dial._questions, dial._asks = kept["questions"], kept["asks"]
        dial._asked.extend(mark == "1" for mark in kept["asked"])
        dial._seen.extend((version, log_odds) for version, log_odds in kept["seen"])
        return dial

    def _owe(self, asked: bool) -> None:
        """Held where the wanted rate meets 0 and 1."""
        rate = self.target_rate
        if rate is None or rate in (0.0, 1.0):
            return
        most, least = STEADINESS / rate, -STEADINESS / (1.0 - rate)
        self._owed = min(most, max(least, self._owed + rate - float(asked)))

    def _of_adapter(self, version: int) -> list[float | None]:
        """The log-odds seen under the adapter in use where there are enough of them, else all."""
        own = [log_odds for adapter_version, log_odds in self._seen if adapter_version == version]
        return own if len(own) >= ENOUGH_OF_ONE_ADAPTER else [log_odds for _, log_odds in self._seen]


def check_rate(rate: float | None) -> float | None:
    """The rate itself. Raises UsageError unless it is None or lies in [0, 1]."""
    if rate is not None and not 0.0 <= rate <= 1.0:
        raise UsageError(f"the dial must lie in [0, 1], not {rate}")
    return rate


def _bounded(bias: float) -> float:
    return min(BIAS_BOUND, max(-BIAS_BOUND, bias))
