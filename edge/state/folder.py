"""The state folder: writing what must survive a crash.

One folder, one process (a lock file), one SQLite file in WAL mode with `synchronous=FULL`: what a method has written is there after a
kill or a power cut. A learning step is committed in one transaction: its row, the position in the phases, the data cursor, the terms
of its task and, when it could not be reported, its report.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from edge.core.errors import StateError
from edge.state.reader import HELP_RECORD, LINE, POSITION, StateReader
from edge.state.rows import Commit, Exam, Lineage, Position, Report, StoredTerms, WentBackRow
from edge.state.schema import open_database

GATE_MEMORY = "gate"
COLLAPSE_MEMORY = "collapse"
CHECKPOINTS = "checkpoints"
"""The folder of checkpoints within a state folder."""


class StateFolder(StateReader):
    """An open state folder. Close it, or use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Open or create. Raises StateError when it is locked by another process, damaged or from another version."""
        self.folder = folder
        self.set_aside: Path | None = None
        """Where checkpoints lie that were here before the database was, which knows nothing of them; None: there were none."""
        _make_private(folder)
        self._lock = _locked(folder / "lock")
        try:
            self._db = self._open_database()
            self.run_id = self._run_id()
        except BaseException:
            os.close(self._lock)
            raise

    def _open_database(self) -> sqlite3.Connection:
        return open_database(self.folder / "agent.sqlite")

    def __enter__(self) -> StateFolder:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the database and the lock. Safe to call twice."""
        if self._lock >= 0:
            self._db.close()
            os.close(self._lock)
            self._lock = -1

    def set_meta(self, key: str, value: str) -> None:
        """Keep a small named value."""
        with self._db:
            self._put_meta(key, value)

    def set_position(self, position: Position) -> None:
        """Move to another place in the phases (a changed plan)."""
        self.set_meta(POSITION, json.dumps(asdict(position)))

    def note_terms(self, terms: StoredTerms) -> None:
        """Keep what the coordinator reported of a task."""
        with self._db:
            self._put_terms(terms)

    def cursor(self, source: str, seed: int) -> int:
        """Items of a source's training stream that committed steps have used."""
        row = self._db.execute("SELECT position FROM cursors WHERE source = ? AND seed = ?", (source, seed)).fetchone()
        return 0 if row is None else int(row[0])

    def commit_step(self, commit: Commit) -> None:
        """Commit a finished step, all or nothing."""
        event = commit.event
        with self._db:
            self._db.execute(
                "INSERT INTO steps VALUES (?, ?, ?, ?)", (event.step, event.task, commit.task_step, json.dumps(event.to_json()))
            )
            self._put_meta(POSITION, json.dumps(asdict(commit.position)))
            self._db.execute("REPLACE INTO cursors VALUES (?, ?, ?)", (commit.cursor_source, commit.cursor_seed, commit.cursor))
            self._put_terms(commit.terms)
            self._put_meta(LINE, commit.lineage.to_json())
            for task, record in commit.help_records.items():
                self._put_meta(f"{HELP_RECORD}{task}", json.dumps(astuple(record)))
            if commit.gate_memory:
                self._put_meta(GATE_MEMORY, commit.gate_memory)
            for exam in commit.exams:
                self._put_exam(exam, event.at)
            if commit.collapse_memory:
                self._put_meta(COLLAPSE_MEMORY, commit.collapse_memory)
            if commit.went_back is not None:
                self._put_went_back(commit.went_back)
            for item in commit.used:
                self._db.execute(
                    "INSERT INTO item_uses VALUES (?, 1, ?) ON CONFLICT (item) DO UPDATE SET uses = uses + 1, step = excluded.step",
                    (item, event.step),
                )
            for item in commit.demonstrated:
                self._db.execute(
                    "INSERT INTO demonstrated VALUES (?, 1) ON CONFLICT (item) DO UPDATE SET times = times + 1", (item,)
                )
            self._db.executemany("REPLACE INTO kept_answers VALUES (?, ?, ?)", map(astuple, commit.kept))
            if commit.waiting_report is not None:
                self._queue(commit.waiting_report)

    def put_exams(self, exams: Sequence[Exam], at: float) -> None:
        """Keep the results of exams that belong to no step."""
        with self._db:
            for exam in exams:
                self._put_exam(exam, at)

    def set_lineage(self, lineage: Lineage, went_back: WentBackRow | None = None) -> None:
        """Serve and train on from other versions, and why, where somebody went back."""
        with self._db:
            self._put_meta(LINE, lineage.to_json())
            if went_back is not None:
                self._put_went_back(went_back)

    def delivered(self, report_id: int, terms: StoredTerms | None) -> None:
        """Remove a delivered report and keep the task terms it brought, in one transaction."""
        with self._db:
            self._db.execute("DELETE FROM waiting_reports WHERE id = ?", (report_id,))
            if terms is not None:
                self._put_terms(terms)

    def refused(self, report_id: int, reason: str) -> None:
        """Keep a report that the coordinator refused, and why."""
        with self._db:
            self._db.execute("UPDATE waiting_reports SET refused = ? WHERE id = ?", (reason, report_id))

    def put_request(
        self,
        request_id: str,
        created_at: float,
        record: dict[str, Any],
        in_the_same_transaction: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep an answer's record; what `in_the_same_transaction` writes is kept with it or not at all."""
        with self._db:
            in_the_same_transaction()
            self._db.execute(
                "INSERT INTO requests VALUES (?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at, record = excluded.record",
                (request_id, created_at, json.dumps(record)),
            )

    def _run_id(self) -> str:
        known = self.meta("run_id")
        if known is None:
            known = secrets.token_hex(8)
            self.set_aside = _set_aside(self.folder, known)
            self.set_meta("run_id", known)
        return known

    def _put_meta(self, key: str, value: str) -> None:
        self._db.execute("REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _put_terms(self, terms: StoredTerms) -> None:
        self._db.execute("REPLACE INTO terms VALUES (?, ?, ?, ?)", (terms.task, terms.target_rate, terms.dual, terms.next_step))

    def _put_exam(self, exam: Exam, at: float) -> None:
        self._db.execute(
            "INSERT INTO exams (at, adapter_version, source, task, verdicts) VALUES (?, ?, ?, ?, ?)",
            (at, exam.adapter_version, exam.source, exam.task, exam.answers_json()),
        )

    def _put_went_back(self, row: WentBackRow) -> None:
        self._db.execute("INSERT INTO went_back (at, from_version, to_version, by, reason) VALUES (?, ?, ?, ?, ?)", astuple(row))

    def _queue(self, report: Report) -> None:
        place = (report.task, report.task_step, report.planned_prompts, report.group_size, report.target_rate)
        self._db.execute(
            "INSERT INTO waiting_reports (task, task_step, planned_prompts, group_size, target_rate, total_units, help_units,"
            " uncalled_units, own_rate, refused) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*place, report.units.total, report.units.help, report.units.uncalled, report.units.own_rate, report.refused),
        )


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StateError(
            f"{folder}: cannot create the state folder: {error.strerror}", hint="choose another with --state"
        ) from error


def _set_aside(folder: Path, run_id: str) -> Path | None:
    """Another run's checkpoints have the step numbers that this one will give: left in place they would be taken for its own."""
    earlier, aside = folder / CHECKPOINTS, folder / f"{CHECKPOINTS}-before-{run_id}"
    try:
        if not any(earlier.iterdir()):
            return None
        earlier.rename(aside)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(
            f"{earlier}: cannot be moved aside: {error.strerror}", hint="move it away, or choose another folder with --state"
        ) from error
    return aside


def _locked(path: Path) -> int:
    """An open descriptor that holds the folder's lock; the system drops it when the process dies, however it dies."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateError(
            f"{path.parent}: cannot write the state folder: {error.strerror}", hint="choose another with --state"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StateError(
            f"{path.parent}: another agent is using this state folder",
            hint="it runs or learns: where it was started just now, try again when it is ready; else stop it, or name another with --state",
        ) from error
    return descriptor
