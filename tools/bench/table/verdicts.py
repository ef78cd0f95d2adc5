"""What the table says: measured values beside their goals, and where time or memory goes when a goal is missed. Knows no processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the table. `met` None is a measurement without a goal; `value` is what is held against `bound`."""

    what: str
    against: str
    measured: str
    goal: str = ""
    met: bool | None = None
    value: float | None = None
    bound: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: its lines, everything that was measured for it, and the profile of what was missed."""

    name: str
    title: str
    verdicts: tuple[Verdict, ...]
    data: Mapping[str, Any]
    profile: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def missed(self) -> bool:
        """Whether any goal is missed."""
        return any(verdict.met is False for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        return asdict(self)


@dataclass(slots=True)
class Lines:
    """Collects the lines of a row."""

    verdicts: list[Verdict] = field(default_factory=list)

    def at_least(self, what: str, against: str, measured: str, value: float, bound: float, unit: str = "x") -> None:
        """A goal that large values meet."""
        self._add(what, against, measured, f"≥ {bound:g}{unit}", value >= bound, value, bound)

    def at_most(self, what: str, against: str, measured: str, value: float, bound: float, unit: str = "x") -> None:
        """A goal that small values meet."""
        self._add(what, against, measured, f"≤ {bound:g}{unit}", value <= bound, value, bound)

    def told(self, what: str, against: str, measured: str) -> None:
        """A measurement without a goal."""
        self.verdicts.append(Verdict(what, against, measured))

    def _add(self, what: str, against: str, measured: str, goal: str, met: bool, value: float, bound: float) -> None:
        self.verdicts.append(Verdict(what, against, measured, goal, met, value, bound))


def markdown(rows: Sequence[Row], machine: Mapping[str, Any], about: str) -> str:
    """The whole report: machine, table, profiles of what was missed, notes."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items() if version)
    lines = [
        f"{about} {machine['cores']} cores ({machine['cpu']}), {machine['memory_mib'] / 1024:.0f} GiB, "
        f"{machine['system']}, Python {machine['python']}, {packages}.",
        "",
        "| what | against | measured | goal | |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        lines += [_line(verdict) for verdict in row.verdicts]
    for row in rows:
        lines += _section(row)
    return "\n".join(lines) + "\n"


def _line(verdict: Verdict) -> str:
    mark = "" if verdict.met is None else "met" if verdict.met else "**missed**"
    cells = (verdict.what, verdict.against, verdict.measured, verdict.goal, mark)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _section(row: Row) -> list[str]:
    lines: list[str] = []
    if row.missed:
        lines += ["", f"**Missed: {row.title}.** Where it goes:", "", *(f"- {entry}" for entry in row.profile)]
    if row.notes:
        lines += ["", f"*{row.title}*: " + "; ".join(row.notes) + "."]
    return lines
