"""The harness of every table of measurements: parts measured once each in their own process, medians of rounds, goals, a report.

A part is a command with two paths after its own arguments: a job to read and a result to write, both JSON; ours are `part`. Results are in
a folder, one file per part, so that an interrupted run resumes. A result that names `files` counts as long as they exist.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from edge.cli.exits import ending
from edge.core.errors import UsageError
from edge.core.files import write_atomically
from edge.core.machine import cpu_name, usable_cores
from tools.arguments import positive
from tools.bench.processes import REPOSITORY, OnLine, own, run_child
from tools.markdown import table_lines
from tools.places import check_folder

CACHE = REPOSITORY / "runs" / "bench"
QUIET_LOAD = 0.5
"""A load average of one minute below which nothing else runs here worth speaking of."""
PACKAGES = ("edge-agent", "torch", "llama-cpp-python", "gguf", "peft", "numpy")
Rounds = Sequence[Mapping[str, Any]]
"""The results of one competitor, one a round."""


# -- samples ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """At least one finite sample of one quantity, in the order in which they were taken. Raises ValueError without samples."""

    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError("a spread needs at least one sample")

    @property
    def median(self) -> float:
        """The middle sample, or the mean of the two in the middle."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and third quartile, interpolated between samples."""
        if len(self.samples) == 1:
            return self.samples[0], self.samples[0]
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return first, third

    def range(self, digits: int = 0) -> str:
        """`(1.20-1.30)`: the quartiles."""
        first, third = self.quartiles
        return f"({first:.{digits}f}-{third:.{digits}f})"

    def text(self, unit: str, digits: int = 2) -> str:
        """`1.23 s (1.20-1.30)`: median and quartiles."""
        return f"{self.median:.{digits}f} {unit} {self.range(digits)}"


def spread(samples: Iterable[float]) -> Spread:
    """The spread of some samples. Raises ValueError without any."""
    return Spread(tuple(float(sample) for sample in samples))


# -- rows, goals and the report --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GoalLine:
    """One line of a table. `met` None is a measurement without a goal; `value` is compared with `bound`."""

    what: str
    against: str
    measured: str
    goal: str = ""
    met: bool | None = None
    value: float | None = None
    bound: float | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """Its line in the report."""
        mark = "" if self.met is None else "met" if self.met else "**missed**"
        return self.what, self.against, self.measured, self.goal, mark


@dataclass(slots=True)
class BenchRow:
    """A row of a table: its lines, all its measurements, and the profile of missed goals."""

    name: str
    title: str
    data: Mapping[str, Any] = field(default_factory=dict)
    profile: Sequence[str] = ()
    notes: Sequence[str] = ()
    verdicts: list[GoalLine] = field(default_factory=list)

    def at_least(self, what: str, against: str, measured: str, value: float, bound: float, unit: str = "x") -> None:
        """A goal that large values meet."""
        self.verdicts.append(GoalLine(what, against, measured, f"≥ {bound:.4g}{unit}", value >= bound, value, bound))

    def at_most(self, what: str, against: str, measured: str, value: float, bound: float, unit: str = "x") -> None:
        """A goal that small values meet."""
        self.verdicts.append(GoalLine(what, against, measured, f"≤ {bound:.4g}{unit}", value <= bound, value, bound))

    def without_goal(self, what: str, against: str, measured: str) -> None:
        """A measurement without a goal."""
        self.verdicts.append(GoalLine(what, against, measured))

    @property
    def missed(self) -> bool:
        """Whether any goal is missed."""
        return any(verdict.met is False for verdict in self.verdicts)


