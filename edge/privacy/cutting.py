"""Cutting what is private out of a text that may be shortened and needs no way back, such as a hint.

Stricter than redaction: whatever has the form of an address or a key goes, however plain, and so does every number of more than 8
digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from edge.core.secret_forms import without_secrets
from edge.privacy.registry import CUT, Registry

MOST_DIGITS = 8
_ADDRESS = re.compile(r"[^\s@<>\"'()]{1,64}@[^\s@<>\"'()]{1,250}\.\w+")
_GROUPED = re.compile(r"\d+(?:[ ,.()/\-]\d{2,})*")
_LONG_WORD = re.compile(r"(?<![A-Za-z0-9+/_-])(?=[A-Za-z0-9+/_-]*\d)(?=[A-Za-z0-9+/_-]*[A-Za-z])[A-Za-z0-9+/_-]{24,}={0,2}")


def cutter(registry: Registry) -> Callable[[str], str]:
    """Cuts what this registry knows, and what is cut in any case."""

    def cut(text: str) -> str:
        text = _LONG_WORD.sub(CUT, _ADDRESS.sub(CUT, without_secrets(registry.cut(text))))
        return _GROUPED.sub(_long_number_cut, text)

    return cut


private_cut = cutter(Registry())
"""Without a person's own terms."""


def _long_number_cut(found: re.Match[str]) -> str:
    digits = sum(char.isdigit() for char in found.group())
    return CUT if digits > MOST_DIGITS else found.group()
