"""Calendar days where this machine is. Knows midnights, also of days on which the clocks change; reads no clock itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def local_day(at: float) -> str:
    """The day of a time in seconds since the epoch, as YYYY-MM-DD."""
    return datetime.fromtimestamp(at, UTC).astimezone().date().isoformat()


def day_began(at: float, days_before: int = 0) -> float:
    """When the day of a time began, or a day so many days before it, in seconds since the epoch.

    Midnight is looked up anew for that day: where the clocks change it has another offset than the rest of the day.
    """
    midnight = datetime.fromtimestamp(at, UTC).astimezone().replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    return (midnight - timedelta(days=days_before)).astimezone().timestamp()