def markdown(rows: Sequence[BenchRow], machine: Mapping[str, Any], about: str) -> str:
    """The whole report: machine, table, profiles of missed goals, notes."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items() if version)
    lines = [
        f"{about} {machine['cores']} cores ({machine['cpu']}), {machine['memory_mib'] / 1024:.0f} GiB, "
        f"{machine['system']}, Python {machine['python']}, {packages}.",
        "",
        *table_lines(("what", "against", "measured", "goal", ""), (verdict.cells for row in rows for verdict in row.verdicts)),
    ]
    for row in rows:
        if row.missed and row.profile:
            lines += ["", f"**Missed: {row.title}.** Where it goes:", "", *(f"- {entry}" for entry in row.profile)]
        if row.notes:
            lines += ["", f"*{row.title}*: " + "; ".join(row.notes) + "."]
    return "\n".join(lines) + "\n"


# -- measured parts --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    """One measured process: `job` is plain JSON, `environment` adds to our own. With `scratch` its job names a folder that it may fill."""

    command: tuple[str, ...]
    job: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    scratch: bool = False
    timeout_s: float = 7200.0

    @property
    def digest(self) -> str:
        """What must be equal for a stored result to count."""
        content = {"command": self.command[1:], "job": self.job, "environment": dict(self.environment)}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def own_part(
    module: str, job: Mapping[str, Any], environment: Mapping[str, str] | None = None, *, scratch: bool = False
) -> MeasuredPart:
    """A part that is `measure` of a module under tools.bench."""
    return MeasuredPart(own("part", module), job, environment or {}, scratch)


RunPart = Callable[[MeasuredPart, Path, Path, OnLine], float]
"""Carries a part out: (part, job file, result file, on_line) -> seconds. The log is next to the result."""


class Results:
    """A folder of results."""

    def __init__(self, folder: Path, *, run: RunPart | None = None) -> None:
        self._folder = folder
        self._run = run or run_part

    def measure(self, key: str, part: MeasuredPart) -> dict[str, Any]:
        """The part's result: the stored one of an equal part, else measured now. `key`: its name here (`small/trl-fp32/1`), and its file's.

        Raises ProcessFailed.
        """
        if part.scratch:
            part = replace(part, job={**part.job, "scratch": str(self._folder / "scratch" / key.replace("/", "-"))})
        file = self._folder / "parts" / f"{key}.json"
        stored = self._stored(part, file)
        if stored is not None:
            note(f"  {key}: read back")
        else:
            stored = self._measured(key, part, file)
        return {**stored["result"], "taken": {name: stored[name] for name in ("key", "at", "load_before", "seconds")}}

    def alternating(self, row: str, competitors: Mapping[str, MeasuredPart], rounds: int) -> dict[str, list[dict[str, Any]]]:
        """Every competitor once a round (A B A B), so that a slow minute of the machine hits all of them."""
        measured: dict[str, list[dict[str, Any]]] = {name: [] for name in competitors}
        for number in range(1, rounds + 1):
            for name, part in competitors.items():
                measured[name].append(self.measure(f"{row}/{name}/{number}", part))
        return measured

    def _stored(self, part: MeasuredPart, file: Path) -> dict[str, Any] | None:
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(stored, dict) or stored.get("digest") != part.digest:
            return None
        return stored if all(Path(made).exists() for made in stored["result"].get("files", ())) else None

    def _measured(self, key: str, part: MeasuredPart, file: Path) -> dict[str, Any]:
        job, raw = file.with_suffix(".job"), file.with_suffix(".raw")
        file.parent.mkdir(parents=True, exist_ok=True)
        raw.unlink(missing_ok=True)
        job.write_text(json.dumps(part.job, indent=1), encoding="utf-8")
        load, at = os.getloadavg()[0], time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        seconds = self._run(part, job, raw, minutely(key))
        result = json.loads(raw.read_text(encoding="utf-8"))
        stored = {"key": key, "digest": part.digest, "at": at, "load_before": load, "seconds": seconds, "result": result}
        write_json(file, stored)
        raw.unlink()
        note(f"  {key}: {seconds:.0f} s, load before {load:.1f}")
        return stored


def run_part(part: MeasuredPart, job: Path, result: Path, on_line: OnLine) -> float:
    """Start the part's process in the repository and wait for it. Raises ProcessFailed."""
    environment = {**os.environ, **part.environment, "PYTHONUNBUFFERED": "1"}
    command = (*part.command, str(job), str(result))
    log = result.with_suffix(".log")
    return run_child(command, log=log, environment=environment, folder=REPOSITORY, on_line=on_line, timeout_s=part.timeout_s)


