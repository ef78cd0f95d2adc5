"""What a sweep found, combination by combination."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from tools.simulate.reports.assertions import holds
from tools.simulate.reports.drawing import Chart, Stroke, colour, drawn, from_nothing, stroke_of
from tools.simulate.reports.quantities import Asked, Unit, figure, written
from tools.simulate.reports.tables import WORDS, is_shown
from tools.simulate.sweeps.engines import Finished
from tools.simulate.sweeps.plan import Variation, short_names

FIGURES = (
    "p50", "p95", "p95 first token", "rate", "training rate", "λ", "joint accuracy", "local accuracy", "spend", "calls", "fairness",
    "queue", "refusals", "lost answers", "energy", "battery empty",
)  # fmt: skip


_FIRST = ("p50", "p95", "rate", "joint accuracy", "spend")


@dataclass(frozen=True, slots=True)
class Row:
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

    def written(self, name: str, *, spread: bool = False) -> str:
        """The mean; with `spread` the least and the most of the seeds behind it, where they differ."""
        unit, found = figure(name).unit, self.figures[name]
        mean = written(self.mean(name), unit)
        ends = [written(end, unit) for end in (min(found), max(found))] if spread and found else ["", ""]
        return mean if ends[0] == ends[1] else f"{mean} ({ends[0]} to {ends[1]})"


def rows_of(finished: Sequence[Finished]) -> list[Row]:
    """A row for each combination, in the order in which they come."""
    rows = []
    for _, group in groupby(finished, key=lambda end: json.dumps(dict(end.run.settings), default=str)):
        own = list(group)
        whole = [Asked(end.result, end.result.groups) for end in own]
        measured = {name: [figure(name).measure(each) for each in whole] for name in FIGURES}
        rows.append(
            Row(
                values=tuple(own[0].run.settings.values()),
                seeds=tuple(end.run.seed for end in own),
                figures={name: [value for value in values if value is not None] for name, values in measured.items()},
                holding=sum(holds(end.result) for end in own),
                asserting=sum(bool(end.result.assertions) or not holds(end.result) for end in own),
            )
        )
    return rows


def shown_figures(rows: Sequence[Row]) -> list[str]:
    """Those that any row can tell."""
    return [name for name in FIGURES if is_shown(name, [value for row in rows for value in row.figures[name]])]


def table_of(rows: Sequence[Row], variations: Sequence[Variation], *, short: bool = False) -> tuple[list[str], list[list[str]]]:
    """Heads and cells: the varied values, the seeds, how many runs hold what the scenario asserts, and every figure with its spread.
    `short`, for a terminal: the means of the figures that one looks at first."""
    names = [name for name in shown_figures(rows) if not short or name in _FIRST]
    asserts = any(row.asserting for row in rows)
    heads = [*short_names([each.path for each in variations]), "seeds", *(["hold"] if asserts else [])]
    heads += names if short else [WORDS[name] for name in names]
    cells = []
    for row in rows:
        hold = [f"{row.holding} of {len(row.seeds)}"] if asserts else []
        figures = [row.written(name, spread=not short) for name in names]
        cells.append([*map(str, row.values), str(len(row.seeds)), *hold, *figures])
    return heads, cells


def charts_of(rows: Sequence[Row], variations: Sequence[Variation]) -> list[Chart]:
    """Each figure over the values of the first variation, a line for each combination of the others; the band is that of the seeds. None
    where seeds alone differ, nor of what is 0 all over."""
    drawn_of = [name for name in shown_figures(rows) if any(any(row.figures[name]) for row in rows)]
    return [_chart(name, rows, variations) for name in drawn_of] if variations else []


_Drawn = tuple[Stroke, str, Sequence[Row]]


def _chart(name: str, rows: Sequence[Row], variations: Sequence[Variation]) -> Chart:
    others = list(dict.fromkeys(repr(row.values[1:]) for row in rows))
    lines: list[_Drawn] = [
        (stroke_of(place), _label(own[0], variations), own)
        for place, other in enumerate(others)
        if (own := [row for row in rows if repr(row.values[1:]) == other and row.figures[name]])
    ]
    said = "; ".join(" ".join(filter(None, (label, _means(name, own)))) for _, label, own in lines)
    over = short_names([each.path for each in variations])[0]
    return Chart(
        title=WORDS[name],
        caption=f"Over {over}; mean of the seeds, the band from the least to the most of them.",
        alt=f"{WORDS[name]} over {over}. {said}.",
        svg=drawn(f"f{FIGURES.index(name)}", partial(_paint, name=name, lines=lines, variation=variations[0], over=over)),
        legend=tuple((stroke, label) for stroke, label, _ in lines if label),
    )


def _label(row: Row, variations: Sequence[Variation]) -> str:
    names = short_names([each.path for each in variations])[1:]
    return ", ".join(f"{name} {value}" for name, value in zip(names, row.values[1:], strict=True))


def _means(name: str, rows: Sequence[Row]) -> str:
    return ", ".join(f"{row.values[0]}: {row.written(name)}" for row in rows)


def _paint(axis: Any, *, name: str, lines: Sequence[_Drawn], variation: Variation, over: str) -> None:
    place = _places(variation)
    for stroke, _, rows in lines:
        x = [place(row.values[0]) for row in rows]
        low, high = [min(row.figures[name]) for row in rows], [max(row.figures[name]) for row in rows]
        axis.fill_between(x, low, high, color=colour(stroke.colour), alpha=0.16, linewidth=0)
        axis.plot(x, [row.mean(name) for row in rows], marker="o", markersize=4, linewidth=1.8, **stroke.style)
    axis.set_xlabel(over)
    axis.set_xticks([place(value) for value in variation.values], [str(value) for value in variation.values])
    _value_axis(axis, figure(name).unit)


def _places(variation: Variation) -> Callable[[Any], float]:
    """Where a value stands: numbers where they are, anything else in turn."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in variation.values):
        return float
    return lambda value: float(variation.values.index(value))


def _value_axis(axis: Any, unit: Unit) -> None:
    from matplotlib.ticker import FuncFormatter

    if unit is Unit.SHARE:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
    else:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, unit)))
    from_nothing(axis)
