"""Tables of runs: figures side by side, groups below each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tools.simulate.reports.quantities import Asked, Unit, figure, written
from tools.simulate.reports.result import GroupResult, SimulationResult

_HEAD = ("answers", "p50", "p95", "rate", "joint accuracy", "spend", "calls", "lost answers")
_GROUPED = (
    "answers", "p50", "p95", "p95 first token", "rate", "training rate", "λ", "joint accuracy", "local accuracy", "learning steps", "calls",
    "spend", "refusals", "lost answers", "online", "energy", "battery empty",
)  # fmt: skip
_COMPARED_BY_GROUP = ("p50", "p95", "rate", "λ", "joint accuracy", "spend", "energy")
_ABOUT = ("Devices", "Device", "Link", "Target rate τ", "Target rate τ, learning")
WORDS = {
    "answers": "Answers",
    "p50": "Half answered within",
    "p95": "95 % answered within",
    "p99": "99 % answered within",
    "p50 first token": "Half begun within",
    "p95 first token": "95 % begun within",
    "rate": "Went to the cloud",
    "training rate": "Asked while learning",
    "λ": "λ at the end",
    "joint accuracy": "Right, all answers",
    "local accuracy": "Right, local alone",
    "calls": "Cloud calls",
    "spend": "Spend",
    "spend per answer": "Spend per answer",
    "fairness": "Fairness (Jain)",
    "queue": "Longest queue",
    "in flight": "Most calls under way",
    "refusals": "Refused calls",
    "lost answers": "Lost answers",
    "cloud errors": "Errors of the cloud",
    "ledger violations": "Ledger violations",
    "coordinator up": "Coordinator up",
    "online": "Devices online",
    "learning steps": "Learning steps",
    "energy": "Energy",
    "battery empty": "Battery empty",
}
"""How figures are called in tables, for who runs a fleet; all of them are compared, in this order."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure of two runs: as written, and the second less the first ("" where one of them is not known)."""

    name: str
    first: str
    second: str
    difference: str


def overview(result: SimulationResult) -> list[tuple[str, str]]:
    """The figures at the head of a page: (words, written)."""
    asked = Asked(result, result.groups)
    return [(WORDS[name], _written(name, asked)) for name in _HEAD]


def group_columns(result: SimulationResult) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """A column for each group, after one for the whole fleet where there are several: heads, and (words, cells) of each figure that any
    has."""
    asked = [Asked(result, result.groups)] if len(result.groups) > 1 else []
    asked += [Asked(result, [group]) for group in result.groups]
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


def differences(first: SimulationResult, second: SimulationResult) -> list[Difference]:
    """The fleet's figures of two runs, then those of the groups that both have."""
    rows = [_difference(name, "", Asked(first, first.groups), Asked(second, second.groups)) for name in WORDS]
    others = {group.name: group for group in second.groups}
    for group in first.groups:
        if group.name in others and len(first.groups) > 1:
            pair = Asked(first, [group]), Asked(second, [others[group.name]])
            rows += [_difference(name, group.name, *pair) for name in _COMPARED_BY_GROUP]
    return [row for row in rows if row is not None]


def _difference(name: str, group: str, first: Asked, second: Asked) -> Difference | None:
    quantity = figure(name)
    one, other = quantity.measure(first), quantity.measure(second)
    if not is_shown(name, [one, other]):
        return None
    said = "" if one is None or other is None else _signed(other - one, one, quantity.unit)
    words = f"{group}: {WORDS[name]}" if group else WORDS[name]
    return Difference(words, written(one, quantity.unit), written(other, quantity.unit), said)


def _signed(difference: float, of: float, unit: Unit) -> str:
    if abs(difference) < 1e-12:
        return "same"
    sign = "+" if difference > 0 else "\u2212"
    size = f"{100 * abs(difference):.1f} points" if unit is Unit.SHARE else written(abs(difference), unit)
    relative = f" ({sign}{100 * abs(difference / of):.1f} %)" if of and unit is not Unit.SHARE else ""
    return f"{sign}{size}{relative}"


def _written(name: str, asked: Asked) -> str:
    return written(figure(name).measure(asked), figure(name).unit)
