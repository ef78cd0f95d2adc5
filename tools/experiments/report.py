"""The report: hand-written paragraphs with tables and facts made of the results between them. Knows a template's marks; measures nothing.

A line `{{ table NAME }}`, `{{ figure NAME }}`, `{{ hours }}` or `{{ setting }}` of the template is replaced. `{{ table NAME: WORDS }}`
takes only the tables whose title begins with the words. Experiments that the template does not name follow at the end. The same results
give the same bytes.
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge.core.counts import counted
from edge.core.errors import ConfigError
from tools.experiments.cells import ChosenRewards
from tools.experiments.chosen import CHOSEN_FILE, read_chosen
from tools.experiments.figures import FIGURES
from tools.experiments.findings import Findings
from tools.experiments.held_out import write_whole
from tools.experiments.published import DATA
from tools.experiments.result import RESULTS, Result
from tools.experiments.show import missing_line, tables_of
from tools.experiments.spec import load_spec, spec_names
from tools.experiments.summary import summary_table

TEMPLATE = Path(__file__).parent / "report.md.in"
REPORT = Path(__file__).parent / "REPORT.md"
README = Path(__file__).resolve().parents[2] / "README.md"
_BEGIN, _END = "<!-- made by python -m tools.experiments report -->", "<!-- end of what is made -->"
_MARK = re.compile(r"^\{\{ *([a-z]+)(?: +([a-z0-9-]+))?(?:: *(.+?))? *\}\}$")


def add_report(commands: Any) -> None:
    """`report`"""
    report = commands.add_parser("report", help="write REPORT.md from the results and the template")
    report.add_argument("--results", type=Path, default=RESULTS, help="folder of finished results")
    report.add_argument("--chosen", type=Path, default=CHOSEN_FILE, help="file of the chosen assistance rewards")
    report.add_argument("--data", type=Path, default=DATA, help="folder of the paper's published numbers (absent: no reference)")
    report.add_argument("--template", type=Path, default=TEMPLATE)
    report.add_argument("--figures", type=Path, default=FIGURES, help="folder of pictures; those that are there are shown")
    report.add_argument("--out", type=Path, default=REPORT)
    report.add_argument(
        "--readme", type=Path, default=README, help="file whose main table is made anew, where it has the marks for it"
    )
    report.set_defaults(play=play_report)


def play_report(arguments: argparse.Namespace) -> int:
    """Write the report and say where it is."""
    chosen = read_chosen(arguments.chosen)
    every = {name: Findings.of(load_spec(name), chosen, arguments.results) for name in spec_names()}
    report = Report(every, chosen, arguments.data, arguments.figures, arguments.out.parent)
    write_whole(arguments.out, report.filled(arguments.template))
    print(f"wrote {arguments.out}", flush=True)
    if arguments.readme.is_file():
        text = arguments.readme.read_text(encoding="utf-8")
        if (changed := with_main_table(text, every["table"])) != text:
            write_whole(arguments.readme, changed)
            print(f"changed {arguments.readme}", flush=True)
    return 0


def with_main_table(text: str, findings: Findings) -> str:
    """A text with the main table between its marks; unchanged where it has none."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        return text
    return f"{before}{_BEGIN}\n\n{summary_table(findings).to_markdown()}\n\n{_END}{after}"


