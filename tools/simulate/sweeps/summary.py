"""What a sweep found, combination by combination."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tools.simulate.reports.assertions import holds
from tools.simulate.reports.quantities import Scope, figure, written
from tools.simulate.sweeps.engines import Finished
from tools.simulate.sweeps.plan import Variation, short_names

FIGURES = (
    "p50", "p95", "p95 first token", "rate", "training rate", "λ", "joint accuracy", "local accuracy", "spend", "calls", "fairness",
    "queue", "refusals", "lost answers", "energy", "battery empty",
)  # fmt: skip


_FIRST = ("p50", "p95", "rate", "joint accuracy", "spend")


@dataclass(frozen=True, slots=True)
class Combination:
    """One combination: its values in the order of the variations, and each figure over its seeds (those that could be told)."""

    values: tuple[Any, ...]
    seeds: tuple[int, ...]
    figures: dict[str, list[float]]
    holding: int
    asserting: int

    def mean(self, name: str) -> float | None:
        """Over the seeds; None where no seed could tell."""
        found = self.figures[name]
        return sum(found) / len(found) if found else None


def rows_of(finished: Sequence[Finished]) -> list[Combination]:
    """A row for each combination, in the order in which they come."""
    rows = []
    for _, group in groupby(finished, key=lambda end: json.dumps(dict(end.run.settings), default=str)):
        own = list(group)
        whole = [Scope(end.result, end.result.groups) for end in own]
        measured = {name: [figure(name).measure(each) for each in whole] for name in FIGURES}
        rows.append(
            Combination(
                values=tuple(own[0].run.settings.values()),
                seeds=tuple(end.run.seed for end in own),
                figures={name: [value for value in values if value is not None] for name, values in measured.items()},
                holding=sum(holds(end.result) for end in own),
                asserting=sum(bool(end.result.assertions) or not holds(end.result) for end in own),
            )
        )
    return rows


def table_of(rows: Sequence[Combination], variations: Sequence[Variation]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells: the varied values, the seeds, how many runs hold what the scenario asserts, and the means of the figures that one
    looks at first; `sweep.json` has all of them."""
    names = [name for name in _FIRST if any(row.figures[name] for row in rows)]
    asserts = any(row.asserting for row in rows)
    heads = [*short_names([each.path for each in variations]), "seeds", *(["hold"] if asserts else []), *names]
    cells = []
    for row in rows:
        hold = [f"{row.holding} of {len(row.seeds)}"] if asserts else []
        figures = [written(row.mean(name), figure(name).unit) for name in names]
        cells.append([*map(str, row.values), str(len(row.seeds)), *hold, *figures])
    return heads, cells
