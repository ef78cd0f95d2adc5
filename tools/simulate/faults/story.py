"""The part of what happened that a violation is about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_KEY = re.compile(r"\b[0-9a-f]{32}\b|[\w]+(?:-+[\w]+)+(?:#\d+)?")
_STEP = re.compile(r"\b\w+#\d+")
_ENTRY = re.compile(r"\bentry (\d+)")
_BUDGET = re.compile(r"\b(?:share/)?(?:fleet_task|device_task|fleet|device)(?:\[[^\]]*\])?(?:@[\w-]+)?(?![\w\[])")
_DEVICE = re.compile(r"\b(?:d|agent-)\d+\b")
_JOURNAL = re.compile(r"journal +(\d+) ")
_WORLD = re.compile(r"^ *[\d.]+ world ")


@dataclass(frozen=True, slots=True)
class Subjects:
    """What violations name: calls and steps, journal entries, budgets, devices."""

    names: frozenset[str]
    entries: frozenset[str]
    budgets: frozenset[str]
    devices: frozenset[str]

    def concern(self, line: str) -> bool:
        """Whether a told line is about one of them; the most particular kind that is named decides."""
        entry = _JOURNAL.search(line)
        if entry is not None and entry[1] in self.entries:
            return True
        if self.names:
            return bool(self.names & _names(line))
        if self.budgets and entry is not None:
            return bool(self.budgets & frozenset(_BUDGET.findall(line)))
        return not (self.entries or self.budgets) and (not self.devices or bool(self.devices & frozenset(_DEVICE.findall(line))))


def minimal_story(violations: Sequence[str], told: Sequence[str], most: int) -> list[str]:
    """The last `most` lines of what happened to what the violations name, with all that befell the world."""
    about = subjects(violations)
    lines = [line for line in told if _WORLD.match(line) or about.concern(line)]
    left = len(lines) - most
    return [*([f"({left} lines before)"] if left > 0 else []), *lines[-most:]]


def subjects(violations: Iterable[str]) -> Subjects:
    """What the violations name."""
    text = "\n".join(line.partition(": ")[2] for line in violations)
    devices = frozenset(_DEVICE.findall(text))
    names = _names(text) - devices
    budgets = frozenset(_BUDGET.findall(text)) - {"device"}
    return Subjects(names, frozenset(_ENTRY.findall(text)), budgets, devices)


def _names(text: str) -> frozenset[str]:
    """Keys of calls and numbers of steps."""
    keys = {key for key in _KEY.findall(text) if any(sign.isdigit() for sign in key) and not re.fullmatch(r"[\d-]+", key)}
    return frozenset(keys | set(_STEP.findall(text)))
