"""The ledger's tables in both databases, and the version that a ledger records.

The tables are one SQL script for both databases; PostgreSQL's words for it are `_IN_POSTGRES`. The database itself refuses overspend
(`committed + reserved + set_aside <= limit` in every unit of every budget) and changes of the journal.

A change of the tables raises VERSION, and comes with a migration of ledgers of the version before and a test of it.
"""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Any

from coordinator.ledger.accounts import UNITS
from edge.core.errors import StateError

if TYPE_CHECKING:
    import asyncpg

VERSION = 1
APPLICATION_ID = 0x65646765
"""Marks a SQLite file as a ledger of version 1 or later. Ledgers of development versions have none, but versions 1 to 9 of their own."""
_READS_DEVELOPMENT_VERSIONS = "037616aa"

_BUDGET_COLUMNS = "".join(
    f"""
  asked_{unit} INTEGER, limit_{unit} INTEGER,
  committed_{unit} INTEGER NOT NULL CHECK (committed_{unit} >= 0),
  reserved_{unit} INTEGER NOT NULL CHECK (reserved_{unit} >= 0),
  floor_{unit} INTEGER NOT NULL CHECK (floor_{unit} >= 0),
  set_aside_{unit} INTEGER NOT NULL CHECK (
    set_aside_{unit} >= 0 AND (limit_{unit} IS NULL OR committed_{unit} + reserved_{unit} + set_aside_{unit} <= limit_{unit})),"""
    for unit in UNITS
)
# Rows of calls and attempts lie in the order in which they came: in that of their keys, every row that a commit wrote would lie in a page
# of its own. A condition on the step in `call_by_step` would have it read from step 0 on, whichever step is asked for.
_TABLES = f"""
CREATE TABLE budget (
  key TEXT PRIMARY KEY,{_BUDGET_COLUMNS}
  floor_ppm INTEGER NOT NULL, members INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE call (
  device TEXT NOT NULL, key TEXT NOT NULL, fingerprint TEXT NOT NULL, task TEXT NOT NULL, step INTEGER NOT NULL,
  prompt_id TEXT NOT NULL, model TEXT NOT NULL, help_units INTEGER NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL,
  charged_calls INTEGER NOT NULL, charged_tokens INTEGER NOT NULL, charged_uusd INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, result TEXT, result_sha256 TEXT NOT NULL, finish TEXT NOT NULL,
  upstream_id TEXT NOT NULL, reason TEXT NOT NULL, source_key TEXT NOT NULL, cache_key TEXT NOT NULL, updated_ms INTEGER NOT NULL,
  beyond_text TEXT NOT NULL,
  PRIMARY KEY (device, key)
) STRICT;
CREATE INDEX call_by_step ON call (device, task, step, prompt_id);
CREATE INDEX call_by_cache_key ON call (cache_key, updated_ms)
  WHERE state = 'completed' AND result IS NOT NULL AND source_key = '' AND cache_key <> '';
CREATE INDEX call_with_result ON call (updated_ms) WHERE result IS NOT NULL;
CREATE TABLE attempt (
  device TEXT NOT NULL, key TEXT NOT NULL, number INTEGER NOT NULL, state TEXT NOT NULL,
  hold_calls INTEGER NOT NULL, hold_tokens INTEGER NOT NULL, hold_uusd INTEGER NOT NULL,
  charged_calls INTEGER NOT NULL, charged_tokens INTEGER NOT NULL, charged_uusd INTEGER NOT NULL,
  budgets TEXT[] NOT NULL, epoch INTEGER NOT NULL, lease_ms INTEGER NOT NULL,
  PRIMARY KEY (device, key, number),
  CHECK (charged_calls <= hold_calls AND charged_tokens <= hold_tokens AND charged_uusd <= hold_uusd)
) STRICT;
CREATE INDEX attempt_open ON attempt (lease_ms) WHERE state = 'dispatched';
CREATE TABLE step (
  device TEXT NOT NULL, task TEXT NOT NULL, step INTEGER NOT NULL, planned_prompts INTEGER NOT NULL, group_size INTEGER NOT NULL,
  dual TEXT NOT NULL, target_rate TEXT NOT NULL, dual_lr TEXT NOT NULL, call_credit INTEGER, closed INTEGER NOT NULL,
  total_units INTEGER NOT NULL, help_units INTEGER NOT NULL, dual_after TEXT NOT NULL, assist_rate TEXT NOT NULL,
  discrepancies TEXT NOT NULL, shared_dual TEXT NOT NULL, dual_before TEXT NOT NULL, round_units INTEGER NOT NULL,
  dual_proportional TEXT NOT NULL, dual_window INTEGER NOT NULL, dual_ceiling TEXT NOT NULL,
  own_rate TEXT NOT NULL, uncalled_units INTEGER NOT NULL,
  PRIMARY KEY (device, task, step)
) STRICT, WITHOUT ROWID;
CREATE TABLE task_state (
  device TEXT NOT NULL, task TEXT NOT NULL, dual TEXT NOT NULL, target_rate TEXT NOT NULL, next_step INTEGER NOT NULL,
  version INTEGER NOT NULL, charged_calls INTEGER NOT NULL, charged_tokens INTEGER NOT NULL, charged_uusd INTEGER NOT NULL,
  shared_dual TEXT NOT NULL, recent TEXT NOT NULL,
  PRIMARY KEY (device, task)
) STRICT, WITHOUT ROWID;
CREATE TABLE shared_dual (
  key TEXT PRIMARY KEY, dual TEXT NOT NULL, updates INTEGER NOT NULL, units INTEGER NOT NULL CHECK (units >= 0),
  recent TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE dual_member (
  shared_dual TEXT NOT NULL, device TEXT NOT NULL, units INTEGER NOT NULL CHECK (units >= 0), seen_ms INTEGER NOT NULL,
  PRIMARY KEY (shared_dual, device)
) STRICT, WITHOUT ROWID;
CREATE INDEX dual_member_seen ON dual_member (seen_ms) WHERE units > 0;
CREATE TABLE device (
  device TEXT PRIMARY KEY, agent_version TEXT NOT NULL, tasks TEXT NOT NULL, first_seen_ms INTEGER NOT NULL,
  last_seen_ms INTEGER NOT NULL, disabled INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE set_limits (scope TEXT PRIMARY KEY, changes TEXT NOT NULL, version INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE journal (
  seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
  previous TEXT NOT NULL, hash TEXT NOT NULL
) STRICT;
"""
_IN_SQLITE_ONLY = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TRIGGER journal_keeps BEFORE UPDATE ON journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER journal_stays BEFORE DELETE ON journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""
# The head is the one row that every writing transaction locks first; a replica lives while its lease does.
_IN_POSTGRES_ONLY = f"""
CREATE FUNCTION journal_keeps() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN RAISE EXCEPTION 'the journal is append-only'; END $$;
CREATE TRIGGER journal_keeps BEFORE UPDATE OR DELETE ON journal FOR EACH ROW EXECUTE FUNCTION journal_keeps();
CREATE TRIGGER journal_stays BEFORE TRUNCATE ON journal EXECUTE FUNCTION journal_keeps();
CREATE TABLE journal_head (one BOOLEAN PRIMARY KEY CHECK (one), seq BIGINT NOT NULL, hash TEXT COLLATE "C" NOT NULL);
INSERT INTO journal_head VALUES (true, 0, repeat('0', 64));
CREATE TABLE replica (
  epoch BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT COLLATE "C" NOT NULL, lease_until TIMESTAMPTZ NOT NULL
);
CREATE TABLE ledger_version (version BIGINT NOT NULL);
INSERT INTO ledger_version VALUES ({VERSION});
"""  # noqa: S608 - a number
_IN_POSTGRES = (
    (r"\bINTEGER\b", "BIGINT"),
    (
        r"\bTEXT\b(\[\])?",
        r'TEXT\1 COLLATE "C"',
    ),  # compared byte by byte, as SQLite does, so that sorted means the same everywhere
    (r" STRICT(, WITHOUT ROWID)?;", ";"),
)


