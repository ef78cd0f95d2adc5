"""`--since`: from when on something is told. Knows words, spans and dates; knows nothing of what is told."""

from __future__ import annotations

import re
from datetime import datetime

from edge.cli.saying import one_line
from edge.core.clock import day_began
from edge.core.errors import UsageError

_SPAN = re.compile(r"(\d{1,6})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def since_of(text: str, now: float) -> float:
    """Seconds since the epoch for yesterday, today, ever, 24h, 7d, 2026-03-01 or 2026-03-01T18:00 (local). Raises UsageError."""
    words = {"yesterday": day_began(now, days_before=1), "today": day_began(now), "ever": 0.0}
    if text in words:
        return words[text]
    if found := _SPAN.fullmatch(text):
        return max(0.0, now - int(found[1]) * _SECONDS[found[2]])
    try:
        moment = max(0.0, datetime.fromisoformat(text).astimezone().timestamp())
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"--since {one_line(text)}: no such time", hint="give yesterday, today, 24h, 7d, or 2026-03-01"
        ) from error
    if moment > now:
        raise UsageError(f"--since {one_line(text)}: lies in the future", hint="give yesterday, today, 24h, 7d, or 2026-03-01")
    return moment
