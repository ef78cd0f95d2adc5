"""The table of engines: what each reads, needs and can do; and which ONNX execution providers to run on.

docs/extending.md shows what a new engine needs in addition to its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

_DECODERS = ("qwen2", "qwen3", "llama", "smollm3")
TORCH_LEARNER = "edge.app.openers:torch_learner"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """One engine."""

    name: str
    """The value of engine.backend."""
    title: str
    """The name for people."""
    about: str
    """What serves and what trains."""
    distribution: str
    """The package whose version the doctor shows."""
    extra: str
    """The extra of pyproject.toml that installs it."""
    open_backend: str
    """A function ("module:function") with the signature of those in edge/app/openers.py."""
    open_learner: str = TORCH_LEARNER
    """Likewise for the learner."""
    packages: tuple[str, ...] = ()
    """What must be importable before the engine is chosen."""
    architectures: tuple[str, ...] = ()
    """The architectures of GGUF files that it computes; (): whatever llama.cpp does."""
    reads_folders: bool = False
    """It reads folders of safetensors as well as GGUF files."""
    auto: Literal["anywhere", "apple silicon", "never"] = "never"
    """Where engine.backend auto may choose it."""
    on_graphics: Literal["always", "as built", "never"] = "never"
    """Whether rows lie on a graphics processor."""
    shares_cores: bool = True
    """It computes with threads that other programs slow down."""
    splits_layers: bool = False
    """engine.gpu_layers applies."""
    row_value_bytes: int = 2
    """Bytes of a number among a row's keys and values."""
    serves_apart: bool = False
    """People's conversations have memory of their own (`BatchedBackend`); else they are in rows like those of rollouts."""

    @property
    def trains_in_torch(self) -> bool:
        """Whether torch trains, so that learning.device and the estimates of its memory apply."""
        return self.open_learner == TORCH_LEARNER


ENGINES: Mapping[str, EngineInfo] = {
    engine.name: engine
    for engine in (
        EngineInfo(
            name="llamacpp",
            title="llama.cpp",
            about="llama.cpp serves, torch trains",
            distribution="llama-cpp-python",
            extra="agent",
            open_backend="edge.app.openers:llamacpp_backend",
            auto="anywhere",
            on_graphics="as built",
            splits_layers=True,
            serves_apart=True,
        ),
        EngineInfo(
            name="mlx",
            title="MLX",
            about="MLX serves and trains on one copy of the weights",
            distribution="mlx",
            extra="mlx",
            packages=("mlx", "mlx_lm"),
            architectures=_DECODERS,
            open_backend="edge.app.openers:mlx_backend",
            open_learner="edge.app.openers:mlx_learner",
            reads_folders=True,
            auto="apple silicon",
            on_graphics="always",
            shares_cores=False,
        ),
        EngineInfo(
            name="onnx",
            title="ONNX",
            about="ONNX Runtime serves, torch trains",
            distribution="onnxruntime",
            extra="onnx",
            packages=("onnx", "onnxruntime"),
            architectures=_DECODERS,
            open_backend="edge.app.openers:onnx_backend",
            row_value_bytes=4,  # ONNX Runtime keeps keys and values in float32
        ),
    )
}


def engine_named(backend: str) -> EngineInfo:
    """The engine that a value of engine.backend names; for `auto` the one that reads GGUF files on any machine."""
    return ENGINES["llamacpp" if backend == "auto" else backend]


CPU = "CPUExecutionProvider"
_SUFFIX = "ExecutionProvider"


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """`used` in order of preference, the CPU always last; `missing` were wished for and are not there."""

    used: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def summary(self) -> str:
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
    used, missing = list[str](), list[str]()
    for wish in preferred:
        name = known.get(wish.lower().removesuffix(_SUFFIX.lower()))
        if name is None:
            missing.append(wish)
        elif name not in used and name != CPU:
            used.append(name)
    return ProviderChoice((*used, CPU), tuple(missing))
