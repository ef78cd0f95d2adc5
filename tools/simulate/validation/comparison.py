"""The real run beside the simulated one, number by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from tools.simulate.validation.seen import Answered, Run, Taken

GOAL = 0.15
"""How far a simulated p50 or p95 may be off, as a share of the real one."""
_SOURCES = ("local", "cloud", "local-fallback")
_SHARES = ((0.5, "p50"), (0.95, "p95"))


@dataclass(frozen=True, slots=True)
class Row:
    """One number in both. `met`: whether it keeps to the goal; None where none is set. `unit`: "s", or "" for a share or λ."""

    name: str
    unit: str
    real: float
    simulated: float
    met: bool | None = None

    @property
    def off(self) -> float | None:
        """(simulated - real) / real; None where the real one is 0."""
        return (self.simulated - self.real) / self.real if self.real else None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "off": self.off}


def compare(real: Run, simulated: Run) -> list[Row]:
    """Latencies by source, rates, λ. A source that only one of the two has is no row."""
    rows = list(_latency_rows(real.answers, simulated.answers))

    def add(name: str, unit: str, value: Callable[[Run], float]) -> None:
        rows.append(Row(name, unit, value(real), value(simulated)))

    if real.answers and simulated.answers:
        add("realised rate", "", lambda run: fmean(each.asked for each in run.answers))
    if real.steps and simulated.steps:
        add("assist rate of training", "", lambda run: fmean(step.assist_rate for step in run.steps))
        add("λ after the last step", "", lambda run: run.steps[-1].dual)
        add("a learning step, p50", "s", lambda run: median(step.seconds for step in run.steps))
    return rows


def dual_distance(real: Sequence[Taken], simulated: Sequence[Taken]) -> float | None:
    """Mean absolute difference of λ, step by step; None without steps in both."""
    pairs = list(zip(real, simulated, strict=False))
    return fmean(abs(one.dual - other.dual) for one, other in pairs) if pairs else None


def goal_is_met(rows: Sequence[Row]) -> bool:
    """No row misses, and at least one was judged."""
    judged = [row.met for row in rows if row.met is not None]
    return bool(judged) and all(judged)


def _latency_rows(real: Sequence[Answered], simulated: Sequence[Answered]) -> Iterator[Row]:
    for source in _SOURCES:
        both = [[each for each in answers if each.source == source] for answers in (real, simulated)]
        if all(both):
            told = f"{source} ({len(both[0])}, {len(both[1])})"
            yield from _quantile_rows(f"{told}: whole answer", both, lambda each: each.total_s, judged=True)
            yield from _quantile_rows(f"{told}: first letter", both, lambda each: each.first_s, judged=True)
    if real and simulated:
        yield from _quantile_rows("all, from the arrival on", [real, simulated], lambda each: each.from_arrival_s, judged=False)


def _quantile_rows(
    name: str, both: Sequence[Sequence[Answered]], value: Callable[[Answered], float], *, judged: bool
) -> Iterator[Row]:
    for share, word in _SHARES:
        one, other = (float(np.quantile([value(each) for each in answers], share)) for answers in both)
        yield Row(f"{name}, {word}", "s", one, other, abs(other - one) <= GOAL * one if judged else None)


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as lines of text."""
    heads = ("", "real", "simulated", "difference", "goal 15 %")
    cells = [heads, *(_cells(row) for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(heads))]
    return [
        "  ".join((line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))))
        for line in cells
    ]


def _cells(row: Row) -> tuple[str, ...]:
    unit = " ms" if row.unit == "s" else ""
    scale = 1e3 if row.unit == "s" else 1.0
    off = "" if row.off is None else f"{100 * row.off:+.1f} %"
    goal = "" if row.met is None else "met" if row.met else "MISSED"
    digits = ".1f" if row.unit == "s" else ".3f"
    return row.name, f"{scale * row.real:{digits}}{unit}", f"{scale * row.simulated:{digits}}{unit}", off, goal