def require_version(ledger: str, found: int) -> None:
    """Raises StateError when a ledger is of a version that this program does not know."""
    if found != VERSION:
        raise StateError(
            f"{ledger} is of version {found}, newer than {VERSION}, the newest this program knows",
            hint="update this program or choose another ledger",
        )


def development_version(ledger: str, start_anew: str) -> StateError:
    """What is said of a ledger from before version 1."""
    return StateError(
        f"{ledger} was written by an earlier development version; commit {_READS_DEVELOPMENT_VERSIONS} reads it",
        hint=f"{start_anew} to start anew; it is left as it is",
    )


# SQLite ---------------------------------------------------------------------------------------------------------------------------


def create_in_sqlite(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty database, in one transaction."""
    connection.executescript(f"BEGIN IMMEDIATE; {_TABLES.replace('TEXT[]', 'TEXT')} {_IN_SQLITE_ONLY} COMMIT;")


def is_sqlite_ledger(connection: sqlite3.Connection) -> bool:
    """Whether the database is a ledger of version 1 or later."""
    return _number(connection, "application_id") == APPLICATION_ID


def refuse_other_sqlite_version(connection: sqlite3.Connection, path: object) -> None:
    """Raises StateError for a ledger of another version. What is no ledger passes. Changes nothing."""
    version = _number(connection, "user_version")
    if is_sqlite_ledger(connection):
        require_version(f"ledger {path}", version)
    elif version > 0:
        named = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('journal', 'budget', 'attempt', 'meta')"
        if connection.execute(named).fetchone()[0] == 4:
            raise development_version(f"ledger {path}", "move it away, or choose another state folder,")


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


# PostgreSQL -----------------------------------------------------------------------------------------------------------------------


async def has_postgres_ledger(connection: asyncpg.Connection[Any]) -> bool:
    """Whether a database has a ledger of this version; False: it has no tables of one. Raises StateError for any other. Changes nothing."""
    tables = await connection.fetch(
        "SELECT name FROM unnest(ARRAY['ledger_version', 'alembic_version', 'journal', 'call']) name WHERE to_regclass(name) IS NOT NULL"
    )
    found = {row["name"] for row in tables}
    if not found:
        return False
    if "ledger_version" in found:
        require_version("the ledger in PostgreSQL", await connection.fetchval("SELECT version FROM ledger_version"))
        return True
    if {"alembic_version", "journal", "call"} <= found:
        raise development_version("the ledger in PostgreSQL", "choose another database")
    raise StateError("the PostgreSQL database holds tables that are not a ledger's", hint="give the ledger a database of its own")


async def create_in_postgres(connection: asyncpg.Connection[Any]) -> None:
    """Make the tables where there are none, in one transaction; one process at a time. Whatever the driver raises goes through."""
    # Locked before the transaction begins: only its beginning makes the session see the tables that another one made meanwhile.
    await connection.execute("SELECT pg_advisory_lock(hashtext('edge-coordinator schema'))")
    try:
        async with connection.transaction():
            if await has_postgres_ledger(connection):
                return
            script = _TABLES
            for word, in_postgres in _IN_POSTGRES:
                script = re.sub(word, in_postgres, script)
            await connection.execute(script + _IN_POSTGRES_ONLY)
    finally:
        await connection.execute("SELECT pg_advisory_unlock(hashtext('edge-coordinator schema'))")
