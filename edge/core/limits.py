"""What settings and options take: the largest numbers, the names of tasks, private terms and never-send rules."""

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
OWN_LABEL = "chat"
"""The label of a person's question that has none."""
_TASK_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}")


def is_task_label(name: str) -> bool:
    """Whether a task may be called this (TASK_LABEL_FORM, a letter or digit first)."""
    return _TASK_LABEL.fullmatch(name) is not None


LIKE = "like:"
"""What a rule begins with that is a pattern: `#` is any digit, `?` any character, `*` up to 64 characters."""
MOST_STARS = 2
_FEWEST, _MOST = 2, 500


def checked_rule(rule: str) -> str:
    """A never-send rule as it is. Raises ValueError, in one line, for one that is too short, too long or has too many stars."""
    is_pattern = rule.startswith(LIKE)
    own = [char for char in rule.removeprefix(LIKE) if not (char.isspace() or (is_pattern and char in "*?"))]
    if len(own) < _FEWEST:
        raise ValueError(f"the rule {rule!r} is too short: it needs two characters of its own")
    if len(rule) > _MOST:
        raise ValueError(f"a rule has {len(rule)} characters; at most {_MOST} are allowed")
    if is_pattern and rule.count("*") > MOST_STARS:
        raise ValueError(f"the rule {rule!r} has {rule.count('*')} stars; at most {MOST_STARS} are allowed")
    return rule


def checked_term(term: str) -> str:
    """A private term as it is. Raises ValueError, in one line, for one that is too short to be distinguished, or is too long."""
    if sum(char.isalnum() for char in term) < _FEWEST:
        raise ValueError(f"the term {term!r} is too short: it needs two letters or digits")
    if len(term) > _MOST:
        raise ValueError(f"a term has {len(term)} characters; at most {_MOST} are allowed")
    return term
