"""The state folder. Knows how to keep what must survive a crash; knows nothing of models, gRPC or how steps are made.

One folder, one process (a lock file), one SQLite file in WAL mode with `synchronous=FULL`: what a method has written is there after a
kill or a power cut. A learning step is committed in one transaction: its row, the position in the phases, the data cursor, the terms
of its task and, when it could not be reported, its outbox entry.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from edge.agent.events import FamilyScores, StepFinished, StepSeconds
from edge.agent.line import Line
from edge.core.errors import NotFound, StateError

SCHEMA_VERSION = 3
GATE_MEMORY = "gate"
BEST_VERSION = "guard_best"
_LINE = "line"
_SENT = """
CREATE TABLE sent (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL, why TEXT NOT NULL, method TEXT NOT NULL,
    answer_id TEXT NOT NULL, call_key TEXT NOT NULL, payload BLOB NOT NULL, replaced TEXT NOT NULL,
    times INTEGER NOT NULL DEFAULT 1, last_at REAL NOT NULL, outcome TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX sent_by_answer ON sent (answer_id) WHERE answer_id != '';
"""
_DIALS = """
CREATE TABLE dials (task TEXT PRIMARY KEY, dial TEXT NOT NULL) STRICT;
"""
_FEEDBACK = """
CREATE TABLE feedback (
    request_id TEXT PRIMARY KEY, at REAL NOT NULL, verdict TEXT NOT NULL, correction TEXT
) STRICT;
"""
_LEARNING_SPEND = """
CREATE TABLE learning_spend (
    call_key TEXT PRIMARY KEY, day TEXT NOT NULL, at REAL NOT NULL, task TEXT NOT NULL, tokens INTEGER NOT NULL,
    spend_uusd INTEGER NOT NULL, settled INTEGER NOT NULL
) STRICT;
CREATE INDEX learning_spend_by_day ON learning_spend (day);
"""
_EXAMS = """
CREATE TABLE exams (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, adapter_version INTEGER NOT NULL, source TEXT NOT NULL, task TEXT NOT NULL,
    verdicts TEXT NOT NULL
) STRICT;
"""
_ITEM_USES = """
CREATE TABLE item_uses (item TEXT PRIMARY KEY, uses INTEGER NOT NULL, step INTEGER NOT NULL) STRICT;
"""
_WENT_BACK = """
CREATE TABLE went_back (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, from_version INTEGER NOT NULL, to_version INTEGER NOT NULL,
    by TEXT NOT NULL, reason TEXT NOT NULL
) STRICT;
"""
_WAITS = """
CREATE TABLE waits (id INTEGER PRIMARY KEY AUTOINCREMENT, began_at REAL NOT NULL, ended_at REAL NOT NULL, reason TEXT NOT NULL) STRICT;
"""
_DOUBTS = """
CREATE TABLE calls_in_doubt (call_key TEXT PRIMARY KEY, request_id TEXT NOT NULL, at REAL NOT NULL, record TEXT NOT NULL) STRICT;
"""
_OF_VERSION_3 = _SENT + _DIALS + _FEEDBACK + _LEARNING_SPEND + _EXAMS + _ITEM_USES + _WENT_BACK + _WAITS + _DOUBTS
"""Tables that came with version 3; each belongs to the module that reads and writes it."""
_SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE steps (step INTEGER PRIMARY KEY, task TEXT NOT NULL, task_step INTEGER NOT NULL, event TEXT NOT NULL) STRICT;
CREATE TABLE terms (task TEXT PRIMARY KEY, target_rate REAL NOT NULL, dual REAL NOT NULL, next_step INTEGER NOT NULL) STRICT;
CREATE TABLE cursors (source TEXT NOT NULL, seed INTEGER NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (source, seed)) STRICT;
CREATE TABLE adapters (version INTEGER PRIMARY KEY, folder TEXT NOT NULL, created_at REAL NOT NULL) STRICT;
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, task TEXT NOT NULL, task_step INTEGER NOT NULL, planned_prompts INTEGER NOT NULL,
    group_size INTEGER NOT NULL, target_rate REAL NOT NULL, total_units INTEGER NOT NULL, help_units INTEGER NOT NULL,
    uncalled_units INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE requests (id TEXT PRIMARY KEY, created_at REAL NOT NULL, record TEXT NOT NULL) STRICT;
{_OF_VERSION_3}"""
_MIGRATIONS = {1: "ALTER TABLE outbox ADD COLUMN uncalled_units INTEGER NOT NULL DEFAULT 0;", 2: _OF_VERSION_3}
"""From each older version to the next."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far learning has come: steps done in all, the phase, and steps done in it."""

    steps_done: int = 0
    phase: int = 0
    phase_step: int = 0


@dataclass(frozen=True, slots=True)
class Terms:
    """What a task was last held to: τ, λ and the next step number at the coordinator."""

    task: str
    target_rate: float
    dual: float
    next_step: int


@dataclass(frozen=True, slots=True)
class StepUnits:
    """Responses of a step: `help` of `total` validly asked, `uncalled` of these in groups that the cloud was not called for."""

    total: int
    help: int
    uncalled: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """A step's report to the coordinator."""

    task: str
    task_step: int
    planned_prompts: int
    group_size: int
    target_rate: float
    units: StepUnits


@dataclass(frozen=True, slots=True)
class Exam:
    """Which items of one source a version got right, by their keys."""

    adapter_version: int
    source: str
    task: str
    right: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class WentBackRow:
    """That at some time another version was made to serve: by a person, or by what found the first one worse (anchors, feedback)."""

    at: float
    from_version: int
    to_version: int
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Commit:
    """All that one finished step changes."""

    event: StepFinished
    task_step: int
    position: Position
    cursor_source: str
    cursor_seed: int
    cursor: int
    terms: Terms
    adapter_folder: str
    unreported: Report | None
    line: Line
    gate_memory: str = ""
    """What the promotion gate remembers, as JSON; "": unchanged."""
    exams: tuple[Exam, ...] = ()
    used: tuple[str, ...] = ()
    """Keys of one's own items that were learned from, each one use more."""


class StateReader:
    """What is asked of a state folder without changing it."""

    folder: Path
    _db: sqlite3.Connection

    def position(self) -> Position:
        """How far learning has come."""
        text = self.meta("position")
        return Position(**json.loads(text)) if text else Position()

    def meta(self, key: str) -> str | None:
        """A small named value, or None."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def line(self) -> Line:
        """Which adapter serves and which one training goes on from; the last step's where nobody has said otherwise."""
        text = self.meta(_LINE)
        if text:
            return Line.from_json(text)
        steps_done = self.position().steps_done
        return Line(steps_done, steps_done)

    def best_version(self) -> int:
        """The version that did best in the guard's last exam, which is kept to go back to; 0: the bare model, or none was held."""
        return int(self.meta(BEST_VERSION) or 0)

    def line_of(self, version: int) -> Iterator[int]:
        """The version and those it was trained from, newest first, without the bare model."""
        while version > 0:
            yield version
            step = self.step_at(version)
            version = step.base_version if step is not None and step.base_version >= 0 else version - 1

    def step_at(self, step: int) -> StepFinished | None:
        """One committed step."""
        row = self._db.execute("SELECT event FROM steps WHERE step = ?", (step,)).fetchone()
        return None if row is None else step_from_json(json.loads(row[0]))

    def first_step(self, phase: int, source: str) -> StepFinished | None:
        """The first committed step of a source in a phase, of its last time where the phases began anew."""
        query = (
            "SELECT event FROM steps WHERE json_extract(event, '$.phase') = ? AND json_extract(event, '$.source') = ?"
            " ORDER BY json_extract(event, '$.phase_step'), step DESC LIMIT 1"
        )
        row = self._db.execute(query, (phase, source)).fetchone()
        return None if row is None else step_from_json(json.loads(row[0]))

    def terms(self, task: str) -> Terms | None:
        """What the task was last held to, or None before its first step."""
        row = self._db.execute("SELECT task, target_rate, dual, next_step FROM terms WHERE task = ?", (task,)).fetchone()
        return None if row is None else Terms(*row)

    def steps(self, last: int | None = None) -> list[StepFinished]:
        """The last committed steps (None: all), oldest first."""
        rows = self._db.execute("SELECT event FROM steps ORDER BY step DESC LIMIT ?", (-1 if last is None else last,)).fetchall()
        return [step_from_json(json.loads(row[0])) for row in reversed(rows)]

    def outbox(self) -> list[tuple[int, Report]]:
        """Step reports that wait for the coordinator, oldest first, with their outbox ids."""
        rows = self._db.execute("SELECT * FROM outbox ORDER BY id")
        return [
            (place, Report(task, step, planned, size, rate, StepUnits(*units)))
            for place, task, step, planned, size, rate, *units in rows
        ]

    def request(self, request_id: str) -> dict[str, Any]:
        """The record of an answer. Raises NotFound."""
        row = self._db.execute("SELECT record FROM requests WHERE id = ?", (request_id,)).fetchone()
        if row is None:
            raise NotFound(f"no answer with id {request_id} in {self.folder}")
        record: dict[str, Any] = json.loads(row[0])
        return record

    def requests(self, last: int) -> list[dict[str, Any]]:
        """The records of the last answers, newest first."""
        rows = self._db.execute("SELECT record FROM requests ORDER BY created_at DESC, id LIMIT ?", (last,)).fetchall()
        return [json.loads(row[0]) for row in rows]

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """What a query finds, for the modules that keep a table of their own; nothing in a folder of a version without that table."""
        try:
            return self._db.execute(query, tuple(values)).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise


class StateFolder(StateReader):
    """An open state folder. Close it, or use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Open or create. Raises StateError when it is locked by another process, damaged or from another version."""
        self.folder = folder
        _make_private(folder)
        self._lock = _locked(folder / "lock")
        try:
            self._db = _opened(folder / "agent.sqlite")
            self.run_id = self._run_id()
        except BaseException:
            os.close(self._lock)
            raise

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

    @property
    def database(self) -> sqlite3.Connection:
        """The open database, for the modules that keep a table of their own in it; use it as a context manager to commit."""
        return self._db

    def set_meta(self, key: str, value: str) -> None:
        """Keep a small named value."""
        with self._db:
            self._put_meta(key, value)

    def set_position(self, position: Position) -> None:
        """Move to another place in the phases (a changed plan)."""
        self.set_meta("position", json.dumps(asdict(position)))

    def note_terms(self, terms: Terms) -> None:
        """Keep what the coordinator said of a task."""
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
            self._put_meta("position", json.dumps(asdict(commit.position)))
            self._db.execute("REPLACE INTO cursors VALUES (?, ?, ?)", (commit.cursor_source, commit.cursor_seed, commit.cursor))
            self._put_terms(commit.terms)
            self._db.execute("REPLACE INTO adapters VALUES (?, ?, ?)", (event.adapter_version, commit.adapter_folder, event.at))
            self._put_meta(_LINE, commit.line.to_json())
            if commit.gate_memory:
                self._put_meta(GATE_MEMORY, commit.gate_memory)
            for exam in commit.exams:
                self._put_exam(exam, event.at)
            for item in commit.used:
                self._put_use(item, event.step)
            if commit.unreported is not None:
                self._queue(commit.unreported)

    def put_exams(self, exams: Sequence[Exam], at: float) -> None:
        """Keep the results of exams that belong to no step."""
        with self._db:
            for exam in exams:
                self._put_exam(exam, at)

    def set_line(self, line: Line, went_back: WentBackRow | None = None) -> None:
        """Serve and train on from other versions, and why, where somebody went back."""
        with self._db:
            self._put_meta(_LINE, line.to_json())
            if went_back is not None:
                self._db.execute(
                    "INSERT INTO went_back (at, from_version, to_version, by, reason) VALUES (?, ?, ?, ?, ?)", astuple(went_back)
                )

    def delivered(self, outbox_id: int, terms: Terms | None) -> None:
        """Remove a delivered report and keep the terms it brought, in one transaction."""
        with self._db:
            self._db.execute("DELETE FROM outbox WHERE id = ?", (outbox_id,))
            if terms is not None:
                self._put_terms(terms)

    def put_request(
        self, request_id: str, created_at: float, record: dict[str, Any], beside: Callable[[], None] = lambda: None
    ) -> None:
        """Keep an answer's record; what `beside` writes is kept with it or not at all."""
        with self._db:
            beside()
            self._db.execute("REPLACE INTO requests VALUES (?, ?, ?)", (request_id, created_at, json.dumps(record)))

    def _run_id(self) -> str:
        known = self.meta("run_id")
        if known is None:
            known = secrets.token_hex(8)
            self.set_meta("run_id", known)
        return known

    def _put_meta(self, key: str, value: str) -> None:
        self._db.execute("REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _put_terms(self, terms: Terms) -> None:
        self._db.execute("REPLACE INTO terms VALUES (?, ?, ?, ?)", (terms.task, terms.target_rate, terms.dual, terms.next_step))

    def _put_exam(self, exam: Exam, at: float) -> None:
        self._db.execute(
            "INSERT INTO exams (at, adapter_version, source, task, verdicts) VALUES (?, ?, ?, ?, ?)",
            (at, exam.adapter_version, exam.source, exam.task, json.dumps(dict(exam.right))),
        )

    def _put_use(self, item: str, step: int) -> None:
        self._db.execute(
            "INSERT INTO item_uses VALUES (?, 1, ?) ON CONFLICT (item) DO UPDATE SET uses = uses + 1, step = excluded.step",
            (item, step),
        )

    def _queue(self, report: Report) -> None:
        place = (report.task, report.task_step, report.planned_prompts, report.group_size, report.target_rate)
        self._db.execute(
            "INSERT INTO outbox (task, task_step, planned_prompts, group_size, target_rate, total_units, help_units, uncalled_units)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*place, report.units.total, report.units.help, report.units.uncalled),
        )


def serving_versions(folder: Path) -> tuple[int, ...]:
    """The version that serves and those it was trained from, newest first, without the bare model; also while an agent uses the folder.

    () where the bare model serves and where nothing was learned. Raises StateError for a folder that cannot be read.
    """
    try:
        with reading(folder) as state:
            return () if state is None else tuple(state.line_of(state.line().serving))
    except StateError as error:
        raise StateError(str(error), hint="name an adapter folder with --adapter") from error


@contextmanager
def reading(folder: Path) -> Iterator[StateReader | None]:
    """A state folder to look into, also while an agent uses it; None where there is none. Raises StateError for one that cannot be read."""
    path = folder / "agent.sqlite"
    if not path.is_file():
        yield None
        return
    reader = StateReader()
    reader.folder = folder
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as reader._db:
            yield reader
    except (sqlite3.Error, ValueError) as error:
        raise StateError(f"{path}: cannot be read: {error}", hint="move the file away to start afresh") from error


def kept_meta(folder: Path, key: str) -> str | None:
    """A small named value of a folder, also while an agent uses it; None where there is none. Raises StateError."""
    with reading(folder) as state:
        return None if state is None else state.meta(key)


def step_from_json(data: dict[str, Any]) -> StepFinished:
    """A StepFinished event from its JSON object; steps of older folders have no families."""
    fields = {key: value for key, value in data.items() if key != "kind"}
    families = tuple(FamilyScores(**family) for family in fields.pop("families", ()))
    return StepFinished(**{**fields, "seconds_by_part": StepSeconds(**fields["seconds_by_part"])}, families=families)


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StateError(
            f"{folder}: cannot create the state folder: {error.strerror}", hint="choose another with --state"
        ) from error


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
            hint="stop it first, or choose another folder with --state",
        ) from error
    return descriptor


def _opened(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, check_same_thread=False)
        path.chmod(0o600)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _create_or_check(connection, path)
    except sqlite3.Error as error:
        raise StateError(f"{path}: cannot be used: {error}", hint="move the file away to start afresh") from error
    return connection


def _create_or_check(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        connection.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;")
    elif version in _MIGRATIONS:
        connection.executescript(f"BEGIN;{_MIGRATIONS[version]}PRAGMA user_version = {version + 1};COMMIT;")
        _create_or_check(connection, path)
    elif version != SCHEMA_VERSION:
        raise StateError(f"{path}: written by another version (format {version}, this program reads {SCHEMA_VERSION})")
