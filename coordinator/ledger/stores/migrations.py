"""The ledger's schema, version by version, and how a ledger of an older version is brought to the newest one.

Each version is one SQL script for both databases; PostgreSQL's words for it are `_IN_POSTGRES`. A new ledger runs all of them. The database
itself refuses overspend (`committed + reserved + set_aside <= limit` in every unit of every budget) and changes of the journal.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from coordinator.ledger.accounts import UNITS
from edge.core.errors import StateError
from edge.core.files import replacing

if TYPE_CHECKING:
    import asyncpg

_FLOORS = "".join(
    f"""
ALTER TABLE budget ADD COLUMN floor_{unit} INTEGER NOT NULL DEFAULT 0 CHECK (floor_{unit} >= 0);
ALTER TABLE budget ADD COLUMN set_aside_{unit} INTEGER NOT NULL DEFAULT 0 CHECK (
  set_aside_{unit} >= 0 AND (limit_{unit} IS NULL OR committed_{unit} + reserved_{unit} + set_aside_{unit} <= limit_{unit}));
"""
    for unit in UNITS
)


@dataclass(frozen=True, slots=True)
class Version:
    """What a version adds in both databases, and what only in one of them."""

    both: str
    sqlite: str = ""
    postgres: str = ""


Schema = tuple[Version, ...]
LEDGER: Schema = (
    Version(
        """
