"""Schema version 4: limits that were set at run time, for all processes that share the ledger."""

from __future__ import annotations

from coordinator.ledger.stores.migrations.columns import count, table, text

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the table."""
    table("set_limits", text("scope", key=True), text("changes"), count("version"))
