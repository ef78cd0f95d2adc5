"""Schema version 1: budgets, calls, attempts, steps, tasks and the journal; for PostgreSQL also the journal's head and the replicas.

The database itself refuses overspend (`committed + reserved <= limit` in every unit) and changes of the journal.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from coordinator.ledger.stores.migrations.columns import UNITS, count, counts, table, text

revision = "0001"
down_revision = None

_KEEP = """
CREATE FUNCTION journal_keeps() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the journal is append-only'; END $$
"""


def upgrade() -> None:
    """Make the tables."""
    postgres = op.get_bind().dialect.name == "postgresql"
    _budgets()
    _calls(postgres)
    _attempts(postgres)
    _steps()
    _journal(postgres)
    if postgres:
        _replicas()
    else:
        table("meta", text("name", key=True), count("value"))


def _budgets() -> None:
    within = (f"limit_{unit} IS NULL OR committed_{unit} + reserved_{unit} <= limit_{unit}" for unit in UNITS)
    positive = (f"{name}_{unit} >= 0" for name in ("committed", "reserved") for unit in UNITS)
    checks = (sa.CheckConstraint(rule) for rule in (*within, *positive))
    amounts = (*counts("asked", "limit", null=True), *counts("committed", "reserved"))
    table("budget", text("key", key=True), *amounts, *checks)


def _calls(postgres: bool) -> None:
    table(
        "call",
        *(text("device", key=True), text("key", key=True), text("fingerprint"), text("task"), count("step")),
        *(text("prompt_id"), text("model"), count("help_units"), text("state"), count("attempts"), *counts("charged")),
        *(count("input_tokens"), count("output_tokens"), text("result", null=True), text("result_sha256"), text("finish")),
        *(text("upstream_id"), text("reason"), text("source_key"), text("cache_key"), count("updated_ms")),
    )
    answered = "state = 'completed' AND result IS NOT NULL AND source_key = '' AND cache_key <> ''"
    _index("call_by_step", "call", ["device", "task", "step", "prompt_id"], "step >= 0")
    _index("call_by_cache_key", "call", ["cache_key", "updated_ms"], answered)
    _index("call_with_result", "call", ["updated_ms"], "result IS NOT NULL")


def _attempts(postgres: bool) -> None:
    budgets = sa.Column("budgets", sa.ARRAY(sa.Text(collation="C")), nullable=False) if postgres else text("budgets")
    within = " AND ".join(f"charged_{unit} <= hold_{unit}" for unit in UNITS)
    table(
        "attempt",
        *(text("device", key=True), text("key", key=True), count("number", key=True), text("state")),
        *(*counts("hold", "charged"), budgets, count("epoch"), count("lease_ms"), sa.CheckConstraint(within)),
    )
    _index("attempt_open", "attempt", ["lease_ms"], "state = 'dispatched'")


def _index(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def _steps() -> None:
    identity = (text("device", key=True), text("task", key=True))
    table(
        "step",
        *(*identity, count("step", key=True), count("planned_prompts"), count("group_size")),
        *(text("dual"), text("target_rate"), text("dual_lr"), count("call_credit", null=True), count("closed")),
        *(count("total_units"), count("help_units"), text("dual_after"), text("assist_rate"), text("discrepancies")),
    )
    identity = (text("device", key=True), text("task", key=True))
    reals = (text("dual"), text("target_rate"))
    table("task_state", *identity, *reals, count("next_step"), count("version"), *counts("charged"))


def _journal(postgres: bool) -> None:
    words = (text("kind"), text("body"), text("previous"), text("hash"))
    table("journal", count("seq", key=True), count("at_ms"), *words, rowid=True)
    if postgres:
        op.execute(_KEEP)
        op.execute(
            "CREATE TRIGGER journal_keeps BEFORE UPDATE OR DELETE ON journal FOR EACH ROW EXECUTE FUNCTION journal_keeps()"
        )
        op.execute("CREATE TRIGGER journal_stays BEFORE TRUNCATE ON journal EXECUTE FUNCTION journal_keeps()")
        return
    for name, change in (("journal_keeps", "UPDATE"), ("journal_stays", "DELETE")):
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {change} ON journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END"
        )


def _replicas() -> None:
    """The head is the one row that every writing transaction locks first; a replica lives while its lease does."""
    only_one: tuple[Any, ...] = (sa.Column("one", sa.Boolean(), primary_key=True), sa.CheckConstraint("one"))
    table("journal_head", *only_one, count("seq"), text("hash"))
    op.execute(f"INSERT INTO journal_head VALUES (true, 0, '{'0' * 64}')")  # noqa: S608 - a constant
    epoch = sa.Column("epoch", sa.BigInteger(), sa.Identity(always=True), primary_key=True)
    lease = sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False)
    table("replica", epoch, text("name"), lease)
