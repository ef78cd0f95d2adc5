"""Tables as text: rows, columns and number formats. Missing measurements are written as missing, never filled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tools.experiments.stats import Estimate
from tools.markdown import table_lines

MISSING = "missing"
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class TextTable:
    """A title, the column names, rows of as many texts, and remarks below."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def to_markdown(self) -> str:
        """Aligned, so that it can be read as it is."""
        notes = [f"\n{note}" for note in self.notes]
        return "\n".join([f"**{self.title}**", "", *table_lines(self.header, self.rows), *notes])


def table_of(
    title: str,
    names: Sequence[str],
    rows: Iterable[tuple[Sequence[str], S]],
    columns: Mapping[str, Callable[[S], str]],
    *notes: str,
) -> TextTable:
    """A row for each subject: its names, and its value in each column."""
    cells = tuple((*named, *(column(subject) for column in columns.values())) for named, subject in rows)
    return TextTable(title, (*names, *columns), cells, notes)


def percent(value: float, digits: int = 1) -> str:
    """A share as `84.5`; zero after rounding has no sign."""
    return f"{100 * value:z.{digits}f}"


def with_half(estimate: Estimate, digits: int = 1) -> str:
    """A share as `84.5 ± 2.1`; without an interval where nothing is known of chance."""
    half = "" if estimate.half is None else f" ± {percent(estimate.half, digits)}"
    return f"{percent(estimate.mean, digits)}{half}"


def signed(estimate: Estimate, digits: int = 1) -> str:
    """A difference of shares as `+1.4 ± 0.9 *`; the star marks an interval of several seeds that excludes 0."""
    sure = estimate.seeds > 1 and estimate.half is not None and (estimate.low > 0.0 or estimate.high < 0.0)
    text = with_half(estimate, digits)
    return f"{'' if text.startswith('-') else '+'}{text}{' *' if sure else ''}"


def plain(estimate: Estimate, digits: int = 3) -> str:
    """A number as `0.482 ± 0.013`."""
    half = "" if estimate.half is None else f" ± {estimate.half:.{digits}f}"
    return f"{estimate.mean:.{digits}f}{half}"


def or_missing(found: Estimate | None, form: Callable[[Estimate], str] = with_half) -> str:
    """An estimate in one of these forms, or missing."""
    return MISSING if found is None else form(found)


def at_share(found: Estimate | None, asked: Estimate | None, *, kept: bool = False) -> str:
    """`84.5 ± 2.1 @ 30 %`: an accuracy at the share that the cloud answers, or that is kept; missing where nothing was measured."""
    if asked is None:
        return MISSING
    share = percent(1.0 - asked.mean if kept else asked.mean, 0)
    return f"{'none kept' if found is None else with_half(found)} @ {share} %"


def shown(value: object) -> str:
    """A setting's value."""
    return f"{value:g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def seeds_text(seeds: Iterable[int], wanted: int) -> str:
    """The column of seeds: how many there are of those wanted, the fewest and the most where a row has several."""
    there = sorted(set(seeds)) or [0]
    if there == [wanted]:
        return str(wanted)
    return f"{there[0]} of {wanted}" if len(there) == 1 else f"{there[0]} to {there[-1]} of {wanted}"
