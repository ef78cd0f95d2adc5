"""Tables of runs: figures side by side, groups below each other."""

from __future__ import annotations

from collections.abc import Sequence

from tools.simulate.reports.quantities import Scope, figure, written
from tools.simulate.reports.result import GroupResult, SimulationResult

_HEAD = ("answers", "p50", "p95", "rate", "joint accuracy", "spend", "calls", "lost answers")
_GROUPED = (
    "answers", "p50", "p95", "p95 first token", "rate", "training rate", "λ", "joint accuracy", "local accuracy", "learning steps", "calls",
    "spend", "refusals", "lost answers", "online", "energy", "battery empty",
)  # fmt: skip
_ABOUT = ("Devices", "Device", "Link", "Target rate τ", "Target rate τ, learning")
WORDS = {
    "answers": "Answers",
    "p50": "Half answered within",
    "p95": "95 % answered within",
    "p95 first token": "95 % begun within",
    "rate": "Went to the cloud",
    "training rate": "Asked while learning",
    "λ": "λ at the end",
    "joint accuracy": "Right, all answers",
    "local accuracy": "Right, local alone",
    "calls": "Cloud calls",
    "spend": "Spend",
    "refusals": "Refused calls",
    "lost answers": "Lost answers",
    "online": "Devices online",
    "learning steps": "Learning steps",
    "energy": "Energy",
    "battery empty": "Battery empty",
}
"""How figures are called in tables, for who runs a fleet."""


def overview(result: SimulationResult) -> list[tuple[str, str]]:
    """The figures at the head of a page: (words, written)."""
    asked = Scope(result, result.groups)
    return [(WORDS[name], _written(name, asked)) for name in _HEAD]


def group_columns(result: SimulationResult) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """A column for each group, after one for the whole fleet where there are several: heads, and (words, cells) of each figure that any
    has."""
    asked = [Scope(result, result.groups)] if len(result.groups) > 1 else []
    asked += [Scope(result, [group]) for group in result.groups]
    measured = [(name, [figure(name).measure(each) for each in asked]) for name in _GROUPED]
    figures = [
        (WORDS[name], [written(value, figure(name).unit) for value in values])
        for name, values in measured
        if is_shown(name, values)
    ]
    columns = [_identity(result, each.groups) for each in asked]
    about = [(words, [column[place] for column in columns]) for place, words in enumerate(_ABOUT, 1)]
    return [column[0] for column in columns], [row for row in about if any(row[1])] + figures


def _identity(result: SimulationResult, groups: Sequence[GroupResult]) -> list[str]:
    if len(groups) != 1:
        return ["all", f"{result.devices:,}", "", "", "", ""]
    group = groups[0]
    learning = "" if group.training_target_rate is None else f"{group.training_target_rate:.3g}"
    return [group.name, f"{group.devices:,}", group.profile, group.link, f"{group.target_rate:.3g}", learning]


def is_shown(name: str, values: Sequence[float | None]) -> bool:
    """Whether there is anything to tell: a figure that is 0 is known, too, but on mains no battery is ever empty."""
    return any(values) if name == "battery empty" else any(value is not None for value in values)


def reasons(result: SimulationResult) -> list[tuple[str, str, int]]:
    """What was refused and what failed: (where, reason, how often), by name."""
    refused = [(group.name, reason, count) for group in result.groups for reason, count in sorted(group.refused.items()) if count]
    return refused + [("cloud", reason, count) for reason, count in sorted(result.cloud.errors.items()) if count]


def _written(name: str, asked: Scope) -> str:
    return written(figure(name).measure(asked), figure(name).unit)
