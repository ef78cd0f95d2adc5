"""What the driver must not lose between two steps: λ, the next step's number, and reports on their way. Knows one JSON file beside
verl's checkpoints.

It is what `StepReporter` asks of a state folder. A report is written before it is sent and leaves the file with the
answer, so a driver that dies in between sends it again, and the coordinator answers a repeated report with its first answer.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge.core.errors import StateError
from edge.core.files import write_atomically
from edge.rpc.client import StepUnits
from edge.state.rows import Report, Terms

_FORMAT = 1


class RunState:
    """One run's terms by task, and its reports that wait, oldest first. Every change is on disk when the method returns."""

    def __init__(self, path: Path) -> None:
        """Raises StateError for a file that cannot be read."""
        self._path = path
        self._terms: dict[str, Terms] = {}
        self._unreported: dict[int, Report] = {}
        if path.exists():
            self._load()

    def terms(self, task: str) -> Terms | None:
        """What the task was last held to, or None where this run has not met it."""
        return self._terms.get(task)

    def unreported(self) -> list[tuple[int, Report]]:
        """Reports that wait, oldest first."""
        return sorted(self._unreported.items())

    def put(self, report: Report) -> int:
        """Keep a report until it is delivered; its number. The same step again replaces its report."""
        same = [number for number, waiting in self._unreported.items() if _step_of(waiting) == _step_of(report)]
        number = same[0] if same else max(self._unreported, default=0) + 1
        self._unreported[number] = report
        self._save()
        return number

    def delivered(self, report_id: int, terms: Terms | None) -> None:
        """A report has arrived; `terms` as the coordinator answered (None: it has gone past that step)."""
        self._unreported.pop(report_id, None)
        self.note(terms)

    def note(self, terms: Terms | None) -> None:
        """Take over terms, where there are any."""
        if terms is not None:
            self._terms[terms.task] = terms
        self._save()

    def _load(self) -> None:
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            if data["format"] != _FORMAT:
                raise ValueError(f"format {data['format']}")
            self._terms = {row["task"]: Terms(**row) for row in data["terms"]}
            self._unreported = {row["id"]: _report(row["report"]) for row in data["outbox"]}
        except (OSError, ValueError, TypeError, KeyError) as error:
            hint = "restore it from a backup; without it the coordinator's λ and step numbers are taken, and a report may be lost"
            raise StateError(f"{self._path}: cannot be read ({error})", hint=hint) from error

    def _save(self) -> None:
        data = {
            "format": _FORMAT,
            "terms": [asdict(terms) for terms in self._terms.values()],
            "outbox": [{"id": number, "report": asdict(report)} for number, report in self.unreported()],
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, json.dumps(data, allow_nan=False))


def _step_of(report: Report) -> tuple[str, int]:
    return report.task, report.task_step


def _report(row: dict[str, Any]) -> Report:
    return Report(**{**row, "units": StepUnits(**row["units"])})
