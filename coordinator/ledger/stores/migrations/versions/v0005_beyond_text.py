"""Schema version 5: what an answer had besides its text, such as calls of tools."""

from __future__ import annotations

from coordinator.ledger.stores.migrations.columns import add_text

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column."""
    add_text("call", "beyond_text", "")
