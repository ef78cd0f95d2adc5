"""The report: hand-written paragraphs with tables and facts made of the results between them. Knows a template's marks; measures nothing.

A line `{{ table NAME }}`, `{{ figure NAME }}`, `{{ hours }}` or `{{ setting }}` of the template is replaced. `{{ table NAME: WORDS }}`
takes only the tables whose title begins with the words. `[[...]]` within a line is a number of the main experiment (`sentences.py`).
Experiments that the template does not name follow at the end. The same results give the same bytes.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from edge.core.errors import ConfigError, UsageError
from edge.core.formatting import counted
from tools.experiments.cells import ChosenRewards
from tools.experiments.chosen import CHOSEN_FILE, read_chosen
from tools.experiments.figures import FIGURES
from tools.experiments.findings import Findings
from tools.experiments.held_out import write_whole
from tools.experiments.places import require_folder, require_writable, told_with
from tools.experiments.published import DATA
from tools.experiments.result import RESULTS, Result
from tools.experiments.sentences import with_numbers
from tools.experiments.show import missing_line, tables_of, tell_strays
from tools.experiments.spec import load_spec, spec_names
from tools.experiments.summary import summary_table
from tools.experiments.tables import Table

TEMPLATE = Path(__file__).parent / "report.md.in"
REPORT = Path(__file__).parent / "REPORT.md"
RESULTS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "results.md"
_BEGIN, _END = "<!-- made by python -m tools.experiments report -->", "<!-- end of what is made -->"
_MARK = re.compile(r"^\{\{ *([a-z]+)(?: +([a-z0-9-]+))?(?:: *(.+?))? *\}\}$")
_MAIN = "table"
"""The experiment whose numbers sentences quote."""
_OF_EXPERIMENTS, _OF_ALL = ("table", "figure"), ("hours", "setting")


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
        "--readme",
        type=Path,
        help="file whose main table is made anew (usual: docs/results.md, where results, choices and --out are the usual ones)",
    )
    report.set_defaults(play=play_report)


def play_report(arguments: argparse.Namespace) -> int:
    """Write the report and say where it is."""
    require_folder(arguments.results, "--results")
    readme = _readme_of(arguments)
    read_template(arguments.template, spec_names())
    if arguments.out.exists() and not arguments.out.is_file():
        kind = "a folder" if arguments.out.is_dir() else "no regular file"
        raise UsageError(f"--out {arguments.out}: is {kind}", hint="give the report's file, such as REPORT.md")
    require_writable(arguments.out.parent, "--out")
    chosen = read_chosen(arguments.chosen)
    _say(f"reading the results of {counted(len(spec_names()), 'experiment')} in {arguments.results}")
    every = {name: Findings.of(load_spec(name), chosen, arguments.results) for name in spec_names()}
    tell_strays([findings.grid for findings in every.values()], arguments.results)
    report = Report(every, chosen, arguments.data, arguments.figures, arguments.out.parent, _say)
    _write(arguments.out, report.filled(arguments.template), "--out")
    print(f"wrote {arguments.out}", flush=True)
    if readme is not None:
        _say(f"making the main table of {readme}")
        text = readme.read_text(encoding="utf-8")
        if (changed := with_main_table(text, every[_MAIN])) != text:
            _write(readme, changed, "--readme")
            print(f"changed {readme}", flush=True)
    return 0


def _readme_of(arguments: argparse.Namespace) -> Path | None:
    """The file with the main table: the one that was given, else the project's beside the project's own report.

    Raises UsageError for a given one without a place for the table.
    """
    given: Path | None = arguments.readme
    if given is None:
        given_places, usual_places = (arguments.results, arguments.chosen, arguments.out), (RESULTS, CHOSEN_FILE, REPORT)
        usual = [place.resolve() for place in given_places] == [place.resolve() for place in usual_places]
        return RESULTS_PAGE if usual and RESULTS_PAGE.is_file() else None
    try:
        text = given.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--readme {given}: cannot be read ({_why(error)})", hint="give a text file") from error
    if _BEGIN not in text or _END not in text:
        raise UsageError(
            f"--readme {given}: has no place for the main table", hint=f"write the lines {_BEGIN} and {_END} into it"
        )
    return given


def _write(path: Path, text: str, option: str) -> None:
    with told_with(option, path):
        write_whole(path, text)


def _why(error: OSError | UnicodeDecodeError) -> str:
    return str(error.strerror) if isinstance(error, OSError) else "not UTF-8 text"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def with_main_table(text: str, findings: Findings) -> str:
    """A text with the main table between its marks; unchanged where it has none."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        return text
    return f"{before}{_BEGIN}\n\n{summary_table(findings).to_markdown()}\n\n{_END}{after}"


class Mark(NamedTuple):
    """A line of a template that is replaced, and where it stands."""

    kind: str
    name: str
    words: str
    where: str


