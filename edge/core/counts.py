"""Counts, shares and times in words."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 call`, `2 calls`, `0 calls`. `plural`: where it takes more than an s, such as `calls wait`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def percent(share: float | None) -> str:
    """`31.2 %`, or `-` for None."""
    return "-" if share is None else f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
