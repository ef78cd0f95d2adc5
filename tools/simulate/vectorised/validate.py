"""The vectorised fleet held against the exact simulation, figure by figure. Knows what is compared and how near is near enough; knows
nothing of how either plays.

Both draw their own chance, so that equal laws still give figures that differ: the spread of the vectorised figures between seeds says by
how much. The vectorised figure is the mean over the seeds.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edge.core.errors import UsageError
from tools.simulate.fleet.scenario import Scenario, load_scenario
from tools.simulate.reports.places import check_files, put
from tools.simulate.reports.quantities import weighted
from tools.simulate.reports.result import GroupResult, SimulationResult, all_sources
from tools.simulate.vectorised.run import run_vectorised

NEAR = 0.03
CHANCE = 3.0
"""Standard deviations that chance alone is granted."""
WIDTH = 110
FEWEST_ANSWERS = 1000
"""Quantiles of fewer answers are not told: their own chance is beyond what is looked for."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one group: by the exact simulation, by the vectorised one, and the standard deviation of the latter between seeds.
    `judged`: whether it is one of those that have to be near."""

    group: str
    figure: str
    exact: float
    vectorised: float
    spread: float
    judged: bool

    @property
    def off_by(self) -> float:
        """Relative to the exact figure."""
        if self.exact == self.vectorised:
            return 0.0
        return self.vectorised / self.exact - 1.0 if self.exact else float("inf")

    @property
    def near(self) -> bool:
        """Within 3 %."""
        return abs(self.off_by) <= NEAR

    @property
    def by_chance(self) -> bool:
        """No farther than another seed of the exact simulation might be."""
        return abs(self.exact - self.vectorised) <= CHANCE * self.spread

    @property
    def verdict(self) -> str:
        """In a word."""
        return "yes" if self.near else "by chance" if self.by_chance else "no"


def add_validate(commands: Any) -> None:
    """The subcommand, for argparse's subparsers."""
    command = commands.add_parser("validate-fleet", help="the vectorised fleet against the exact simulation, figure by figure")
    command.add_argument("scenario", type=Path, metavar="SCENARIO.yaml", help="see tools/simulate/README.md")
    command.add_argument("--devices", type=int, default=1000, help="devices in all, shared out as in the scenario (1000)")
    command.add_argument("--seeds", type=int, default=8, help="vectorised runs, whose mean counts (8)")
    command.add_argument("--exact", type=Path, metavar="FILE", help="the exact run's JSON: read where it is there, else written")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="sets", help="a value that wins over the file's"
    )
    command.set_defaults(play=validate)


def validate(chosen: argparse.Namespace) -> int:
    """Play both and tell; 0 when all figures are near, or as near as chance lets them be. Raises EdgeError for what cannot be played."""
    if chosen.exact is not None and not chosen.exact.is_file():
        check_files(chosen.exact)
    scenario = resized(load_scenario(chosen.scenario, chosen.sets), chosen.devices)
    exact = _exact(scenario, chosen.scenario.stem, chosen.exact)
    fleets = [run_vectorised(scenario, scenario.seed + place, chosen.scenario.stem) for place in range(chosen.seeds)]
    rows = compared(exact, fleets)
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(_table(rows))
    judged = [row for row in rows if row.judged]
    counts = Counter(row.verdict for row in judged)
    print(
        f"{counts['yes']} of {len(judged)} figures are within {NEAR:.0%} of the exact simulation with {scenario.devices} devices,"
    )
    print(f"{counts['by chance']} differ by what chance explains ({CHANCE:g} standard deviations), {counts['no']} by more")
    return 1 if counts["no"] else 0


def resized(scenario: Scenario, devices: int) -> Scenario:
    """The scenario with so many devices in all, and slots in the same proportion. Raises UsageError for fewer than its groups."""
    if devices < len(scenario.groups):
        raise UsageError(f"{len(scenario.groups)} groups need at least as many devices, not {devices}")
    share = devices / scenario.devices
    groups = [group.model_copy(update={"devices": max(1, round(group.devices * share))}) for group in scenario.groups]
    return scenario.model_copy(update={"groups": tuple(groups)})


def compared(exact: SimulationResult, fleets: Sequence[SimulationResult]) -> list[Compared]:
    """Every figure that both have."""
    rows = []
    for place, group in enumerate(exact.groups):
        others = [dict(figures(fleet.groups[place])) for fleet in fleets]
        for figure, value in figures(group):
            values = [each[figure] for each in others if figure in each]
            if values:
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                rows.append(Compared(group.name, figure, value, statistics.fmean(values), spread, _is_judged(figure)))
    return rows


def figures(group: GroupResult) -> Iterator[tuple[str, float]]:
    """The figures of a group by name; those that there are."""
    for name, figure in _FIGURES.items():
        value = figure(group)
        if value is not None:
            yield name, float(value)
    for kind, histograms in (("first letter", group.latency_first), ("latency", group.latency_total)):
        for source, histogram in (*histograms.items(), ("all", all_sources(histograms))):
            for share in (0.5, 0.95, 0.99):
                value = histogram.quantile(share)
                if value is not None and histogram.count >= FEWEST_ANSWERS:
                    yield f"{kind} p{100 * share:g} {source}", value


_FIGURES: dict[str, Callable[[GroupResult], float | None]] = {
    "answers": lambda group: sum(group.answers.values()),
    "assist rate": lambda group: group.assist_rate,
    "training assist rate": lambda group: group.training_assist_rate,
    "λ": lambda group: group.dual,
    "accuracy": lambda group: group.accuracy,
    "local accuracy": lambda group: group.local_accuracy,
    "steps": lambda group: group.steps,
    "calls": lambda group: group.calls,
    "spend uUSD": lambda group: group.spend_uusd,
    "online": lambda group: weighted([(share, 1.0) for share in group.series.online_share]),
    "energy Wh": lambda group: group.energy_wh,
    "battery empty s": lambda group: group.battery_empty_s or None,
}


def _is_judged(figure: str) -> bool:
    """Rate, λ, spend and latency quantiles."""
    return figure in ("assist rate", "training assist rate", "λ", "spend uUSD") or figure.startswith(("first letter", "latency"))


def _exact(scenario: Scenario, name: str, file: Path | None) -> SimulationResult:
    if file is not None and file.exists():
        return SimulationResult.from_json(file.read_bytes())
    from tools.simulate.fleet.run import play

    result, _, _ = play(scenario, name, told=False)
    if file is not None:
        put(result.to_json(), file)
    return result


def _table(rows: Sequence[Compared]) -> Table:
    table = Table("group", "figure", "exact", "vectorised", "differs by", "spread of seeds", f"within {NEAR:.0%}")
    for row in rows:
        spread = f"{row.spread / row.vectorised:.1%}" if row.vectorised else ""
        verdict = row.verdict if row.judged else f"({row.verdict})"
        table.add_row(row.group, row.figure, f"{row.exact:.5g}", f"{row.vectorised:.5g}", f"{row.off_by:+.2%}", spread, verdict)
    return table
