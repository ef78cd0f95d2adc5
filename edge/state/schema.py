"""The tables of a state folder, and the number of their format."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from edge.core.errors import StateError

APPLICATION_ID = 0x65646765
"""Marks databases from version 0.1.0 on; those of earlier development versions have the numbers 1 to 8 without it."""
_MIGRATIONS: tuple[str, ...] = ()
"""SQL that makes each format of the one before. A change of the tables adds one, and a test that opens a folder of before."""
FORMAT = 1 + len(_MIGRATIONS)
USE_UNITS = (
    "answers", "local_answers", "calls", "tokens", "spend_uusd", "learning_calls", "learning_tokens", "learning_spend_uusd",
)  # fmt: skip
_BILLED = """coalesce(json_extract(record, '$.charged_uusd') > 0
    OR (json_extract(record, '$.call_state') IN ('completed', 'in_doubt') AND NOT coalesce(json_extract(record, '$.cached'), 0)), 0)"""
_USE_OF_ANSWERS = f"""
SELECT created_at AS at, coalesce(json_extract(record, '$.task'), '') AS task, 1 AS answers,
    coalesce(json_extract(record, '$.source') != 'cloud', 0) AS local_answers, {_BILLED} AS calls,
    CASE WHEN {_BILLED} THEN coalesce(json_extract(record, '$.cloud_tokens'), 0) ELSE 0 END AS tokens,
    coalesce(json_extract(record, '$.charged_uusd'), 0) AS spend_uusd,
    0 AS learning_calls, 0 AS learning_tokens, 0 AS learning_spend_uusd
FROM requests"""  # noqa: S608 - of constants
_USE_OF_LEARNING = """
SELECT at, task, 0 AS answers, 0 AS local_answers, 0 AS calls, 0 AS tokens, 0 AS spend_uusd,
    settled AND (tokens > 0 OR spend_uusd > 0) AS learning_calls, tokens AS learning_tokens, spend_uusd AS learning_spend_uusd
FROM learning_spend"""
USE_OF_ROWS = f"{_USE_OF_ANSWERS} UNION ALL {_USE_OF_LEARNING}"
"""What each answer and each call of learning has used, in `USE_UNITS`; see edge/state/usage.py for what counts."""


def _sum_up(rows: str, sign: str = "") -> str:
    """Add what some rows have used to the table `used`, or take it off."""
    sums = ", ".join(f"{sign}sum({unit})" for unit in USE_UNITS)
    more = ", ".join(f"{unit} = {unit} + excluded.{unit}" for unit in USE_UNITS)
    return f"""
    INSERT INTO used SELECT CAST(at / 3600 AS INTEGER), task, {sums} FROM ({rows}) WHERE true GROUP BY 1, 2
    ON CONFLICT DO UPDATE SET {more};
"""  # noqa: S608 - of constants


def _kept_up(table: str, key: str, rows: str) -> str:
    """Triggers that keep `used` up with a table. `REPLACE INTO` would pass them by; an upsert does not."""
    old, new = _sum_up(f"{rows} WHERE {key} = OLD.{key}", "-"), _sum_up(f"{rows} WHERE {key} = NEW.{key}")
    return f"""