def read_template(template: Path, names: Collection[str]) -> list[str | Mark]:
    """The lines of a template; `names`: the experiments that there are.

    Raises UsageError where there is none, ConfigError with the line of a mark that means nothing.
    """
    try:
        lines = template.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--template {template}: cannot be read ({_why(error)})", hint="give a text file with marks") from error
    return [_mark_or_line(line, f"{template}:{number}", names) for number, line in enumerate(lines, 1)]


def _mark_or_line(line: str, where: str, names: Collection[str]) -> str | Mark:
    found = _MARK.match(line.strip())
    if found is None:
        if "{{" in line:
            raise ConfigError(f"{where}: {{{{ begins no mark here", hint="a mark is a line of its own, such as {{ table NAME }}")
        return line
    kind, name, words = (part or "" for part in found.groups())
    if kind not in (*_OF_EXPERIMENTS, *_OF_ALL):
        raise ConfigError(f"{where}: no mark is called {kind}", hint=f"there is: {', '.join((*_OF_EXPERIMENTS, *_OF_ALL))}")
    if kind in _OF_EXPERIMENTS and name not in names:
        told = f"no experiment is called {name}" if name else f"{kind} of which experiment?"
        raise ConfigError(f"{where}: {told}", hint=f"there is: {', '.join(names)}")
    if words and kind != "table":
        raise ConfigError(f"{where}: words after a name choose tables, not a {kind}", hint=f"write {{{{ {kind} {name} }}}}")
    return Mark(kind, name, words, where)


class Report:
    """Fills a template with what was found."""

    def __init__(
        self,
        findings: Mapping[str, Findings],
        chosen: ChosenRewards,
        data: Path,
        figures: Path,
        beside: Path,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`beside`: the folder in which the report will lie, from which its pictures are found. `tell` is told what is being made."""
        self._findings = findings
        self._chosen = chosen
        self._data = data
        self._figures = figures
        self._beside = beside
        self._tell = tell
        self._made: dict[str, list[Table]] = {}

    def filled(self, template: Path) -> str:
        """The template with its marks replaced. Raises UsageError, ConfigError with the line of a mark that cannot be."""
        lines = read_template(template, self._findings)
        written = [
            self._sentence(line, f"{template}:{number}") if isinstance(line, str) else self._of_mark(line)
            for number, line in enumerate(lines, 1)
        ]
        named = {line.name for line in lines if isinstance(line, Mark) and line.kind == "table"}
        return "\n".join([*written, *self._further(named)]).rstrip() + "\n"

    def _sentence(self, line: str, where: str) -> str:
        """A line with the main experiment's numbers in it."""
        return with_numbers(line, self._findings[_MAIN], where) if "[[" in line else line

    def _of_mark(self, mark: Mark) -> str:
        match mark.kind:
            case "hours":
                return self._hours()
            case "setting":
                return self._setting()
            case "figure":
                return self._figure(mark.name)
        if mark.words and not any(table.title.startswith(mark.words) for table in self._tables(mark.name)):
            titles = ", ".join(table.title for table in self._tables(mark.name))
            raise ConfigError(f"{mark.where}: no table of {mark.name} begins with {mark.words}", hint=f"there is: {titles}")
        return self._table(mark.name, mark.words)

    def _tables(self, name: str) -> list[Table]:
        """All tables of an experiment, made once."""
        if name not in self._made:
            self._tell(f"making the tables of {name}")
            self._made[name] = tables_of(self._findings[name], self._data, self._chosen)
        return self._made[name]

    def _table(self, name: str, words: str) -> str:
        tables = [table.to_markdown() for table in self._tables(name) if table.title.startswith(words)]
        return "\n\n".join([*tables, f"_{name}: {missing_line(self._findings[name])}_"])

    def _figure(self, name: str) -> str:
        spec = self._findings[name].spec
        found = [self._picture(f"{name}-{kind}") for kind in spec.figure]
        shown = [Path(os.path.relpath(path, self._beside)).as_posix() for path in found if path is not None]
        return "\n".join(f"![{spec.about}]({path})" for path in shown)

    def _picture(self, stem: str) -> Path | None:
        """The drawing that is there; of two the one that scales."""
        drawn = (self._figures / f"{stem}.{form}" for form in ("svg", "png"))
        return next((path for path in drawn if path.is_file()), None)

    def _further(self, named: Collection[str]) -> list[str]:
        names = [name for name, findings in self._findings.items() if name not in named and findings.spec.table]
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
        uncommitted = "A + marks a tree with changes that were not committed; a" if "+" in told else "A"
        return (
            f"{counted(len(results), 'cell')} {where}, at commit {told}. {uncommitted} cell that was interrupted and went on later names "
            "both commits."
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
