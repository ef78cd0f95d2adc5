"""Whether one version is worse than another, or chance.

Both are one-sided and hold at 5 %. So the least evidence is five items lost with none gained (1/32), and for verdicts two full hands:
with fewer than eight of each version nothing is concluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

LEVEL = 0.05
LEAST_VERDICTS = 8


def lost_more(lost: int, gained: int, level: float = LEVEL) -> bool:
    """Sign test over the items that changed: is losing so many and gaining so few unlikely where both are as probable?"""
    changed = lost + gained
    return changed > 0 and sum(comb(changed, k) for k in range(lost, changed + 1)) / 2**changed <= level


def strict_level(changed: Sequence[int], level: float = LEVEL) -> float:
    """The level for each of several sign tests so that all together err with probability `level` at most (Tarone 1990).

    `changed`: how many items changed in each. A test with so few that it could not reach the level costs the others nothing.
    """
    for tests in range(1, len(changed) + 1):
        if sum(2.0**-count <= level / tests for count in changed) <= tests:
            return level / tests
    return level


def liked_less(bad: int, total: int, bad_before: int, total_before: int, level: float = LEVEL) -> bool:
    """Fisher's exact test over verdicts: is the share of bad ones with this version above the one before beyond chance?

    False with fewer than 8 verdicts of either. Raises ValueError for counts that cannot be.
    """
    if not (0 <= bad <= total and 0 <= bad_before <= total_before):
        raise ValueError(f"{bad} of {total} and {bad_before} of {total_before} are no counts")
    if min(total, total_before) < LEAST_VERDICTS:
        return False
    all_bad, everyone = bad + bad_before, total + total_before
    tail = sum(comb(all_bad, k) * comb(everyone - all_bad, total - k) for k in range(bad, min(all_bad, total) + 1))
    return tail / comb(everyone, total) <= level
