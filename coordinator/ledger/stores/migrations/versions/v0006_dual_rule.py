"""Schema version 6: the rule of λ that a step was opened with besides η, and what λ holds of the last reports in proportion."""

from __future__ import annotations

from coordinator.ledger.stores.migrations.columns import add_count, add_text

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns; steps that are there keep the integral rule."""
    add_text("step", "dual_proportional", "0x0.0p+0")
    add_count("step", "dual_window", default=1)
    add_text("step", "dual_ceiling", "inf")
    add_text("task_state", "recent", "")
    add_text("price", "recent", "")
