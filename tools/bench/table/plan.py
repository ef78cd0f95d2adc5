"""The amount of measurement: rounds, steps, shapes and lengths, in two sizes."""

from __future__ import annotations

from dataclasses import dataclass

ROWS = ("small", "smollm2", "large", "rollout", "floor", "memory")
RANK, ALPHA = 16, 32.0
GROUP_SIZE = 8
LEARNING_RATE = 5e-4
DUAL, DUAL_LR, TARGET_RATE = 0.5, 0.02, 0.3


@dataclass(frozen=True, slots=True)
class Workload:
    """B prompts of P tokens (None: practice questions), responses of at most C tokens, context of a row."""

    prompts: int
    prompt_tokens: int | None
    max_tokens: int
    context_tokens: int
    warmup: int
    steps: int
    rounds: int


@dataclass(frozen=True, slots=True)
class RolloutLoad:
    """A width of the rollout row: model (a shape or `nano-edge`), prompts of P tokens, C tokens, repeats in a process."""

    model: str
    prompts: int
    prompt_tokens: int
    max_tokens: int
    repeats: int


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The measurements of a run. `peer_warmup` and `peer_steps` are TRL's in the rows smollm2 and large, where a step takes minutes."""

    size: str
    small: Workload
    smollm2: Workload
    large: Workload
    large_shape: str
    peer_warmup: int
    peer_steps: int
    rollouts: tuple[RolloutLoad, ...]
    rollout_rounds: int
    memory_shapes: tuple[str, ...]
    memory: Workload
    speed_s: float


FULL = TablePlan(
    size="full",
    small=Workload(16, None, 110, 512, warmup=2, steps=5, rounds=3),
    smollm2=Workload(8, None, 100, 448, warmup=1, steps=2, rounds=2),
    large=Workload(2, 320, 128, 448, warmup=1, steps=1, rounds=2),
    large_shape="qwen2.5-0.5b",
    peer_warmup=1,
    peer_steps=1,
    rollouts=(
        RolloutLoad("nano-edge", 4, 64, 64, repeats=5),
        RolloutLoad("nano-edge", 16, 64, 64, repeats=5),
        RolloutLoad("qwen2.5-0.5b", 2, 320, 128, repeats=2),
    ),
    rollout_rounds=3,
    memory_shapes=("qwen2.5-0.5b", "qwen2.5-1.5b"),
    memory=Workload(2, 320, 128, 448, warmup=0, steps=1, rounds=1),
    speed_s=2.0,
)
QUICK = TablePlan(
    size="quick",
    small=Workload(16, None, 110, 512, warmup=1, steps=2, rounds=1),
    smollm2=Workload(8, None, 100, 448, warmup=0, steps=1, rounds=1),
    large=Workload(2, 320, 128, 448, warmup=0, steps=1, rounds=1),
    large_shape="qwen2.5-0.5b",
    peer_warmup=0,
    peer_steps=1,
    rollouts=(RolloutLoad("nano-edge", 16, 64, 64, repeats=2), RolloutLoad("qwen2.5-0.5b", 2, 320, 128, repeats=1)),
    rollout_rounds=1,
    memory_shapes=("qwen2.5-0.5b", "qwen2.5-1.5b"),
    memory=Workload(2, 320, 32, 448, warmup=0, steps=1, rounds=1),
    speed_s=1.0,
)