CREATE TRIGGER {table}_inserted AFTER INSERT ON {table} BEGIN {new} END;
CREATE TRIGGER {table}_changes BEFORE UPDATE ON {table} BEGIN {old} END;
CREATE TRIGGER {table}_changed AFTER UPDATE ON {table} BEGIN {new} END;
CREATE TRIGGER {table}_deleted BEFORE DELETE ON {table} BEGIN {old} END;
"""


_UNITS_OF_AN_HOUR = ", ".join(f"{unit} INTEGER NOT NULL" for unit in USE_UNITS)
_TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE steps (step INTEGER PRIMARY KEY, task TEXT NOT NULL, task_step INTEGER NOT NULL, event TEXT NOT NULL) STRICT;
CREATE TABLE terms (task TEXT PRIMARY KEY, target_rate REAL NOT NULL, dual REAL NOT NULL, next_step INTEGER NOT NULL) STRICT;
CREATE TABLE cursors (source TEXT NOT NULL, seed INTEGER NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (source, seed)) STRICT;
CREATE TABLE waiting_reports (
    id INTEGER PRIMARY KEY AUTOINCREMENT, task TEXT NOT NULL, task_step INTEGER NOT NULL, planned_prompts INTEGER NOT NULL,
    group_size INTEGER NOT NULL, target_rate REAL NOT NULL, total_units INTEGER NOT NULL, help_units INTEGER NOT NULL,
    uncalled_units INTEGER NOT NULL, own_rate REAL, refused TEXT NOT NULL
) STRICT;
CREATE TABLE requests (id TEXT PRIMARY KEY, created_at REAL NOT NULL, record TEXT NOT NULL) STRICT;
CREATE INDEX requests_by_time ON requests (created_at);
CREATE TABLE sent (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL, why TEXT NOT NULL, method TEXT NOT NULL,
    answer_id TEXT NOT NULL, call_key TEXT NOT NULL, payload BLOB NOT NULL, replaced TEXT NOT NULL,
    times INTEGER NOT NULL DEFAULT 1, last_at REAL NOT NULL, outcome TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX sent_by_answer ON sent (answer_id) WHERE answer_id != '';
CREATE TABLE calls_in_doubt (call_key TEXT PRIMARY KEY, request_id TEXT NOT NULL, at REAL NOT NULL, record TEXT NOT NULL) STRICT;
CREATE TABLE dials (task TEXT PRIMARY KEY, dial TEXT NOT NULL) STRICT;
CREATE TABLE feedback (
    request_id TEXT PRIMARY KEY, at REAL NOT NULL, verdict TEXT NOT NULL, correction TEXT
) STRICT;
CREATE TABLE learning_spend (
    call_key TEXT PRIMARY KEY, day TEXT NOT NULL, at REAL NOT NULL, task TEXT NOT NULL, tokens INTEGER NOT NULL,
    spend_uusd INTEGER NOT NULL, settled INTEGER NOT NULL, chars INTEGER NOT NULL
) STRICT;
CREATE INDEX learning_spend_by_day ON learning_spend (day);
CREATE INDEX learning_spend_by_time ON learning_spend (at);
CREATE TABLE demonstrated (item TEXT PRIMARY KEY, times INTEGER NOT NULL) STRICT;
CREATE TABLE kept_answers (item TEXT NOT NULL, question TEXT NOT NULL, answer TEXT NOT NULL, PRIMARY KEY (item, question)) STRICT;
CREATE TABLE exams (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, adapter_version INTEGER NOT NULL, source TEXT NOT NULL, task TEXT NOT NULL,
    verdicts TEXT NOT NULL
) STRICT;
CREATE TABLE item_uses (item TEXT PRIMARY KEY, uses INTEGER NOT NULL, step INTEGER NOT NULL) STRICT;
CREATE TABLE went_back (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, from_version INTEGER NOT NULL, to_version INTEGER NOT NULL,
    by TEXT NOT NULL, reason TEXT NOT NULL
) STRICT;
CREATE TABLE waits (id INTEGER PRIMARY KEY AUTOINCREMENT, began_at REAL NOT NULL, ended_at REAL NOT NULL, reason TEXT NOT NULL) STRICT;
CREATE TABLE used (
    hour INTEGER NOT NULL, task TEXT NOT NULL, {_UNITS_OF_AN_HOUR}, PRIMARY KEY (hour, task)
) STRICT, WITHOUT ROWID;
{_kept_up("requests", "id", _USE_OF_ANSWERS)}{_kept_up("learning_spend", "call_key", _USE_OF_LEARNING)}
"""
"""Each table belongs to the module that reads and writes it. Of a call of learning, `chars` is how long its question was, for the pace of a
budget; `demonstrated` is how often an item's given answer had to be shown, `kept_answers` what the model keeps answering to questions like
it. `used` has what was used in each hour since the epoch and for each task, so that nobody adds up all answers."""


def open_database(path: Path) -> sqlite3.Connection:
    """Open or create the database. Raises StateError for one that is damaged, not ours or of another version, which is left as it is."""
    try:
        if path.exists():
            with closing(open_to_read(path)):
                pass
        connection = sqlite3.connect(path, check_same_thread=False)
        path.chmod(0o600)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _create_or_migrate(connection)
    except sqlite3.Error as error:
        raise StateError(f"{path}: cannot be used: {error}", hint="move the file away to start afresh") from error
    except OSError as error:
        raise StateError(
            f"{path}: cannot be used: {error.strerror}", hint="make it your own file, or choose another folder with --state"
        ) from error
    return connection


def open_in_memory() -> sqlite3.Connection:
    """The same tables in memory, gone with the process; for simulations of many agents."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    _create_or_migrate(connection)
    return connection


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open the database for reading, also while an agent uses it. Raises sqlite3.Error, and StateError for one of another version."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        _check_format(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _create_or_migrate(connection: sqlite3.Connection) -> None:
    version = _pragma(connection, "user_version")
    if version < FORMAT:
        script = "".join(_MIGRATIONS[version - 1 :]) if version else f"PRAGMA application_id = {APPLICATION_ID};{_TABLES}"
        connection.executescript(f"BEGIN;{script}PRAGMA user_version = {FORMAT};COMMIT;")


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    version = _pragma(connection, "user_version")
    if version and _pragma(connection, "application_id") != APPLICATION_ID:
        raise StateError(
            f"{path}: written by an earlier development version (commit 037616aa reads it)",
            hint="to start anew choose another folder with --state DIR, or move this folder aside",
        )
    if version > FORMAT:
        raise StateError(
            f"{path}: written by another version (format {version}, this program reads {FORMAT})",
            hint="use the newer version, or choose another folder with --state",
        )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
