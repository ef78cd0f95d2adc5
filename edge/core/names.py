"""Names as people wrote them: cut to what fits into a message, and which may label a task. Knows nothing of what is named."""

from __future__ import annotations

import re

TASK_LABEL_FORM = "a label of 1 to 64 letters, digits and . _ : + -"
_MOST_CHARS = 80
_TASK_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}")


def shown(name: str) -> str:
    """The name, or its beginning and its length where it is long."""
    return name if len(name) <= _MOST_CHARS else f"{name[:_MOST_CHARS]}... ({len(name)} characters)"


def is_task_label(name: str) -> bool:
    """Whether a task may be called this (TASK_LABEL_FORM, a letter or digit first)."""
    return _TASK_LABEL.fullmatch(name) is not None
