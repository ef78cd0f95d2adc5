"""DA-GRPO's advantages for the flat batch of verl, and the estimator for verl's registry.

verl hands over rows [N] with a group name each, in any order, padding among them, and averages the rows' losses over all N of them
(`loss_agg_mode: seq-mean-token-sum`: sum over a row's tokens, mean over rows). The estimator is 1/U Σ_groups 1/(G'-1) Σ_i Â_i ∇ log
π(y_i) over the U groups with at least two responses left and the G' responses left in each; so a row's advantage carries the weight N /
(U (G'-1)), and what comes out of verl's mean is the estimator.

verl calls an estimator with rewards, masks and group names alone. Costs and λ come from the trainer, which holds `priced` around verl's
own computation of the advantages, on the driver, in the order of the same batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge.core.errors import UsageError
from edge.dagrpo.advantages import dual_advantages, estimator_weight

if TYPE_CHECKING:
    from torch import Tensor


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


@dataclass(frozen=True, slots=True)
class Priced:
    """What verl's batch lacks: c of each row, the rows in no group, and the step's λ."""

    costs: Sequence[float]
    left_out: Sequence[bool]
    dual: float


_PRICED: ContextVar[Priced | None] = ContextVar("dagrpo_priced", default=None)


@contextmanager
def priced(batch: Priced) -> Iterator[None]:
    """For the length of the block, the batch that verl computes advantages of."""
    token = _PRICED.set(batch)
    try:
        yield
    finally:
        _PRICED.reset(token)


def dagrpo_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Sequence[Any], config: Any = None, **unused: Any
) -> tuple[Tensor, Tensor]:
    """(advantages, returns), both N/(U (G'-1)) Â_i on every response token of row i, shape [N, T]; 0 for rows left out.

    With `loss_agg_mode: seq-mean-token-sum` the gradient is that of ALGORITHM: mean over groups of 1/(G'-1) Σ_i Â_i Σ_t ∇ log π.
    Raises UsageError outside `priced`, ValueError where its columns do not fit the batch.
    """
    import torch

    batch = _PRICED.get()
    if batch is None:
        raise UsageError("the estimator dagrpo needs costs and λ", hint="set trainer.v1.trainer_mode=dagrpo")
    rewards_N, groups_N = token_level_rewards.sum(dim=-1).tolist(), list(index)
    advantages_N = row_advantages(rewards_N, batch.costs, batch.left_out, groups_N, batch.dual)
    weights_N = row_weights(batch.left_out, groups_N)
    values_N = [advantage * weight for advantage, weight in zip(advantages_N, weights_N, strict=True)]
    on_device = torch.tensor(values_N, dtype=token_level_rewards.dtype, device=token_level_rewards.device)
    advantages_N_T = on_device.unsqueeze(-1) * response_mask
    return advantages_N_T, advantages_N_T
