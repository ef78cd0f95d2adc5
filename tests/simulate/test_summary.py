"""The sums at the end of a run: of all tests, in whichever process each one ran."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.simulate.summary import PROPERTY, note, take, tell


class Printed:
    """As much of pytest's reporter as is needed."""

    def __init__(self, *reports: Any) -> None:
        self.stats = {"passed": [reports[0]], "failed": list(reports[1:]), "warnings": [object()]}
        self.lines: list[str] = []

    def section(self, title: str) -> None:
        self.lines.append(title)

    def line(self, text: str) -> None:
        self.lines.append(text)


def _report(when: str, noted: list[Any]) -> pytest.TestReport:
    """As it comes from a worker: its properties went through JSON."""
    properties = json.loads(json.dumps([("other", 1), *((PROPERTY, each) for each in noted)]))
    return pytest.TestReport("test", ("file", 1, "test"), {}, "passed", None, when, user_properties=properties)  # type: ignore[arg-type]


def test_the_lines_of_all_reports_are_printed_once_and_summed() -> None:
    note("one", 1, 20, 300, 0)
    first = take()
    note("two", 3, 4, 5, 6)
    second = take()
    assert take() == []
    printed = Printed(_report("call", first), _report("teardown", first), _report("call", second))
    tell(printed)  # type: ignore[arg-type]
    assert printed.lines == [
        "faults",
        "one: 1 kills survived, 20 faults injected, 300 invariants checked, 0 violations",
        "two: 3 kills survived, 4 faults injected, 5 invariants checked, 6 violations",
        "together: 4 kills survived, 24 faults injected, 305 invariants checked, 6 violations",
    ]


def test_a_run_without_fault_tests_prints_nothing() -> None:
    printed = Printed(_report("call", []))
    tell(printed)  # type: ignore[arg-type]
    assert printed.lines == []
