"""Schema version 3: limits that were set at run time, for all processes that share the ledger. The index of a step's calls covers every
call, also in ledgers that version 2 made with a condition on the step.
"""

from __future__ import annotations

from alembic import op

from coordinator.stores.migrations.columns import count, table, text

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table; make the index anew."""
    op.drop_index("call_by_step", "call")
    op.create_index("call_by_step", "call", ["device", "task", "step", "prompt_id"])
    table("set_limits", text("scope", key=True), text("changes"), count("version"))
