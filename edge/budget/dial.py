"""The budget dial: a bias on the help phrase that makes a frozen model ask at a chosen rate, one dial for each task.

It acts in `Answerer._as_the_model_decides`, and for an answer in a form in `HeldAnswers`: `HelpDial.setting` becomes `Sampling.help_bias`;
`HelpDial.answered` follows the answer.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from edge.core.clock import Clock
from edge.core.errors import NotFound, UsageError
from edge.state.folder import StateFolder
from edge.state.reader import StateReader

DIAL_LR = 0.3
BIAS_BOUND = 100.0
STEADINESS = 4.0
"""H·τ(1 - τ): larger leaves the choice of questions more to the model, smaller holds the rate more tightly."""
WINDOW = 100
"""Answers whose log-odds show where the threshold lies."""
RATE_WINDOW = 200
"""Answers over which the realised rate is taken."""
ENOUGH_OF_ONE_ADAPTER = 20
"""With this many log-odds of the adapter in use, those of older adapters are left out."""
_LEAST_SPREAD = 1.0
"""Nats by which the log-odds are taken to fall off beyond those that were seen, at the least."""


def dial_step(bias: float, asked: bool, target_rate: float, lr: float = DIAL_LR) -> float:
    """b ← b - η_b (asked - τ), held within ±BIAS_BOUND so that it cannot wind up while the rate cannot move."""
    return _bounded(bias - lr * (float(asked) - target_rate))


def wanted_rate(target_rate: float, accumulated_error: float) -> float:
    """τ corrected by the accumulated error e = Σ(τ - asked): τ + e / H, within [0, 1]. τ itself at τ = 0 and 1."""
    return min(1.0, max(0.0, target_rate + accumulated_error * target_rate * (1.0 - target_rate) / STEADINESS))


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
    """What one question is asked with: the bias b (nats), the rate it was made for among answers that reach a decision, and the form of its
    answer."""

    bias: float
    rate: float
    form: str = ""


@dataclass(frozen=True, slots=True)
class DialSnapshot:
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

    Log-odds of answers in different forms lie nats apart, so each form has a threshold of its own; the rate is one.
    `own`: τ was set for this task alone. `set_at`: seconds since the epoch, None where τ comes from the configuration.
    """

    def __init__(self, target_rate: float | None, task: str = "", *, own: bool = False, set_at: float | None = None) -> None:
        self.task = task
        self.own = own
        self.set_at = set_at
        self.target_rate = check_rate(target_rate)
        self._corrections: dict[str, float] = {}
        self._accumulated_error = 0.0
        self._questions = 0
        self._asks = 0
        self._asked: deque[bool] = deque(maxlen=RATE_WINDOW)
        self._seen: deque[tuple[int, float | None, str]] = deque(maxlen=WINDOW)

    def set(self, target_rate: float | None, *, own: bool, at: float | None) -> None:
        """Steer to another rate from the next question on; counting begins again, what is known of the model stays.

        Raises UsageError outside [0, 1].
        """
        self.target_rate, self.own, self.set_at = check_rate(target_rate), own, at
        self._accumulated_error, self._questions, self._asks = 0.0, 0, 0
        self._asked.clear()

    def setting(self, adapter_version: int = 0, form: str = "") -> Setting:
        """What to ask the next question with, answered by this adapter in this form."""
        if self.target_rate is None:
            return Setting(0.0, 0.0, form)
        rate = wanted_rate(self.target_rate, self._accumulated_error)
        seen = self._comparable(adapter_version, form)
        known = [log_odds for log_odds in seen if log_odds is not None]
        rate = min(1.0, rate * len(seen) / len(known)) if known else rate
        if rate in (0.0, 1.0):
            return Setting(BIAS_BOUND if rate else -BIAS_BOUND, rate, form)
        correction = self._corrections.get(form, 0.0)
        return Setting(_bounded(correction - (threshold(known, rate) if known else 0.0)), rate, form)

    def answered(self, setting: Setting, asked: bool, log_odds: float | None, adapter_version: int = 0) -> None:
        """Count one question that was asked with `setting`, and whether the model asked; `log_odds` None: it reached no decision."""
        if self.target_rate is not None and (log_odds is not None or asked) and 0.0 < setting.rate < 1.0:
            self._corrections[setting.form] = dial_step(self._corrections.get(setting.form, 0.0), asked, setting.rate)
        self.seen(log_odds, adapter_version, setting.form)
        self._questions += 1
        self._asks += asked
        self._asked.append(asked)
        self._accumulate(asked)

    def seen(self, log_odds: float | None, adapter_version: int = 0, form: str = "") -> None:
        """Take note of an answer for which asking was impossible: it shows the model, and does not count. In a form every answer decides,
        so one without log-odds shows nothing."""
        if log_odds is None and form:
            return
        usable = log_odds is not None and math.isfinite(log_odds)
        self._seen.append((adapter_version, log_odds if usable else None, form))

    def warm(self, earlier: Iterable[tuple[int, float | None, str]]) -> None:
        """Begin with what earlier answers showed, oldest first, as (adapter version, log-odds, form); for a dial that has seen nothing."""
        if not self._seen:
            for adapter_version, log_odds, form in earlier:
                self.seen(log_odds, adapter_version, form)

    def snapshot(self, adapter_version: int = 0) -> DialSnapshot:
        """The dial now."""
        reached = sum(log_odds is not None for _, log_odds, _ in self._seen)
        return DialSnapshot(
            task=self.task,
            target_rate=self.target_rate,
            own=self.own,
            bias=self.setting(adapter_version, self._seen[-1][2] if self._seen else "").bias,
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
                "corrections": self._corrections,
                "owed": self._accumulated_error,
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
        dial._corrections, dial._accumulated_error = kept["corrections"], kept["owed"]
        dial._questions, dial._asks = kept["questions"], kept["asks"]
        dial._asked.extend(mark == "1" for mark in kept["asked"])
        dial._seen.extend((version, log_odds, form) for version, log_odds, form in kept["seen"])
        return dial

    def _accumulate(self, asked: bool) -> None:
        """Held where the wanted rate meets 0 and 1."""
        rate = self.target_rate
        if rate is None or rate in (0.0, 1.0):
            return
        most, least = STEADINESS / rate, -STEADINESS / (1.0 - rate)
        self._accumulated_error = min(most, max(least, self._accumulated_error + rate - float(asked)))

    def _comparable(self, version: int, form: str) -> list[float | None]:
        """The log-odds seen in a form under the adapter in use where there are enough of them, else under all."""
        in_form = [(adapter_version, log_odds) for adapter_version, log_odds, its_form in self._seen if its_form == form]
        own = [log_odds for adapter_version, log_odds in in_form if adapter_version == version]
        return own if len(own) >= ENOUGH_OF_ONE_ADAPTER else [log_odds for _, log_odds in in_form]


def check_rate(rate: float | None) -> float | None:
    """The rate itself. Raises UsageError unless it is None or lies in [0, 1]."""
    if rate is not None and not 0.0 <= rate <= 1.0:
        raise UsageError(f"the dial must lie in [0, 1], not {rate}")
    return rate


def _bounded(bias: float) -> float:
    return min(BIAS_BOUND, max(-BIAS_BOUND, bias))


MOST_OWN_DIALS = 64
"""A dial that somebody sets for a task alone is kept until one is set for every task."""
MOST_OTHER_DIALS = 64
"""How many dials that nobody has set are kept: those that answered last."""
_DEFAULT = "dial_default"


@dataclass(frozen=True, slots=True)
class _Default:
    """The rate of tasks without one of their own; `set_at` None: the configuration's."""

    target_rate: float | None
    set_at: float | None


class Dials:
    """Dials by task, made when they are first needed. `configured`: the rate where nobody has set one (None: no dial). `paced`: the rate
    that a budget leaves, which holds in its place (None, or a rate of None: there is no such budget)."""

    def __init__(
        self, state: StateFolder, configured: float | None, clock: Clock, paced: Callable[[], float | None] | None = None
    ) -> None:
        self._state = state
        self._clock = clock
        check_rate(configured)
        self._paced = paced
        self._default = _default_of(state, configured)
        self._dials = {dial.task: dial for dial in stored_dials(state, configured)}
        self._forgotten: set[str] = set()
        self._forget_the_oldest()

    def of(self, task: str) -> HelpDial:
        """The dial of a task; a new one begins with what earlier answers to the task showed."""
        if task not in self._dials:
            dial = HelpDial(self._default.target_rate, task, set_at=self._default.set_at)
            dial.warm(_recorded(self._state, task))
            self._dials[task] = dial
            self._forgotten.discard(task)
            self._forget_the_oldest()
        dial = self._dials[task]
        if self._paced is not None and not dial.own and self._default.set_at is None:
            rate = self._paced()
            dial.target_rate = self._default.target_rate if rate is None else rate
        return dial

    def set(self, rate: float | None, task: str | None = None) -> None:
        """Set τ of one task, or of every task (None as the rate: the model decides alone). Raises UsageError outside [0, 1],
        and where too many tasks have a dial of their own."""
        check_rate(rate)
        others = sum(dial.own for label, dial in self._dials.items() if label != task)
        if task is not None and others >= MOST_OWN_DIALS:
            raise UsageError(f"{MOST_OWN_DIALS} tasks have a dial of their own already", hint="set one rate for every task")
        now = self._clock.now()
        changed = [self.of(task)] if task is not None else list(self._dials.values())
        for dial in changed:
            dial.set(rate, own=task is not None, at=now)
        with self._state.database as database:
            if task is None:
                self._default = _Default(rate, now)
                default = json.dumps({"target_rate": rate, "set_at": now})
                database.execute("REPLACE INTO meta VALUES (?, ?)", (_DEFAULT, default))
            for dial in changed:
                self.save(dial)

    def save(self, dial: HelpDial) -> None:
        """Write a dial as it is now, in the transaction under way, and delete those that are kept no longer."""
        self._dials.pop(dial.task, None)
        self._dials[dial.task] = dial  # at the end: the last to go
        self._state.database.execute("REPLACE INTO dials VALUES (?, ?)", (dial.task, dial.to_json()))
        for task in self._forgotten:
            self._delete(task)
        self._forgotten.clear()

    def _forget_the_oldest(self) -> None:
        others = [task for task, dial in self._dials.items() if not dial.own]
        for task in others[:-MOST_OTHER_DIALS]:
            del self._dials[task]
            self._forgotten.add(task)

    def forget(self, task: str) -> None:
        """Delete a task's dial; a task that comes back begins with the rate of every task. Raises NotFound for one without."""
        if task not in self._dials:
            raise NotFound(f"no task of the label {task} has a dial", hint="edge-agent budget show lists the tasks")
        with self._state.database:
            self._delete(task)
        del self._dials[task]

    def _delete(self, task: str) -> None:
        self._state.database.execute("DELETE FROM dials WHERE task = ?", (task,))
        self._state.database.execute("DELETE FROM meta WHERE key = ?", (f"budget:{task}",))

    @property
    def default_rate(self) -> float | None:
        """τ of tasks without one of their own."""
        return self._default.target_rate

    @property
    def is_set(self) -> bool:
        """Whether a person set the rate of every task."""
        return self._default.set_at is not None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have a dial by now."""
        return tuple(self._dials)


def stored_dials(state: StateReader, configured: float | None) -> list[HelpDial]:
    """The dials of a state folder, also while an agent uses it."""
    default = _default_of(state, configured)
    rows = state.rows("SELECT task, dial FROM dials ORDER BY task")
    dials = [HelpDial.from_json(str(task), text) for task, text in rows]
    for dial in dials:
        if not dial.own and dial.target_rate != default.target_rate:
            dial.set(default.target_rate, own=False, at=default.set_at)
    return dials


def default_rate(state: StateReader, configured: float | None) -> float | None:
    """τ of a task that has no dial yet."""
    return _default_of(state, configured).target_rate


def is_rate_set(state: StateReader) -> bool:
    """Whether a person set the rate of every task, over the configuration's."""
    return _default_of(state, None).set_at is not None


def _default_of(state: StateReader, configured: float | None) -> _Default:
    kept = state.meta(_DEFAULT)
    return _Default(configured, None) if kept is None else _Default(**json.loads(kept))


def _recorded(state: StateFolder, task: str) -> Iterator[tuple[int, float | None, str]]:
    """What the last answers to a task showed, oldest first; answers that the local model had no part in show nothing."""
    for record in reversed(state.requests(WINDOW)):
        if record.get("task") == task and record.get("local_text"):
            yield int(record["adapter_version"]), record["help_log_odds"], str(record.get("form", ""))
