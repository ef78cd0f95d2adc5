"""The report: hand-written markdown with tables, figures and compute inserted between marks.

The text between `<!-- insert table summary -->` and `<!-- end -->`, each on its own line, is generated from the results; everything else
stays unchanged. So the report is its own template. The same results give the same bytes.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from edge.core.errors import ConfigError
from edge.core.formatting import counted
from tools.experiments.card import CARD, card_table
from tools.experiments.cells import ChosenRewards
from tools.experiments.contestants import read_published, tables_of_families
from tools.experiments.findings import ExperimentFindings
from tools.experiments.layouts import LAYOUTS, assist_tables
from tools.experiments.main_tables import hand_off_table, main_tables
from tools.experiments.result import Result
from tools.experiments.tables import TextTable

REPORT = Path(__file__).resolve().parent / "REPORT.md"
RESULTS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "results.md"
_INSERTED = re.compile(r"^<!-- insert ([^\n]+) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


def tables_of(findings: ExperimentFindings, data: Path, chosen: ChosenRewards) -> dict[str, list[TextTable]]:
    """The tables of an experiment by the names that the report has for them: its own name, but for main experiments, which have many; those
    of `table` are named alone."""
    if findings.spec.table == "paper":
        made = main_tables(findings, {name: read_published(data, name) for name in tables_of_families(findings.spec)})
        return made if findings.spec.name == "table" else {f"{findings.spec.name} {name}": of for name, of in made.items()}
    if findings.spec.table == "hand-off":
        return {findings.spec.name: [hand_off_table(findings)]}
    if findings.spec.table == "assist-rewards":
        return {findings.spec.name: assist_tables(findings, chosen)}
    return {findings.spec.name: LAYOUTS[findings.spec.table](findings)}


def missing_line(findings: ExperimentFindings) -> str:
    """How much of an experiment is there."""
    cells, missing = len(findings.grid.cells), findings.missing()
    waits = f"; {counted(len(findings.grid.waits_for), 'assistance reward')} not chosen yet" if findings.grid.waits_for else ""
    return f"{cells - missing} of {counted(cells, 'cell')} measured{waits}."


def with_insertions(text: str, insertions: Mapping[str, str], where: Path) -> str:
    """The text with the parts between its marks regenerated. Raises ConfigError with the line of an unknown mark."""
    begun = {number: line for number, line in enumerate(text.splitlines(), 1) if line.startswith("<!-- insert ")}
    closed = {text.count("\n", 0, found.start()) + 1: found[1] for found in _INSERTED.finditer(text)}
    for number in begun:
        if number not in closed:
            raise ConfigError(
                f"{where}:{number}: a mark without an end, or within another", hint="write <!-- end --> below each mark"
            )
        if closed[number] not in insertions:
            known = ", ".join(insertions)
            raise ConfigError(f"{where}:{number}: nothing is called {closed[number]}", hint=f"there is: {known}")
    return _INSERTED.sub(lambda found: f"<!-- insert {found[1]} -->\n\n{insertions[found[1]].strip()}\n\n<!-- end -->", text)


def insertions(
    every: Mapping[str, ExperimentFindings],
    chosen: ChosenRewards,
    data: Path,
    drawn: Mapping[str, Sequence[Path]],
    report_folder: Path,
    text: str,
) -> dict[str, str]:
    """All possible insertions by the words of their mark.

    `drawn`: the pictures of each experiment. `report_folder`: what their links are relative to. Experiments without a mark
    in `text` go together into `further experiments`.
    """
    made = {"setting": _setting(every), "compute": _compute(every)}
    if CARD.is_file():
        made["card"] = card_table(json.loads(CARD.read_text(encoding="utf-8"))).to_markdown()
    further = []
    for name, findings in every.items():
        tables = {
            f"table {table}": "\n\n".join([*(one.to_markdown() for one in of), f"_{name}: {missing_line(findings)}_"])
            for table, of in tables_of(findings, data, chosen).items()
        }
        made |= {**tables, f"figure {name}": _pictures(findings, drawn[name], report_folder)}
        if findings.spec.table and not any(f"<!-- insert {key} -->" in text for key in tables):
            further += [f"### {name}", findings.spec.about, *tables.values()]
    return {**made, "further experiments": "\n\n".join(further)}


def _pictures(findings: ExperimentFindings, drawn: Sequence[Path], report_folder: Path) -> str:
    """An experiment's figures as markdown."""
    return "\n".join(f"![{findings.spec.about}]({Path(os.path.relpath(path, report_folder)).as_posix()})" for path in drawn)


def _compute(every: Mapping[str, ExperimentFindings]) -> str:
    """Hours by experiment; a cell that several share counts in the first."""
    counted_before: set[str] = set()
    rows = ["| experiment | cells | steps | hours of one process | processor hours |", "|---|---|---|---|---|"]
    total = [0.0] * 4
    for name, findings in every.items():
        spent = _spent([result for key, result in findings.results.items() if key not in counted_before])
        counted_before.update(findings.results)
        total = [whole + part for whole, part in zip(total, spent, strict=True)]
        rows.append(_compute_row(name, spent))
    note = "What is measured; a cell that several experiments share counts in the first of them."
    return "\n".join([*rows, _compute_row("all", total), "", note])


def _spent(results: list[Result]) -> list[float]:
    """Cells, steps, hours and processor hours."""
    costs = [result.body["cost"] for result in results]
    processor_s = sum(cost["cpu_agent_s"] + cost["cpu_programs_s"] + cost["cpu_coordinator_s"] for cost in costs)
    steps = sum(result.cell.steps for result in results)
    return [len(results), steps, sum(cost["wall_s"] for cost in costs) / 3600, processor_s / 3600]


def _compute_row(name: str, spent: list[float]) -> str:
    cells, steps, wall_h, processor_h = spent
    return f"| {name} | {cells:.0f} | {steps:.0f} | {wall_h:.1f} | {processor_h:.1f} |"


def _setting(every: Mapping[str, ExperimentFindings]) -> str:
    """Machines and commits of the results."""
    results = {key: result for findings in every.values() for key, result in findings.results.items()}
    if not results:
        return "No cell has been measured yet."
    machines = sorted({_machine(result) for result in results.values()})
    commits = Counter(" to ".join(result.body["commits"]) for result in results.values())
    at = ", ".join(f"{commit} ({counted(count, 'cell')})" for commit, count in sorted(commits.items()))
    uncommitted = " A + marks a tree with changes that were not committed." if "+" in at else ""
    return (
        f"{counted(len(results), 'cell')} measured on {'; '.join(machines)}, one thread each, at commit {at}.{uncommitted} "
        "A cell that was interrupted and went on later names both commits."
    )


def _machine(result: Result) -> str:
    machine = result.body["machine"]
    return f"{machine['cpu']}, {counted(machine['cores'], 'core')}, {machine['memory_mib'] / 1024:.0f} GiB"
