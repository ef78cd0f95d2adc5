"""DA-GRPO's advantages for the flat batch of verl. Knows rows and the groups they belong to; knows nothing of tensors or of verl.

verl hands over rows [N] with a group name each, in any order, padding among them, and averages the rows' losses over all N of them
(`loss_agg_mode: seq-mean-token-sum`: sum over a row's tokens, mean over rows). The estimator is 1/U Σ_groups 1/(G'-1) Σ_i Â_i ∇ log
π(y_i) over the U groups with at least two responses left and the G' responses left in each; so a row's advantage carries the weight N /
(U (G'-1)), and what comes out of verl's mean is the estimator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from edge.dagrpo.advantages import dual_advantages, estimator_weight


def row_advantages(
    rewards_N: Sequence[float], costs_N: Sequence[float], left_out_N: Sequence[bool], groups_N: Sequence[Hashable], dual: float
) -> list[float]:
    """Â_i = A^r_i - λ A^c_i within its group, unscaled; 0 for rows left out and for groups of which fewer than two are left. Shape [N].

    Raises ValueError on unequal lengths and on numbers that dual_advantages refuses.
    """
    _require_equal_lengths(rewards_N, costs_N, left_out_N, groups_N)
    advantages_N = [0.0] * len(rewards_N)
    for rows in usable_groups(left_out_N, groups_N):
        values = dual_advantages([rewards_N[row] for row in rows], [costs_N[row] for row in rows], dual)
        for row, value in zip(rows, values, strict=True):
            advantages_N[row] = value
    return advantages_N


def row_weights(left_out_N: Sequence[bool], groups_N: Sequence[Hashable]) -> list[float]:
    """N / (U (G'-1)): makes verl's mean over rows the mean over groups of 1/(G'-1) Σ_i. 0 where there is no advantage. Shape [N]."""
    _require_equal_lengths(left_out_N, groups_N)
    usable = usable_groups(left_out_N, groups_N)
    weights_N = [0.0] * len(groups_N)
    for rows in usable:
        for row in rows:
            weights_N[row] = len(groups_N) / len(usable) * estimator_weight(len(rows))
    return weights_N


def usable_groups(left_out_N: Sequence[bool], groups_N: Sequence[Hashable]) -> list[list[int]]:
    """The rows that are left of each group, where at least two are: fewer have no baseline."""
    rows_by_group: dict[Hashable, list[int]] = defaultdict(list)
    for row, (left_out, group) in enumerate(zip(left_out_N, groups_N, strict=True)):
        if not left_out:
            rows_by_group[group].append(row)
    return [rows for rows in rows_by_group.values() if len(rows) >= 2]


def _require_equal_lengths(*columns: Sequence[object]) -> None:
    if len({len(column) for column in columns}) != 1:
        raise ValueError(f"a batch's columns must be equally long, not {', '.join(str(len(column)) for column in columns)}")
