"""What settings and options take: the largest numbers, and the names of tasks."""

from __future__ import annotations

import re

MOST_THREADS = 512
"""What llama.cpp's thread pool can hold."""
MOST_LAYERS = 4096
LARGEST_ALPHA = 1e6
MOST_TOKENS = 1 << 20
MOST_STEPS = MOST_ITEMS = 10**9
LARGEST_SEED = (1 << 63) - 1
"""What SQLite keeps in one column."""

TASK_LABEL_FORM = "a label of 1 to 64 letters, digits and . _ : + -"
_TASK_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}")


def is_task_label(name: str) -> bool:
    """Whether a task may be called this (TASK_LABEL_FORM, a letter or digit first)."""
    return _TASK_LABEL.fullmatch(name) is not None
