"""What this machine reaches in torch: bytes read from memory and floating point operations, per second.

The fastest repetition counts: whatever else the machine does makes a measurement slower, never faster. A measurement takes about
`seconds`, or one call where a call takes longer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from edge.core.clock import Clock
from edge.training.device import wait_for

CPU = torch.device("cpu")
BUFFER_BYTES = 256 << 20
"""More than the caches of any processor that this is likely to run on."""


def fastest(call: Callable[[], object], clock: Clock, seconds: float) -> float:
    """Seconds of the fastest call of those that fit in the time; the first one also warms up."""
    started, best = clock.monotonic(), math.inf
    while True:
        before = clock.monotonic()
        call()
        after = clock.monotonic()
        best = min(best, after - before)
        if after - started >= seconds:
            return max(best, 1e-9)


def read_bytes_per_s(clock: Clock, seconds: float = 1.5, buffer_bytes: int = BUFFER_BYTES, device: torch.device = CPU) -> float:
    """Bytes/s at which torch reads a buffer: the better of a sum and a scalar product."""
    buffer = torch.ones(max(1, buffer_bytes // 4), device=device)
    calls: tuple[Callable[[], Tensor], ...] = (buffer.sum, lambda: torch.dot(buffer, buffer))
    return buffer.numel() * 4 / min(fastest(_finished(call, device), clock, seconds / len(calls)) for call in calls)


def product_flop_per_s(
    sizes: Iterable[tuple[int, int]],
    tokens: int,
    dtype: torch.dtype,
    clock: Clock,
    seconds: float = 1.5,
    device: torch.device = CPU,
) -> float:
    """FLOP/s of x W^T for `tokens` rows over matrices of these (inputs, outputs), in the proportion in which they are named."""
    counts = Counter(sizes)
    taken, flop = 0.0, 0
    for (inputs, outputs), count in counts.items():
        shapes = (tokens, inputs), (outputs, inputs), (tokens, outputs)
        tensors = [torch.ones(shape, dtype=dtype, device=device) for shape in shapes]
        taken += count * _product_s(tensors, clock, seconds / len(counts), device)
        flop += count * 2 * tokens * inputs * outputs
    return flop / taken


def _product_s(tensors: Sequence[Tensor], clock: Clock, seconds: float, device: torch.device) -> float:
    x, weight, made = tensors
    with torch.no_grad():
        return fastest(_finished(lambda: torch.mm(x, weight.t(), out=made), device), clock, seconds)


def _finished(call: Callable[[], Tensor], device: torch.device) -> Callable[[], None]:
    """The call with its end waited for: a graphics processor's returns before it is done."""

    def finished() -> None:
        call()
        wait_for(device)

    return finished