def write_json(file: Path, value: Any) -> None:
    """Replace a file in one step."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def note(text: str) -> None:
    """A progress line."""
    print(text, file=sys.stderr, flush=True)


def minutely(key: str) -> OnLine:
    """Notes once a minute how a process goes."""
    noted = 0.0

    def on_line(seconds: float, line: str) -> None:
        nonlocal noted
        if seconds - noted >= 60.0:
            noted = seconds
            note(f"  {key} ... {seconds:.0f} s  {line[:80]}")

    return on_line


# -- what it was measured on -----------------------------------------------------------------------------------------------------------


def describe_machine(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Processor, usable cores, memory in MiB, system, Python and the versions of the packages that matter."""
    import psutil

    return {
        "cpu": cpu_name() or platform.machine(),
        "cores": usable_cores(),
        "physical_cores": psutil.cpu_count(logical=False),
        "memory_mib": psutil.virtual_memory().total >> 20,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in packages},
        "commit": commit(),
    }


def version_of(package: str) -> str:
    """The installed version, "" for a package that is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def commit(*code: str) -> str:
    """The commit of the checkout, with a + where files (of `code`, where it is given) differ from it; "" outside a checkout."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *code)
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


# -- the command of a table ------------------------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser, rows: Sequence[str], also: str = "") -> None:
    """Options of every table."""
    parser.add_argument("--rows", default=",".join(rows), help=f"comma separated{also} (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, help="rounds in which competitors alternate (default: of the size)")
    parser.add_argument("--out", type=Path, help="folder for the results (default: runs/bench/TABLE-SIZE)")


def rows_of(text: str, known: Sequence[str]) -> list[str]:
    """The rows named. Raises UsageError for an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UsageError(f"unknown row {', '.join(unknown) or repr(text)}", hint=f"there is: {', '.join(known)}")
    return names


class Run:
    """One run of a table: its folder and results. Warns where the machine does other work. Raises UsageError for a wrong row or folder."""

    def __init__(self, given: argparse.Namespace, table: str, size: str, rows: Sequence[str]) -> None:
        self.names = rows_of(given.rows, rows)
        self.out: Path = (given.out or CACHE / f"{table}-{size}").resolve()
        check_folder(self.out, "--out")
        self.results = Results(self.out)
        self._file = self.out / table
        self._size = size
        self._load = os.getloadavg()[0]
        if self._load > QUIET_LOAD:
            print(f"the machine is busy (load {self._load:.1f}): compare within a row only", file=sys.stderr)

    def report(self, bench: object, machine: Mapping[str, Any], about: str = "", **facts: Any) -> int:
        """Measure the rows, each a method of `bench`, one after the other and print their table; 1 when a goal is missed. Raises EdgeError.

        After each row all results so far are written to the folder: data as JSON, the report as markdown.
        """
        doubt = (
            "" if self._load <= QUIET_LOAD else f" The machine was busy (load {self._load:.1f}), so these figures mean little."
        )
        facts |= {"size": self._size, "load_before": self._load, "machine": machine}
        when = time.strftime("%d %B %Y", time.gmtime())
        above = f"Measured side by side in one run, {when}.{doubt}{about}"
        done: list[BenchRow] = []
        for name in self.names:
            note(f"== {name}")
            done.append(getattr(bench, name)())
            write_json(self._file.with_suffix(".json"), {**facts, "rows": [asdict(one) for one in done]})
            self._file.with_suffix(".md").write_text(markdown(done, machine, above), encoding="utf-8")
        print(markdown(done, machine, above))
        print(f"every sample: {self._file.with_suffix('.json')}", file=sys.stderr)
        return int(any(one.missed for one in done))


def command(measure: Callable[[], int]) -> int:
    """A command of the bench, which ends as `edge-agent` does; of a table 1 is also a missed goal. SIGTERM runs every `finally`."""

    def leave(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    return ending(measure)
