"""The driver's side of learning steps: open before the rollouts, report what was asked, close after the update.

The step protocol is StepReporter's. verl may repeat a step after a restart, from an older checkpoint or because it died in it: an open
step is opened again with the same number, λ and call keys, so nothing is paid twice; one whose report was written counts, and its
repetition is a new step. λ never goes back: it is the price of what was really asked.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, cast

from pydantic import TypeAdapter

from edge import __version__
from edge.core.clock import Clock
from edge.core.errors import StateError, UsageError
from edge.core.events import Event
from edge.core.files import write_atomically
from edge.learning.step_reporter import OpenStep, StepReporter
from edge.rpc.client import CoordinatorClient, StepUnits
from edge.state.events import Notice
from edge.state.folder import StateFolder
from edge.state.rows import Report, StoredTerms
from tools.integrations.loop_thread import LoopThread
from tools.integrations.verl.settings import DagrpoSettings

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Waiting:
    id: int
    report: Report


@dataclass(slots=True)
class _File:
    """What `dagrpo.json` holds."""

    format: Literal[1]
    terms: list[StoredTerms]
    waiting_reports: list[_Waiting]


_FILE = TypeAdapter(_File)


class RunState:
    """The driver's durable state between two steps: one run's terms by task, and its pending reports, oldest first.

    It implements what `StepReporter` needs of a state folder, in one JSON file next to verl's checkpoints; every change is on disk when the
    method returns. A report is written before it is sent and removed with the reply, so a driver that dies in between sends it again, and
    the coordinator answers a repeated report with its first reply.
    """

    def __init__(self, path: Path) -> None:
        """Raises StateError for a file that cannot be read."""
        self._path, self._file = path, _File(1, [], [])
        if path.exists():
            try:
                self._file = _FILE.validate_json(path.read_bytes())
            except (OSError, ValueError) as error:
                hint = "restore it from a backup; without it the coordinator's λ and step numbers are taken, and a report may be lost"
                why = getattr(error, "strerror", "") or "damaged, or of another version"
                raise StateError(f"{path}: cannot be read ({why})", hint=hint) from error

    def terms(self, task: str) -> StoredTerms | None:
        """The last terms of the task, or None where this run has none."""
        return next((terms for terms in self._file.terms if terms.task == task), None)

    def waiting_reports(self) -> list[tuple[int, Report]]:
        """Reports that wait, oldest first."""
        return [(waiting.id, waiting.report) for waiting in self._file.waiting_reports]

    def put(self, report: Report) -> int:
        """Keep a report until it is delivered; its number. The same step again replaces its report."""
        for waiting in self._file.waiting_reports:
            if (waiting.report.task, waiting.report.task_step) == (report.task, report.task_step):
                waiting.report = report
                break
        else:
            waiting = _Waiting(max((number for number, _ in self.waiting_reports()), default=0) + 1, report)
            self._file.waiting_reports.append(waiting)
        self._save()
        return waiting.id

    def delivered(self, report_id: int, terms: StoredTerms | None) -> None:
        """Remove a delivered report; `terms` from the coordinator's reply (None: it is already past that step)."""
        self._file.waiting_reports = [waiting for waiting in self._file.waiting_reports if waiting.id != report_id]
        self.note(terms)

    def refused(self, report_id: int, reason: str) -> None:
        """Keep a report that the coordinator refused, and why."""
        for waiting in self._file.waiting_reports:
            if waiting.id == report_id:
                waiting.report = replace(waiting.report, refused=reason)
        self._save()

    def note(self, terms: StoredTerms | None) -> None:
        """Take over terms, where there are any."""
        if terms is not None:
            self._file.terms = [*(known for known in self._file.terms if known.task != terms.task), terms]
        self._save()

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, json.dumps(asdict(self._file), allow_nan=False))


class LogSink:
    """Notices of the step protocol, as log lines."""

    def emit(self, event: Event) -> None:
        """Log a notice; other events are counted elsewhere."""
        if isinstance(event, Notice):
            log.warning("%s", event.text)


class TrainingSteps:
    """One step at a time: begin, then (open, report, close) again and again, then shut."""

    def __init__(
        self, open_client: Callable[[], CoordinatorClient], clock: Clock, settings: DagrpoSettings, dual_init: float
    ) -> None:
        """`open_client` is called once, on the thread that the client will live on. Raises StateError."""
        self._settings = settings
        self._state = RunState(settings.state_file)
        self._thread = LoopThread()
        self._client = self._thread.run(_made(open_client))
        state = cast(StateFolder, self._state)
        self._book = StepReporter(self._client, state, LogSink(), clock, dual_init)
        self._open: OpenStep | None = None
        self._reported: tuple[int, StepUnits] | None = None

    @property
    def now(self) -> OpenStep:
        """The step under way. Raises UsageError between steps."""
        if self._open is None:
            raise UsageError("no learning step is open")
        return self._open

    def begin(self) -> None:
        """Register, so that a wrong address or a missing permission is reported before the first rollout. Raises CoordinatorError."""
        self._thread.run(self._client.register(__version__, [self._settings.task]))

    def open(self) -> OpenStep:
        """Deliver pending reports and open the next step; with the coordinator away, use the last λ and no cloud. Raises
        CoordinatorError."""
        settings = self._settings
        self._open = self._thread.run(
            self._book.open(settings.task, settings.planned_prompts, settings.group_size, settings.target_rate)
        )
        if self._open.offline:
            log.warning(
                "step %d of %s: the coordinator is away; λ stays %.4f", self._open.task_step, settings.task, self._open.dual
            )
        return self._open

    def report(self, units: StepUnits) -> None:
        """Record the requests of the open step's responses, before the update that follows from them."""
        step = self.now
        report = Report(step.task, step.task_step, step.planned_prompts, step.group_size, step.target_rate, units)
        self._reported = (self._state.put(report), units)

    def close(self) -> float:
        """Deliver the report; λ after the step, which is the same as before while the coordinator is away. Raises CoordinatorError."""
        step = self.now
        if self._reported is None:
            raise UsageError("the step has no report")
        number, units = self._reported
        closed = self._thread.run(self._book.close(step, units))
        if closed.waiting_report is None:
            self._state.delivered(number, closed.terms)
        else:
            self._state.note(closed.terms)
            if closed.waiting_report.refused:
                self._state.refused(number, closed.waiting_report.refused)
        self._open = self._reported = None
        return closed.terms.dual

    def shut(self) -> None:
        """Close the connection. Safe to call twice."""
        if self._thread.is_open:
            self._thread.run(self._client.aclose())
            self._thread.close()


async def _made(open_client: Callable[[], CoordinatorClient]) -> CoordinatorClient:
    return open_client()
