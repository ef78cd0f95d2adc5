"""DA-GRPO's advantage estimator for verl's registry. Knows tensors [N, T] and verl's calling convention; the numbers are made in
`advantages`.

verl calls an estimator with rewards, masks and group names alone. Costs and λ come from the trainer, which holds `priced` around verl's
own computation of the advantages, on the driver, in the order of the same batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edge.core.errors import UsageError
from tools.integrations.verl.advantages import row_advantages, row_weights


@dataclass(frozen=True, slots=True)
class Priced:
    """What verl's batch does not carry: c of each row, which rows are in no group, and the step's λ."""

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
