"""Where torch trains, in which number format, and what that device reaches: CUDA where it is there, else Metal, else the processor.

On Apple silicon MLX is the default and trains by itself; this is for torch there. Measured on 2 cores with AVX512-BF16: at 2 M parameters
bf16 is no faster than fp32 and changes the gradient by 3 %, because the time goes into small products and element-wise work.
"""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from edge.core.clock import Clock
from edge.core.errors import UsageError
from edge.core.machine import cpu_flags
from edge.training.learner import LOGITS_AT_ONCE, Precision

DeviceChoice = Literal["auto", "cpu", "cuda", "mps"]
_CPU = torch.device("cpu")


def choose_device(choice: DeviceChoice = "auto") -> torch.device:
    """The device to train on. Raises UsageError for one that torch does not see."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    chosen = next(name for name, present in there.items() if present) if choice == "auto" else choice
    if not there[chosen]:
        raise UsageError(
            f"learning.device: {choice}, but torch {torch.__version__} sees no such device here",
            hint="set learning.device to auto or cpu, or install a torch that was built for it",
        )
    if chosen == "cuda":
        # Without it cuBLAS may choose another order of sums from one run to the next; it is read when cuBLAS starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device(chosen)


def graphics_memory(device: torch.device) -> int | None:
    """Free bytes of the device's own memory; None where it shares the machine's."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None


def graphics_name() -> str | None:
    """The graphics processor that torch would train on, or None."""
    device = choose_device()
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"Metal on {platform.machine()}" if device.type == "mps" else None


def logits_at_once(device: torch.device) -> int:
    """The largest slab of logits in an update, in numbers; a GPU needs larger ones, since it waits for each.

    Measured on an H200 at the shape of Qwen2.5 0.5B: an update of 3,000 response tokens 0.26 s with 2^26, 1.0 s with 2^21.
    """
    return 1 << 26 if device.type == "cuda" else LOGITS_AT_ONCE


BF16_FROM_PARAMETERS = 100_000_000
_FAST_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def choose_dtype(precision: Precision, parameters: int, fast_bf16: bool) -> torch.dtype:
    """fp32 or bf16; "auto" takes bf16 where it is fast and the model large enough to gain from it."""
    if precision == "auto":
        return torch.bfloat16 if fast_bf16 and parameters >= BF16_FROM_PARAMETERS else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def has_fast_bf16(device: torch.device, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether bf16 products are faster than fp32 ones on the device."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    return bool(_FAST_BF16_FLAGS & cpu_flags(cpuinfo))


# --- what this machine reaches: bytes read from memory and floating point operations, per second ---

BUFFER_BYTES = 256 << 20
"""More than the caches of any processor that this is likely to run on."""


def fastest(call: Callable[[], object], clock: Clock, seconds: float) -> float:
    """Seconds of the fastest call of those that fit in the time; the first one also warms up.

    The fastest counts: whatever else the machine does makes a measurement slower, never faster.
    """
    started, best = clock.monotonic(), math.inf
    while True:
        before = clock.monotonic()
        call()
        after = clock.monotonic()
        best = min(best, after - before)
        if after - started >= seconds:
            return max(best, 1e-9)


def read_bytes_per_s(clock: Clock, seconds: float = 1.5, buffer_bytes: int = BUFFER_BYTES, device: torch.device = _CPU) -> float:
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
    device: torch.device = _CPU,
) -> float:
    """FLOP/s of x W^T for `tokens` rows over matrices of these (inputs, outputs), in the proportion in which they are named."""
    counts = Counter(sizes)
    taken, flop = 0.0, 0
    for (inputs, outputs), count in counts.items():
        x, weight, made = (
            torch.ones(shape, dtype=dtype, device=device) for shape in ((tokens, inputs), (outputs, inputs), (tokens, outputs))
        )
        product = partial(torch.mm, x, weight.t(), out=made)
        with torch.no_grad():
            taken += count * fastest(_finished(product, device), clock, seconds / len(counts))
        flop += count * 2 * tokens * inputs * outputs
    return flop / taken


def _finished(call: Callable[[], Tensor], device: torch.device) -> Callable[[], None]:
    """The call with its end waited for: a graphics processor's returns before it is done."""

    def finished() -> None:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elif device.type == "mps":
            torch.mps.synchronize()

    return finished