CREATE TABLE budget (
  key TEXT PRIMARY KEY,
  asked_calls INTEGER, asked_tokens INTEGER, asked_uusd INTEGER,
  limit_calls INTEGER, limit_tokens INTEGER, limit_uusd INTEGER,
  committed_calls INTEGER NOT NULL CHECK (committed_calls >= 0),
  committed_tokens INTEGER NOT NULL CHECK (committed_tokens >= 0),
  committed_uusd INTEGER NOT NULL CHECK (committed_uusd >= 0),
  reserved_calls INTEGER NOT NULL CHECK (reserved_calls >= 0),
  reserved_tokens INTEGER NOT NULL CHECK (reserved_tokens >= 0),
  reserved_uusd INTEGER NOT NULL CHECK (reserved_uusd >= 0),
  CHECK (limit_calls IS NULL OR committed_calls + reserved_calls <= limit_calls),
  CHECK (limit_tokens IS NULL OR committed_tokens + reserved_tokens <= limit_tokens),
  CHECK (limit_uusd IS NULL OR committed_uusd + reserved_uusd <= limit_uusd)
) STRICT, WITHOUT ROWID;
CREATE TABLE call (
  device TEXT NOT NULL, key TEXT NOT NULL, fingerprint TEXT NOT NULL, task TEXT NOT NULL, step INTEGER NOT NULL,
  prompt_id TEXT NOT NULL, model TEXT NOT NULL, help_units INTEGER NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL,
  charged_calls INTEGER NOT NULL, charged_tokens INTEGER NOT NULL, charged_uusd INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, result TEXT, result_sha256 TEXT NOT NULL, finish TEXT NOT NULL,
  upstream_id TEXT NOT NULL, reason TEXT NOT NULL, source_key TEXT NOT NULL, cache_key TEXT NOT NULL, updated_ms INTEGER NOT NULL,
  PRIMARY KEY (device, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX call_by_step ON call (device, task, step, prompt_id) WHERE step >= 0;
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
) STRICT, WITHOUT ROWID;
CREATE INDEX attempt_open ON attempt (lease_ms) WHERE state = 'dispatched';
CREATE TABLE step (
  device TEXT NOT NULL, task TEXT NOT NULL, step INTEGER NOT NULL, planned_prompts INTEGER NOT NULL, group_size INTEGER NOT NULL,
  dual TEXT NOT NULL, target_rate TEXT NOT NULL, dual_lr TEXT NOT NULL, call_credit INTEGER, closed INTEGER NOT NULL,
  total_units INTEGER NOT NULL, help_units INTEGER NOT NULL, dual_after TEXT NOT NULL, assist_rate TEXT NOT NULL,
  discrepancies TEXT NOT NULL,
  PRIMARY KEY (device, task, step)
) STRICT, WITHOUT ROWID;
CREATE TABLE task_state (
  device TEXT NOT NULL, task TEXT NOT NULL, dual TEXT NOT NULL, target_rate TEXT NOT NULL, next_step INTEGER NOT NULL,
  version INTEGER NOT NULL, charged_calls INTEGER NOT NULL, charged_tokens INTEGER NOT NULL, charged_uusd INTEGER NOT NULL,
  PRIMARY KEY (device, task)
) STRICT, WITHOUT ROWID;
CREATE TABLE journal (
  seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
  previous TEXT NOT NULL, hash TEXT NOT NULL
) STRICT;
""",
        sqlite="""
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TRIGGER journal_keeps BEFORE UPDATE ON journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER journal_stays BEFORE DELETE ON journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
""",
        # The head is the one row that every writing transaction locks first; a replica lives while its lease does.
        postgres="""
CREATE FUNCTION journal_keeps() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN RAISE EXCEPTION 'the journal is append-only'; END $$;
CREATE TRIGGER journal_keeps BEFORE UPDATE OR DELETE ON journal FOR EACH ROW EXECUTE FUNCTION journal_keeps();
CREATE TRIGGER journal_stays BEFORE TRUNCATE ON journal EXECUTE FUNCTION journal_keeps();
CREATE TABLE journal_head (one BOOLEAN PRIMARY KEY CHECK (one), seq BIGINT NOT NULL, hash TEXT COLLATE "C" NOT NULL);
INSERT INTO journal_head VALUES (true, 0, repeat('0', 64));
CREATE TABLE replica (
  epoch BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT COLLATE "C" NOT NULL, lease_until TIMESTAMPTZ NOT NULL
);
""",
    ),
    # Floors of budgets that are shared fairly, λ shared by tasks or devices with its members, and registered devices.
    Version(
        f"""
ALTER TABLE budget ADD COLUMN floor_ppm INTEGER NOT NULL DEFAULT 0;
ALTER TABLE budget ADD COLUMN members INTEGER NOT NULL DEFAULT 0;
{_FLOORS}
ALTER TABLE step ADD COLUMN price TEXT NOT NULL DEFAULT '';
ALTER TABLE step ADD COLUMN dual_before TEXT NOT NULL DEFAULT '0x0.0p+0';
ALTER TABLE step ADD COLUMN round_units INTEGER NOT NULL DEFAULT 0;
UPDATE step SET dual_before = dual WHERE closed = 1;
ALTER TABLE task_state ADD COLUMN price TEXT NOT NULL DEFAULT '';
CREATE TABLE price (
  key TEXT PRIMARY KEY, dual TEXT NOT NULL, updates INTEGER NOT NULL, units INTEGER NOT NULL CHECK (units >= 0)
) STRICT, WITHOUT ROWID;
CREATE TABLE price_member (
  price TEXT NOT NULL, device TEXT NOT NULL, units INTEGER NOT NULL CHECK (units >= 0), seen_ms INTEGER NOT NULL,
  PRIMARY KEY (price, device)
) STRICT, WITHOUT ROWID;
CREATE INDEX price_member_seen ON price_member (seen_ms) WHERE units > 0;
CREATE TABLE device (
  device TEXT PRIMARY KEY, agent_version TEXT NOT NULL, tasks TEXT NOT NULL, first_seen_ms INTEGER NOT NULL,
  last_seen_ms INTEGER NOT NULL, disabled INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"""  # noqa: S608 - names are ours
    ),
    # With a condition on the step, the index was read from step 0 on, whichever step was asked for.
    Version("DROP INDEX call_by_step; CREATE INDEX call_by_step ON call (device, task, step, prompt_id);"),
    # Limits that were set at run time, for all processes that share the ledger.
    Version(
        "CREATE TABLE set_limits (scope TEXT PRIMARY KEY, changes TEXT NOT NULL, version INTEGER NOT NULL) STRICT, WITHOUT ROWID;"
    ),
    # What an answer had besides its text, such as calls of tools.
    Version("ALTER TABLE call ADD COLUMN beyond_text TEXT NOT NULL DEFAULT '';"),
    # The rule of λ that a step was opened with besides η, and what λ holds of the last reports in proportion.
    Version("""
ALTER TABLE step ADD COLUMN dual_proportional TEXT NOT NULL DEFAULT '0x0.0p+0';
ALTER TABLE step ADD COLUMN dual_window INTEGER NOT NULL DEFAULT 1;
ALTER TABLE step ADD COLUMN dual_ceiling TEXT NOT NULL DEFAULT 'inf';
ALTER TABLE task_state ADD COLUMN recent TEXT NOT NULL DEFAULT '';
ALTER TABLE price ADD COLUMN recent TEXT NOT NULL DEFAULT '';
"""),
    # The rate that a step's policy would have had without a help bias, which λ acts on where there was one.
    Version("ALTER TABLE step ADD COLUMN own_rate TEXT NOT NULL DEFAULT '';"),
    # What a report said besides, by which it is known when it comes again.
    Version("ALTER TABLE step ADD COLUMN uncalled_units INTEGER;"),
    # Calls and attempts in the order in which they came: in that of their keys, every row that a commit wrote lay in a page of its own.
    Version(
        "",
        sqlite="""
CREATE TABLE arrived_call (
  device TEXT NOT NULL, key TEXT NOT NULL, fingerprint TEXT NOT NULL, task TEXT NOT NULL, step INTEGER NOT NULL,
  prompt_id TEXT NOT NULL, model TEXT NOT NULL, help_units INTEGER NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL,
  charged_calls INTEGER NOT NULL, charged_tokens INTEGER NOT NULL, charged_uusd INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, result TEXT, result_sha256 TEXT NOT NULL, finish TEXT NOT NULL,
  upstream_id TEXT NOT NULL, reason TEXT NOT NULL, source_key TEXT NOT NULL, cache_key TEXT NOT NULL, updated_ms INTEGER NOT NULL,
  beyond_text TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (device, key)
) STRICT;
INSERT INTO arrived_call SELECT * FROM call ORDER BY updated_ms, device, key;
DROP TABLE call;
ALTER TABLE arrived_call RENAME TO call;
CREATE INDEX call_by_step ON call (device, task, step, prompt_id);
CREATE INDEX call_by_cache_key ON call (cache_key, updated_ms)
  WHERE state = 'completed' AND result IS NOT NULL AND source_key = '' AND cache_key <> '';
CREATE INDEX call_with_result ON call (updated_ms) WHERE result IS NOT NULL;
CREATE TABLE arrived_attempt (
  device TEXT NOT NULL, key TEXT NOT NULL, number INTEGER NOT NULL, state TEXT NOT NULL,
  hold_calls INTEGER NOT NULL, hold_tokens INTEGER NOT NULL, hold_uusd INTEGER NOT NULL,
  charged_calls INTEGER NOT NULL, charged_tokens INTEGER NOT NULL, charged_uusd INTEGER NOT NULL,
  budgets TEXT NOT NULL, epoch INTEGER NOT NULL, lease_ms INTEGER NOT NULL,
  PRIMARY KEY (device, key, number),
  CHECK (charged_calls <= hold_calls AND charged_tokens <= hold_tokens AND charged_uusd <= hold_uusd)
) STRICT;
INSERT INTO arrived_attempt SELECT * FROM attempt ORDER BY lease_ms, device, key, number;
DROP TABLE attempt;
ALTER TABLE arrived_attempt RENAME TO attempt;
CREATE INDEX attempt_open ON attempt (lease_ms) WHERE state = 'dispatched';
""",
    ),
)
_IN_POSTGRES = (
    (r"\bINTEGER\b", "BIGINT"),
    (
        r"\bTEXT\b(\[\])?",
        r'TEXT\1 COLLATE "C"',
    ),  # compared byte by byte, as SQLite does, so that sorted means the same everywhere
    (r" STRICT(, WITHOUT ROWID)?;", ";"),
)


# SQLite: the version is the file's user_version -----------------------------------------------------------------------------------


def upgrade_sqlite(connection: sqlite3.Connection, found: int, schema: Schema = LEDGER) -> None:
    """Make the tables (`found` 0), or those that a ledger of version `found` lacks, in one transaction."""
    scripts = "".join(version.both.replace("TEXT[]", "TEXT") + version.sqlite for version in schema[found:])
    connection.executescript(f"BEGIN IMMEDIATE; {scripts} PRAGMA user_version = {len(schema)}; COMMIT;")


def migrate_sqlite_file(path: Path, found: int, schema: Schema = LEDGER) -> Path:
    """Bring a closed SQLite ledger of version `found` to the newest one; returns the backup made beside it first.

    All in one transaction: a failure leaves the file as it was. Raises StateError.
    """
    backup = path.with_name(f"{path.name}.v{found}.backup")
    for draft in path.parent.glob(f".{backup.name}.*.draft"):  # of a migration that was killed
        draft.unlink(missing_ok=True)
    copy_database(path, backup)
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            upgrade_sqlite(connection, found, schema)
    except sqlite3.Error as error:
        message = f"ledger {path} cannot be migrated from version {found}: {error}"
        raise StateError(message, hint=f"a copy is {backup}") from error
    return backup


def copy_database(path: Path, copy: Path) -> None:
    """The database as it is now in one file, also while it is being written, what its write-ahead log holds included; whole and on the disk
    before it takes its name. Raises OSError, sqlite3.Error."""
    with replacing(copy) as draft:
        draft.touch(mode=0o600)
        with (
            contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as source,
            contextlib.closing(sqlite3.connect(draft)) as target,
        ):
            source.backup(target)  # in one step, which sees one state
            target.execute("PRAGMA journal_mode = DELETE")  # one file, with none beside it


def migrated_copy(source: sqlite3.Connection, found: int) -> sqlite3.Connection:
    """A copy in memory of a ledger of version `found`, brought to the newest version. The caller closes it; the source stays as it is."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    try:
        source.backup(copy)
        upgrade_sqlite(copy, found)
    except sqlite3.Error as error:
        copy.close()
        raise StateError(f"a ledger of version {found} cannot be read: {error}") from error
    return copy


# PostgreSQL: the version is kept where earlier releases' migration tool kept it ----------------------------------------------------


async def postgres_version(connection: asyncpg.Connection[Any]) -> int | None:
    """The version of the tables; None for a database without a ledger. Raises StateError."""
    if not await connection.fetchval("SELECT to_regclass('alembic_version') IS NOT NULL"):
        return None
    found = await connection.fetchval("SELECT version_num FROM alembic_version")
    if found is None or not re.fullmatch(r"\d{4}", found):
        raise StateError(
            f"the PostgreSQL database is not a ledger (revision {found})", hint="give the ledger a database of its own"
        )
    return int(found)


async def migrate_postgres(connection: asyncpg.Connection[Any], schema: Schema = LEDGER) -> None:
    """Make or upgrade the tables of a PostgreSQL database in one transaction; one process at a time. Whatever the driver raises goes
    through."""
    # Locked before the transaction begins: only its beginning makes the session see the tables that another one made meanwhile.
    await connection.execute("SELECT pg_advisory_lock(hashtext('edge-coordinator schema'))")
    try:
        async with connection.transaction():
            found = await postgres_version(connection) or 0
            if found >= len(schema):
                return
            for version in schema[found:]:
                script = version.both
                for word, in_postgres in _IN_POSTGRES:
                    script = re.sub(word, in_postgres, script)
                if script := script + version.postgres:  # some versions change SQLite's files alone
                    await connection.execute(script)
            await connection.execute("CREATE TABLE IF NOT EXISTS alembic_version (version_num VARCHAR(32) PRIMARY KEY)")
            await connection.execute("DELETE FROM alembic_version")
            await connection.execute(f"INSERT INTO alembic_version VALUES ('{len(schema):04d}')")  # noqa: S608 - a number
    finally:
        await connection.execute("SELECT pg_advisory_unlock(hashtext('edge-coordinator schema'))")
