"""How the revisions say columns and tables. Knows the types of both databases; knows nothing of what is kept in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

UNITS = ("calls", "tokens", "uusd")


def table(name: str, *parts: Any, rowid: bool = False) -> None:
    """Make a table; on SQLite a strict one, without row numbers of its own unless asked for."""
    op.create_table(name, *parts, sqlite_strict=True, sqlite_with_rowid=rowid)


def text(name: str, *, key: bool = False, null: bool = False) -> sa.Column[Any]:
    """A text, compared byte by byte on every database, so that sorted means the same everywhere."""
    kind = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return sa.Column(name, kind, primary_key=key, nullable=null)


def count(name: str, *, key: bool = False, null: bool = False) -> sa.Column[Any]:
    """A whole number."""
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column(name, kind, primary_key=key, nullable=null, autoincrement=False)


def add_count(to: str, name: str, rule: str = "", default: int = 0) -> None:
    """A whole number more for a table, `default` in the rows that are there, held to `rule`."""
    _add(to, f"{name} {_kind('BIGINT', 'INTEGER')} NOT NULL DEFAULT {default}" + (f" CHECK ({rule})" if rule else ""))


def add_text(to: str, name: str, default: str) -> None:
    """A text more for a table, `default` in the rows that are there."""
    kind = _kind('TEXT COLLATE "C"', "TEXT")
    _add(to, f"{name} {kind} NOT NULL DEFAULT '{default}'")


def _kind(postgres: str, sqlite: str) -> str:
    return postgres if op.get_bind().dialect.name == "postgresql" else sqlite


def _add(to: str, column: str) -> None:
    op.execute(f"ALTER TABLE {to} ADD COLUMN {column}")


def counts(*names: str, null: bool = False) -> Iterator[sa.Column[Any]]:
    """One number per unit for each name."""
    return (count(f"{name}_{unit}", null=null) for name in names for unit in UNITS)
