"""Seeded randomness by name.

A stream is addressed by words and numbers, e.g. `stream(7, "rollout", step, prompt, sample)`, so a draw never depends on which other
draws happened before it. That makes a run replayable whatever the batching and whatever was resumed.
"""

from __future__ import annotations

import hashlib
import random

Name = str | int


def derive_seed(root: int, *names: Name) -> int:
    """A 64-bit seed for the stream called `names` under `root`; equal inputs give equal seeds on every platform."""
    text = "\x1f".join([str(root), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def stream(root: int, *names: Name) -> random.Random:
    """An independent generator for the stream called `names` under `root`."""
    return random.Random(derive_seed(root, *names))
