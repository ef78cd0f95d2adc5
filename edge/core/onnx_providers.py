"""Which ONNX execution providers (CPU, CUDA, CoreML, ...) to run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CPU = "CPUExecutionProvider"
_SUFFIX = "ExecutionProvider"


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """`used` in order of preference, the CPU always last; `missing` were wished for and are not there."""

    used: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def said(self) -> str:
        """The choice in one line."""
        used = " then ".join(name.removesuffix(_SUFFIX) for name in self.used)
        if not self.missing:
            return f"ONNX runs on {used}"
        return f"ONNX runs on {used}; not available here: {', '.join(name.removesuffix(_SUFFIX) for name in self.missing)}"


def choose_providers(preferred: Sequence[str], available: Sequence[str]) -> ProviderChoice:
    """The preferred providers that are available, then the CPU.

    Names with or without `ExecutionProvider` at the end (`CUDA`, `CoreML`, `TensorRT`), upper and lower case aside.
    """
    known = {name.lower().removesuffix(_SUFFIX.lower()): name for name in available}
    used: list[str] = []
    missing: list[str] = []
    for wish in preferred:
        name = known.get(wish.lower().removesuffix(_SUFFIX.lower()))
        if name is None:
            missing.append(wish)
        elif name not in used and name != CPU:
            used.append(name)
    return ProviderChoice((*used, CPU), tuple(missing))
