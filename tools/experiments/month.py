"""A month's budget, spent by several rules on the answers of one adapter: `python -m tools.experiments month RESULT`.

RESULT is a cell's file. Questions are drawn from its held-out items after the first phase; a rule sees each question's help log-odds when
it comes, how much of the month is over, and how many calls are left. The month may bring fewer or more questions than were expected, and
harder ones towards its end.

- *spend first*: everything is asked until nothing is left.
- *dial*: the rate that spends the budget on the expected number of questions, held by the agent's dial.
- *remaining budget* (after SeqRoute): the rate is what is left by the questions that are still expected, anew for each question, at the
  pace at which they came so far.
- *95 % right* (after PROTEUS): the least rate that reached this accuracy on other questions, held by the dial.
"""

from __future__ import annotations

import argparse
import json
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import mean, stdev
from typing import Protocol

from edge.budget.dial import WINDOW, HelpDial, threshold
from edge.core.errors import EdgeError, UsageError
from tools.experiments.measures import accuracy, as_one, by_threshold, value_of
from tools.experiments.tables import TextTable, percent

EXPECTED, SHARE, WANTED = 3000, 0.3, 0.95
"""Questions that are expected in the month, the share of them that the budget pays for, and the accuracy that is wanted."""
_MONTHS, _BEFORE = 20, 100


@dataclass(frozen=True, slots=True)
class Asked:
    """One question of the month, as it was answered in the evaluation."""

    log_odds: float
    local_right: bool
    cloud_right: bool


class Rule(Protocol):
    """Decides question by question."""

    def asks(self, log_odds: float, number: int, elapsed: float, left: int) -> bool:
        """Whether the question of this number, counted from 0, goes to the cloud, with this share of the month over and calls left."""
        ...


class SpendFirst:
    """Everything, until nothing is left."""

    def asks(self, log_odds: float, number: int, elapsed: float, left: int) -> bool:
        """Always."""
        return True


class Dial:
    """The agent's dial at one rate."""

    def __init__(self, rate: float) -> None:
        self._dial = HelpDial(rate)

    def asks(self, log_odds: float, number: int, elapsed: float, left: int) -> bool:
        """Where the bias lifts the log-odds above 0."""
        setting = self._dial.setting()
        asked = log_odds + setting.bias > 0.0
        self._dial.answered(setting, asked, log_odds)
        return asked


class RemainingBudget:
    """The threshold of the rate that the rest of the budget pays for, over the last questions' log-odds."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=WINDOW)

    def asks(self, log_odds: float, number: int, elapsed: float, left: int) -> bool:
        """The pace is that of the month so far and of a few questions before it, which came as expected."""
        pace = (number + _BEFORE) / (elapsed + _BEFORE / EXPECTED)
        rate = min(1.0, left / max(1.0, pace * (1.0 - elapsed)))
        wanted = rate >= 1.0 or (rate > 0.0 and log_odds > (threshold(self._seen, rate) if self._seen else 0.0))
        self._seen.append(log_odds)
        return wanted


def month(questions: Sequence[Asked], rule: Rule, budget: int) -> tuple[float, int]:
    """The share that is right in the end, and the calls that were made."""
    left, right = budget, 0
    for number, one in enumerate(questions):
        sent = left > 0 and rule.asks(one.log_odds, number, number / len(questions), left)
        left -= sent
        right += one.cloud_right if sent else one.local_right
    return right / len(questions), budget - left


def months_of(by_source: Sequence[Sequence[Asked]], count: int, harder: bool, seed: int) -> list[Asked]:
    """Questions of all sources, mixed, or with `harder` those with higher log-odds rather towards the end."""
    rng, items = Random(seed), [one for source in by_source for one in source]
    drawn = rng.choices(items, k=count)
    return sorted(drawn, key=lambda one: (one.log_odds + rng.gauss(0.0, 4.0)) if harder else 0.0)


def play(arguments: argparse.Namespace) -> int:
    """Print the table of a result."""
    by_source, wanted_rate = _questions(arguments.result)
    rules: Mapping[str, Callable[[], Rule]] = {
        "spend first": SpendFirst,
        f"dial at {percent(SHARE, 0)} %": lambda: Dial(SHARE),
        "remaining budget": RemainingBudget,
        f"{percent(WANTED, 0)} % right: dial at {percent(wanted_rate, 0)} %": lambda: Dial(wanted_rate),
    }
    worlds = {
        "half as many": (0.5, False),
        "as expected": (1.0, False),
        "twice as many": (2.0, False),
        "harder at the end": (1.0, True),
    }
    rows = []
    for name, rule in rules.items():
        cells = []
        for times, harder in worlds.values():
            questions = [months_of(by_source, round(times * EXPECTED), harder, seed) for seed in range(_MONTHS)]
            found = [month(one, rule(), round(SHARE * EXPECTED)) for one in questions]
            shares, calls = [share for share, _ in found], mean(made for _, made in found)
            cells.append(f"{percent(mean(shares))} ± {percent(stdev(shares))} @ {calls:.0f}")
        rows.append((name, *cells))
    note = (
        f"Right in the end in percent (± the deviation over {_MONTHS} months) @ calls made, of {round(SHARE * EXPECTED)} that the budget "
        f"has for the {EXPECTED} expected questions."
    )
    print(TextTable("A month's budget by several rules", ("rule", *worlds), tuple(rows), (note,)).to_markdown())
    return 0


def _questions(file: Path) -> tuple[list[list[Asked]], float]:
    """The items of each source, and the least rate at which half of them, which are left out, are right as wanted (1: at none)."""
    try:
        looks = [one for one in json.loads(file.read_text(encoding="utf-8"))["held_out"] if one["phase"] in (0, 1)]
    except (OSError, ValueError, KeyError) as error:
        raise EdgeError(f"{file}: no result of a cell ({error})", hint="give a file of tools/experiments/results") from error
    if not looks:
        raise UsageError(f"{file}: nothing was evaluated after its first phase")
    half = as_one(
        [{name: column[::2] if isinstance(column, (str, list)) else column for name, column in one.items()} for one in looks]
    )
    reached = bisect_left(range(101), WANTED, key=lambda percents: value_of(half, by_threshold(percents / 100), accuracy))
    return [
        [
            Asked(log_odds, local == "1", cloud == "1")
            for log_odds, local, cloud in list(zip(one["help"], one["forced"], one["cloud"], strict=True))[1::2]
            if log_odds is not None
        ]
        for one in looks
    ], min(100, reached) / 100
