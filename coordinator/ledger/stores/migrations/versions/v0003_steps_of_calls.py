"""Schema version 3: the index of a step's calls covers every call.

With a condition on the step it was read from step 0 on, whichever step was asked for.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the index anew."""
    op.drop_index("call_by_step", "call")
    op.create_index("call_by_step", "call", ["device", "task", "step", "prompt_id"])
