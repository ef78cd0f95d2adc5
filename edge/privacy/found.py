"""What was found in a text, and which of overlapping findings counts. Knows spans and kinds; knows nothing of how things are found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["term", "secret", "email", "card", "iban", "phone", "ip", "path"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Every kind; where two findings of the same length begin at the same place, the earlier kind counts."""


@dataclass(frozen=True, slots=True)
class Found:
    """One private thing: text[start:end]. Two with the same `value` are the same thing, however they are written."""

    start: int
    end: int
    kind: Kind
    value: str


def resolved(found: Iterable[Found]) -> list[Found]:
    """Findings that do not overlap, in the order of the text: of those that do the longest counts, then the first, then the kind.

    What a longer finding covers in part is not left over in pieces: the longer one grows to cover both.
    """
    kept: list[Found] = []
    for one in sorted(found, key=lambda one: (one.start, -one.end, KINDS.index(one.kind))):
        if not kept or one.start >= kept[-1].end:
            kept.append(one)
        elif one.end > kept[-1].end:
            kept[-1] = _grown(kept[-1], one)
    return kept


def _grown(first: Found, second: Found) -> Found:
    longer = max((first, second), key=lambda one: (one.end - one.start, -KINDS.index(one.kind)))
    start, end = first.start, second.end
    return Found(start, end, longer.kind, f"{first.value}\x1f{second.value}")
