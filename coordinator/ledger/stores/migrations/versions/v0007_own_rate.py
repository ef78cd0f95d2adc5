"""Schema version 7: the rate that a step's policy would have had without a help bias, which λ acts on where there was one."""

from __future__ import annotations

from coordinator.ledger.stores.migrations.columns import add_text

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column; the steps that are there had no bias."""
    add_text("step", "own_rate", "")
