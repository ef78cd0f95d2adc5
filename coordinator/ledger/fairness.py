"""Fair shares of a common budget, as integer arithmetic. Knows limits, members and what each has used; knows nothing of rows or time.

Of N members each is to have a floor that the others cannot take. What is set aside is the part of all floors not used yet, and
used + set aside <= limit holds at every moment: a member below its floor always fits. A member that joins late, when the others have
taken more than their floors, lowers the floor of all to what the rest of the budget can still keep.
"""

from __future__ import annotations

from collections.abc import Sequence

PPM = 1_000_000


def floor_target(limit: int | None, ppm: int, members: int) -> int:
    """floor(limit·f/N) for f = ppm/10^6; 0 where nothing is limited or nobody shares."""
    return 0 if limit is None or members < 1 else limit * ppm // (PPM * members)


def highest_floor(target: int, used: Sequence[int], free: int) -> int:
    """The greatest floor up to `target` whose part not used yet, sum(max(0, floor - used)), is at most `free` (not negative)."""
    below = sorted(own for own in used if own < target)
    if sum(target - own for own in below) <= free:
        return target
    taken, floor = 0, 0
    for count, own in enumerate(below, 1):
        taken += own
        floor = (free + taken) // count
        if count == len(below) or floor <= below[count]:
            break
    return floor


def unused_floor(floor: int, used: Sequence[int]) -> int:
    """What has to be set aside for these members."""
    return sum(max(0, floor - own) for own in used)
