"""Names as people wrote them, cut to what fits into a message. Knows lengths; knows nothing of what is named."""

from __future__ import annotations

_MOST_CHARS = 80


def shown(name: str) -> str:
    """The name, or its beginning and its length where it is long."""
    return name if len(name) <= _MOST_CHARS else f"{name[:_MOST_CHARS]}... ({len(name)} characters)"
