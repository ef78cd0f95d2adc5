"""Making sure before the first step that learning fits in memory.

Each way of holding activations (kept, or computed again in the backward pass) is judged on paper first, so that a machine that swaps
or kills instead of refusing is not pushed there, and then for real where the estimate leaves doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from edge.training.learner import Probing
from edge.training.memory import (
    SAFE_SHARE,
    BatchLimits,
    ModelShape,
    OutOfMemory,
    TrainingSetting,
    check_fits,
    memory_need,
    probe_groups,
    worst_micro_batch,
)

Choice = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What to make sure of. `probe` auto tries only what is in doubt, off nothing; `checkpointing` auto is off unless only on fits.

    `held_bytes` of the estimate are in use already. `estimated`: the estimate is made for this learner's engine; for another one it only
    says what is certain to fit, and refuses nothing.
    """

    shape: ModelShape
    limits: BatchLimits
    setting: TrainingSetting
    held_bytes: int
    probe: Choice = "auto"
    checkpointing: Choice = "auto"
    estimated: bool = True


async def make_fit(learner: Probing, plan: ProbePlan, free_bytes: Callable[[], int]) -> None:
    """Choose the way to hold activations and try the longest micro-batch. Raises OutOfMemory when no way that is allowed fits."""
    refusal: OutOfMemory | None = None
    for checkpointing in ways(plan):
        learner.use_checkpointing(checkpointing)
        if plan.probe == "off":
            return
        try:
            await _try(learner, plan, checkpointing, free_bytes)
            return
        except OutOfMemory as error:
            refusal = error
    if refusal is not None:
        raise refusal


def ways(plan: ProbePlan) -> tuple[bool, ...]:
    """Whether to compute activations again, in the order of preference; where no estimate is known, "auto" is no."""
    if plan.checkpointing == "auto":
        return (False, True) if plan.estimated and plan.probe != "off" else (False,)
    return (plan.checkpointing == "on",)


async def _try(learner: Probing, plan: ProbePlan, checkpointing: bool, free_bytes: Callable[[], int]) -> None:
    setting = replace(plan.setting, checkpointing=checkpointing)
    batch = worst_micro_batch(plan.shape, plan.limits, setting)
    need = memory_need(plan.shape, batch, setting)
    if plan.estimated:
        certain = check_fits(need, batch, free_bytes(), plan.held_bytes)
    else:
        certain = need.total <= SAFE_SHARE * free_bytes()
    if plan.probe == "on" or not certain:
        await learner.probe(probe_groups(batch, plan.shape.vocab_size))
