"""The part of what happened that a violation is about."""

from __future__ import annotations

import re
from collections.abc import Sequence

_KEY = re.compile(r"\b[0-9a-f]{32}\b|[\w]+(?:-+[\w]+)+(?:#\d+)?")
_STEP = re.compile(r"\b\w+#\d+")
_ENTRY = re.compile(r"\bentry (\d+)")
_BUDGET = re.compile(r"\b(?:share/)?(?:fleet_task|device_task|fleet|device)(?:\[[^\]]*\])?(?:@[\w-]+)?(?![\w\[])")
_DEVICE = re.compile(r"\b(?:d|agent-)\d+\b")
_JOURNAL = re.compile(r"journal +(\d+) ")
_WORLD = re.compile(r"^ *[\d.]+ world ")


def minimal_story(violations: Sequence[str], told: Sequence[str], most: int) -> list[str]:
    """The last `most` lines of what happened to what the violations name, with all that befell the world. They name calls and steps,
    journal entries, budgets or devices; the most particular kind that is named decides."""
    text = "\n".join(line.partition(": ")[2] for line in violations)
    devices, entries = set(_DEVICE.findall(text)), set(_ENTRY.findall(text))
    names, budgets = _names(text) - devices, set(_BUDGET.findall(text)) - {"device"}

    def concerned(line: str) -> bool:
        entry = _JOURNAL.search(line)
        if _WORLD.match(line) or (entry is not None and entry[1] in entries):
            return True
        if names:
            return bool(names & _names(line))
        if budgets and entry is not None:
            return bool(budgets & set(_BUDGET.findall(line)))
        return not (entries or budgets) and (not devices or bool(devices & set(_DEVICE.findall(line))))

    lines = [line for line in told if concerned(line)]
    left = len(lines) - most
    return [*([f"({left} lines before)"] if left > 0 else []), *lines[-most:]]


def _names(text: str) -> set[str]:
    """Keys of calls and numbers of steps."""
    keys = {key for key in _KEY.findall(text) if any(sign.isdigit() for sign in key) and not re.fullmatch(r"[\d-]+", key)}
    return keys | set(_STEP.findall(text))
