"""Schema version 2: floors of budgets that are shared fairly, λ shared by tasks or devices with its members, and registered devices.

The database itself refuses overspend of what is set aside, too: `committed + reserved + set_aside <= limit` in every unit.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.ledger.stores.migrations.columns import UNITS, add_count, add_text, count, table, text

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns and tables."""
    _floors()
    _prices_of_steps()
    table("price", text("key", key=True), text("dual"), count("updates"), count("units"), sa.CheckConstraint("units >= 0"))
    member = (text("price", key=True), text("device", key=True), count("units"), count("seen_ms"))
    table("price_member", *member, sa.CheckConstraint("units >= 0"))
    used = sa.text("units > 0")
    op.create_index("price_member_seen", "price_member", ["seen_ms"], sqlite_where=used, postgresql_where=used)
    table("device", text("device", key=True), text("agent_version"), text("tasks"), *map(count, _DEVICE_COUNTS))


_DEVICE_COUNTS = ("first_seen_ms", "last_seen_ms", "disabled")


def _floors() -> None:
    for name in ("floor_ppm", "members"):
        add_count("budget", name)
    for unit in UNITS:
        used = f"committed_{unit} + reserved_{unit} + set_aside_{unit}"
        add_count("budget", f"floor_{unit}", f"floor_{unit} >= 0")
        add_count("budget", f"set_aside_{unit}", f"set_aside_{unit} >= 0 AND (limit_{unit} IS NULL OR {used} <= limit_{unit})")


def _prices_of_steps() -> None:
    add_text("step", "price", "")
    add_text("step", "dual_before", "0x0.0p+0")
    add_count("step", "round_units")
    op.execute("UPDATE step SET dual_before = dual WHERE closed = 1")
    add_text("task_state", "price", "")
