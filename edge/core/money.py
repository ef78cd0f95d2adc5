"""How sums are written for people. Knows micro-USD; knows nothing of budgets."""

from __future__ import annotations


def dollars(uusd: int) -> str:
    """Micro-USD as dollars, with as many digits as small sums need."""
    return f"${uusd / 1e6:.2f}" if uusd >= 1_000_000 else f"${uusd / 1e6:.6f}".rstrip("0").ljust(5, "0")
