"""The vectorised fleet held against the exact simulation, figure by figure.

Both draw their own chance, so that equal laws still give figures that differ: the spread of the vectorised figures between seeds says by
how much. The vectorised figure is the mean over the seeds.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tools.places import check_files, put
from tools.simulate.fleet.run import play
from tools.simulate.fleet.scenario import Scenario, load_scenario
from tools.simulate.reports.compare import read_result
from tools.simulate.reports.quantities import Asked, answers_of, figure
from tools.simulate.reports.result import SOURCES, GroupResult, SimulationResult
from tools.simulate.vectorised.fleet import run_vectorised

NEAR = 0.05
CHANCE = 3.0
"""Standard deviations that chance alone is granted."""
FEWEST_ANSWERS = 1000
"""Quantiles of fewer answers are not shown: their own chance is beyond what is looked for."""
COUNTED = ("answers", "rate", "joint accuracy", "local accuracy", "calls", "spend", "energy")
TIMED = ("p50", "p95", "p99", "p50 first token", "p95 first token", "p99 first token")
WIDTH = 110


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one group: by the exact simulation, by the vectorised one, and the standard deviation of the latter between seeds."""

    group: str
    figure: str
    exact: float
    vectorised: float
    spread: float

    @property
    def off_by(self) -> float:
        """Relative to the exact figure."""
        if self.exact == self.vectorised:
            return 0.0
        return self.vectorised / self.exact - 1.0 if self.exact else float("inf")

    @property
    def verdict(self) -> str:
        """Within 5 %; no farther than another seed of the exact simulation might be; or neither."""
        if abs(self.off_by) <= NEAR:
            return "yes"
        return "by chance" if abs(self.exact - self.vectorised) <= CHANCE * self.spread else "no"


def add_command(commands: Any) -> None:
    """The subcommand, for argparse's subparsers."""
    command = commands.add_parser("validate-fleet", help="the vectorised fleet against the exact simulation, figure by figure")
    command.add_argument("scenario", type=Path, metavar="SCENARIO.yaml", help="see tools/simulate/README.md")
    command.add_argument("--seeds", type=int, default=8, help="vectorised runs, whose mean counts (8)")
    command.add_argument("--exact", type=Path, metavar="FILE", help="the exact run's JSON: read where it is there, else written")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="sets", help="a value that wins over the file's"
    )
    command.set_defaults(play=validate)


def validate(chosen: argparse.Namespace) -> int:
    """Play both and report; 0 when all figures are near, or as near as chance lets them be. Raises EdgeError for what cannot be played."""
    if chosen.exact is not None and not chosen.exact.is_file():
        check_files(chosen.exact)
    scenario, name = load_scenario(chosen.scenario, chosen.sets), chosen.scenario.stem
    fleets = [run_vectorised(scenario, scenario.seed + place, name) for place in range(chosen.seeds)]
    rows = compared(_exact(scenario, name, chosen.exact), fleets)
    console = Console()
    console.width = max(console.width, WIDTH)
    table = Table("group", "figure", "exact", "vectorised", "differs by", "spread of seeds", f"within {NEAR:.0%}")
    for row in rows:
        spread = f"{row.spread / row.vectorised:.1%}" if row.vectorised else ""
        figures = (f"{row.exact:.5g}", f"{row.vectorised:.5g}", f"{row.off_by:+.2%}", spread)
        table.add_row(row.group, row.figure, *figures, row.verdict)
    console.print(table)
    counts = Counter(row.verdict for row in rows)
    print(
        f"{counts['yes']} of {len(rows)} figures are within {NEAR:.0%} of the exact simulation with {scenario.devices} devices,"
    )
    print(f"{counts['by chance']} differ by what chance explains ({CHANCE:g} standard deviations), {counts['no']} by more")
    return 1 if counts["no"] else 0


def compared(exact: SimulationResult, fleets: Sequence[SimulationResult]) -> list[Compared]:
    """Every figure that both have."""
    rows = []
    for place, group in enumerate(exact.groups):
        others = [dict(figures(fleet, fleet.groups[place])) for fleet in fleets]
        for name, value in figures(exact, group):
            values = [each[name] for each in others if name in each]
            if values:
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                rows.append(Compared(group.name, name, value, statistics.fmean(values), spread))
    return rows


def figures(result: SimulationResult, group: GroupResult) -> Iterator[tuple[str, float]]:
    """The figures of a group by name; those that there are."""
    asked = Asked(result, [group])
    for name in COUNTED:
        value = figure(name).measure(asked)
        if value is not None:
            yield name, value
    for name, source in product(TIMED, (*SOURCES, "")):
        asked = Asked(result, [group], source)
        value = figure(name).measure(asked)
        if value is not None and answers_of(group, asked.sources) >= FEWEST_ANSWERS:
            yield f"{name}, {source or 'all'}", value


def _exact(scenario: Scenario, name: str, file: Path | None) -> SimulationResult:
    if file is not None and file.exists():
        return read_result(file)
    result, _, _ = play(scenario, name, show_progress=False)
    if file is not None:
        put(result.to_json(), file)
    return result