class Report:
    """Fills a template with what was found."""

    def __init__(self, findings: Mapping[str, Findings], chosen: ChosenRewards, data: Path, figures: Path, beside: Path) -> None:
        """`beside`: the folder in which the report will lie, from which its pictures are found."""
        self._findings = findings
        self._chosen = chosen
        self._data = data
        self._figures = figures
        self._beside = beside
        self._named: set[str] = set()

    def filled(self, template: Path) -> str:
        """The template with its marks replaced. Raises ConfigError with the line of a mark that cannot be."""
        lines = template.read_text(encoding="utf-8").splitlines()
        written = [self._line(line, f"{template}:{number}") for number, line in enumerate(lines, 1)]
        return "\n".join([*written, *self._further()]).rstrip() + "\n"

    def _line(self, line: str, where: str) -> str:
        mark = _MARK.match(line.strip())
        if mark is None:
            return line
        kind, name, words = mark.groups()
        if kind in ("hours", "setting"):
            return self._hours() if kind == "hours" else self._setting()
        if name not in self._findings:
            raise ConfigError(f"{where}: no experiment is called {name}", hint=f"there is: {', '.join(self._findings)}")
        if kind == "figure":
            return self._figure(name)
        if kind == "table":
            self._named.add(name)
            return self._table(name, words or "")
        raise ConfigError(f"{where}: no mark is called {kind}", hint="there is: table, figure, hours, setting")

    def _table(self, name: str, words: str) -> str:
        findings = self._findings[name]
        tables = [table for table in tables_of(findings, self._data, self._chosen) if table.title.startswith(words)]
        return "\n\n".join([*(table.to_markdown() for table in tables), f"_{name}: {missing_line(findings)}_"])

    def _figure(self, name: str) -> str:
        spec = self._findings[name].spec
        found = [self._picture(f"{name}-{kind}") for kind in spec.figure]
        shown = [Path(os.path.relpath(path, self._beside)).as_posix() for path in found if path is not None]
        return "\n".join(f"![{spec.about}]({path})" for path in shown)

    def _picture(self, stem: str) -> Path | None:
        """The drawing that is there; of two the one that scales."""
        drawn = (self._figures / f"{stem}.{form}" for form in ("svg", "png"))
        return next((path for path in drawn if path.is_file()), None)

    def _further(self) -> list[str]:
        names = [name for name, findings in self._findings.items() if name not in self._named and findings.spec.table]
        parts = [f"### {name}\n\n{self._findings[name].spec.about}\n\n{self._table(name, '')}\n" for name in names]
        return ["", "## Further experiments", "", *parts] if parts else []

    def _hours(self) -> str:
        """Compute by experiment; a cell that several share counts in the first."""
        counted_before: set[str] = set()
        rows = ["| experiment | cells | steps | hours of one process | processor hours |", "|---|---|---|---|---|"]
        total = [0, 0, 0.0, 0.0]
        for name, findings in self._findings.items():
            own = [result for key, result in findings.results.items() if key not in counted_before]
            counted_before.update(findings.results)
            values = _spent(own)
            total = [whole + part for whole, part in zip(total, values, strict=True)]
            rows.append(_hours_row(name, values))
        note = "What is measured; a cell that several experiments share counts in the first of them."
        return "\n".join([*rows, _hours_row("all", total), "", note])

    def _setting(self) -> str:
        """Machines and commits of the results."""
        results = {key: result for findings in self._findings.values() for key, result in findings.results.items()}
        machines = sorted({_machine(result) for result in results.values()})
        commits = Counter(" to ".join(result.body["commits"]) for result in results.values())
        told = ", ".join(f"{commit} ({counted(count, 'cell')})" for commit, count in sorted(commits.items()))
        if not results:
            return "No cell has been measured yet."
        where = f"measured on {'; '.join(machines)}, one thread each"
        return (
            f"{counted(len(results), 'cell')} {where}, at commit {told}. A + marks a tree with changes that were not committed; a cell "
            "that was interrupted and went on later names both."
        )


def _spent(results: list[Result]) -> list[float]:
    costs = [result.body["cost"] for result in results]
    processor_s = sum(cost["cpu_agent_s"] + cost["cpu_programs_s"] + cost["cpu_coordinator_s"] for cost in costs)
    steps = sum(result.cell.steps for result in results)
    return [len(results), steps, sum(cost["wall_s"] for cost in costs) / 3600, processor_s / 3600]


def _hours_row(name: str, values: list[float]) -> str:
    cells, steps, wall_h, processor_h = values
    return f"| {name} | {cells:.0f} | {steps:.0f} | {wall_h:.1f} | {processor_h:.1f} |"


def _machine(result: Result) -> str:
    machine = result.body["machine"]
    return f"{machine['cpu']}, {counted(machine['cores'], 'core')}, {machine['memory_mib'] / 1024:.0f} GiB"
