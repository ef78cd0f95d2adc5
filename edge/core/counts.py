"""Counts in words. Knows the English plural; knows nothing of what is counted."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 call`, `2 calls`, `0 calls`. `plural`: where it takes more than an s, such as `calls wait`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
