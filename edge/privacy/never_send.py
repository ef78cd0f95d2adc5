"""What must never leave the device. Knows a person's rules and whether a text breaks one; knows nothing of who wanted to send it.

A rule is a plain text, compared without regard to case, accents, look-alikes and white space; or `like:` and a pattern, in which `#` is
any digit, `?` any character and `*` up to 64 characters. There are no regular expressions, so that no rule can take longer than in
proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from edge.core.privacy_rules import LIKE, checked_rule
from edge.privacy.views import folded, views_of

_STANDS_FOR = {"#": r"\d", "?": ".", "*": ".{0,64}?"}


class NeverSend:
    """A person's rules, ready to be asked."""

    def __init__(self, rules: Sequence[str]) -> None:
        """Raises ValueError for a rule that cannot be used."""
        self._patterns = [re.compile(_expression(rule)) for rule in rules]

    def broken(self, texts: Sequence[str]) -> int:
        """The number, from 1, of the first rule that a text breaks; 0 where none does."""
        if not self._patterns:
            return 0
        shown = [folded(view.text) for text in texts for view in views_of(text)]
        for number, pattern in enumerate(self._patterns, 1):
            if any(pattern.search(text) for text in shown):
                return number
        return 0


def _expression(rule: str) -> str:
    checked_rule(rule)
    if not rule.startswith(LIKE):
        return re.escape(folded(rule))
    return "".join(_STANDS_FOR.get(char, re.escape(char)) for char in folded(rule.removeprefix(LIKE)))
