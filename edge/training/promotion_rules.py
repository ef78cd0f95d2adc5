"""The rules by which a candidate adapter may serve.

No task's anchors (a few stored items) may have fallen too far below what the best adapter so far made of them, nor those of all tasks
together. A fall counts where it is larger than allowed and beyond chance as well, so that no single item, and no small file of them,
decides. How often a candidate asks is not judged: the help bias holds the rate while learning, the dial when people are answered.

Significance tests are one-sided at the 5 % level. So the least evidence is five items lost with none gained (1/32). For ratings it is
eight of each version: with fewer nothing is concluded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from types import MappingProxyType

from edge.core.formatting import shown, visible

LEVEL = 0.05
LEAST_VERDICTS = 8
SHARE_OF_ALL = 0.25
"""All sources together may fall by this share of what one of them may: 5 points where one has 20."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class AnchorScore:
    """What became of one source's anchors: how many were right with the best adapter so far, how many of these the candidate lost, and how
    many it gained that were wrong. `example`: the question of one that was lost."""

    source: str
    items: int
    right: int
    lost: int
    gained: int
    example: str = ""

    @property
    def before(self) -> float:
        """Share right with the best adapter so far; 0 of none."""
        return self.right / self.items if self.items else 0.0

    @property
    def after(self) -> float:
        """Share right with the candidate; 0 of none."""
        return (self.right - self.lost + self.gained) / self.items if self.items else 0.0


@dataclass(frozen=True, slots=True)
class RateScore:
    """Shares of validly asking responses: the target, the candidate's last steps, and what it was before (None: not known)."""

    target: float
    now: float
    before: float | None


def refusal_of(anchors: Sequence[AnchorScore], max_drop: float, of_source: Mapping[str, float] = MappingProxyType({})) -> str:
    """Why the candidate may not serve, in one line; "" when it may.

    `max_drop`: the largest fall of a task's share right, and SHARE_OF_ALL of it for all tasks together; 1: any fall is allowed.
    `of_source`: that of sources for which it is another one.
    """
    # A source that fell by more than allowed and beyond chance, whatever the number of sources; or all of them together, whose many
    # items show a smaller fall. With several sources each of the two tests has half of the level.
    half = LEVEL / 2 if len(anchors) > 1 else LEVEL
    level = strict_level([score.lost + score.gained for score in anchors], half)
    fallen = [
        score
        for score in anchors
        if _fell(score, of_source.get(score.source, max_drop)) and lost_more(score.lost, score.gained, level)
    ]
    if not fallen and len(anchors) > 1 and max_drop < 1.0:
        whole = together(anchors)
        if _fell(whole, max_drop * SHARE_OF_ALL) and lost_more(whole.lost, whole.gained, half):
            fallen = [whole]
    return "; ".join(
        f"{score.source}: {_percent(score.after)} of {score.items} validation questions right, "
        f"{_percent(score.before)} with the best adapter so far"
        + (f', lost for example "{shown(visible(" ".join(score.example.split())))}"' if score.example else "")
        for score in fallen
    )


def _fell(score: AnchorScore, allowed: float) -> bool:
    return score.before - score.after > allowed + _ROUNDING


def together(anchors: Sequence[AnchorScore]) -> AnchorScore:
    """All sources as one."""
    items, right, lost, gained = (sum(getattr(one, name) for one in anchors) for name in ("items", "right", "lost", "gained"))
    return AnchorScore("all tasks together", items, right, lost, gained)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def lost_more(lost: int, gained: int, level: float = LEVEL) -> bool:
    """Sign test over the items that changed: would losing this many and gaining this few be unlikely if both were equally probable?"""
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
    """Fisher's exact test over people's ratings: is the share of bad ones with this version above the one before beyond chance?

    False with fewer than 8 ratings of either. Raises ValueError for counts that cannot be.
    """
    if not (0 <= bad <= total and 0 <= bad_before <= total_before):
        raise ValueError(f"{bad} of {total} and {bad_before} of {total_before} are no counts")
    if min(total, total_before) < LEAST_VERDICTS:
        return False
    all_bad, everyone = bad + bad_before, total + total_before
    tail = sum(comb(all_bad, k) * comb(everyone - all_bad, total - k) for k in range(bad, min(all_bad, total) + 1))
    return tail / comb(everyone, total) <= level
