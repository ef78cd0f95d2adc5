"""What the simulation and the fault tests have seen, for the end of a test run: one line each, and one with the sums.

A test notes it in the process that runs the test; its report carries it to the process that prints.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

PROPERTY = "faults"
_NOTED: list[tuple[str, dict[str, int]]] = []


def note(what: str, kills: int, faults: int, checks: int, violations: int) -> None:
    """Add a line and its counts to the test that runs."""
    counts = {"kills survived": kills, "faults injected": faults, "invariants checked": checks, "violations": violations}
    _NOTED.append((what, counts))


def take() -> list[tuple[str, dict[str, int]]]:
    """What was noted since the last time."""
    noted = _NOTED.copy()
    _NOTED.clear()
    return noted


def print_summary(reporter: pytest.TerminalReporter) -> None:
    """Print what the reports of all tests carry, and its sums."""
    reports = [report for of_a_kind in reporter.stats.values() for report in of_a_kind]
    noted = [value for report in reports for value in _carried(report)]
    if noted:
        reporter.section("faults")
        sums: Counter[str] = Counter()
        for what, counts in noted:
            sums.update(counts)
            reporter.line(f"{what}: {_listed(counts)}")
        reporter.line(f"together: {_listed(sums)}")


def _carried(report: Any) -> list[tuple[str, dict[str, int]]]:
    if not isinstance(report, pytest.TestReport) or report.when != "call":
        return []
    return [value for name, value in report.user_properties if name == PROPERTY]


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())
