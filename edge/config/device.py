"""What was measured on a machine, or is known of a kind of machine, and where each of its numbers comes from.

A path names a number as `memory_mib` or `speeds/1.5B-Q4_K_M/decode/4`: an element of a list goes by its `model` or its `rows`. A source
is given for a path or for the beginning of several; the longest beginning that fits a number holds for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from edge.config.section import NotNegative, Positive, Section
from edge.core.engines import ENGINES

if TYPE_CHECKING:
    MeasuredBackend = str
else:
    MeasuredBackend = Literal["", *ENGINES]


class DecodeRate(Section):
    """How fast this many rows are decoded at once."""

    rows: int = Field(ge=1, description="Rows decoded at once.")
    tokens_per_s: Positive = Field(description="Tokens/s of all of them together.")


class SpeedConfig(Section):
    """How fast one model in one quantisation is on the device."""

    model: str = Field(
        min_length=1, max_length=200, description="Size and quantisation, as 1.5B-Q4_K_M, or the name of a model file."
    )
    prefill_tokens_per_s: Positive | None = Field(None, description="Tokens/s of one prompt.")
    decode: tuple[DecodeRate, ...] = Field((), description="Tokens/s for some numbers of rows, growing from 1.")
    training_tokens_per_s: Positive | None = Field(
        None, description="Tokens/s of a LoRA update: forward, backward, all micro-batches."
    )
    answer_overhead_s: NotNegative | None = Field(
        None, description="Seconds until an answer's first token beyond its prompt and that token."
    )
    token_overhead_s: NotNegative | None = Field(
        None, description="Seconds that each token of an answer takes beyond its decoding, until it is shown."
    )

    @field_validator("decode")
    @classmethod
    def _rows_grow_from_one(cls, decode: tuple[DecodeRate, ...]) -> tuple[DecodeRate, ...]:
        rows = [rate.rows for rate in decode]
        if rows and (rows[0] != 1 or rows != sorted(set(rows))):
            raise ValueError(f"must go from 1 row to more, not {', '.join(map(str, rows))}")
        return decode


class SourceConfig(Section):
    """Where numbers come from."""

    of: str = Field(
        min_length=1,
        max_length=300,
        description="A field, or a part of speeds as speeds/MODEL/decode/4; the longest that fits a number holds for it.",
    )
    source: str = Field(
        min_length=1,
        max_length=1000,
        description="Title and address, or how it was got: measured, chosen, or estimated by formula (devices/README.md).",
    )


class DeviceConfig(Section):
    """What was measured on this machine, or is known of a kind of machine; the part of a device profile that `edge-agent doctor
    --write-profile` fills in.

    Nothing here changes what the agent does: with bandwidth and both speeds, reports show how many times the least possible time a step
    took. What is null, or an empty list, was not measured; G is 10^9.
    """

    name: str = Field("", description="Processor and cores; free to change.")
    measured_on: str = Field("", description="Day of the measurement, in UTC.")
    backend: MeasuredBackend = Field("", description="The engine that was measured.")
    cores: int | None = Field(None, ge=1, description="Logical cores that the process may use.")
    memory_mib: int | None = Field(None, ge=1, description="Memory of the machine, in MiB.")
    bandwidth_gb_per_s: Positive | None = Field(None, description="GB/s read from memory, from buffers larger than the caches.")
    train_fp32_gflop_per_s: Positive | None = Field(
        None, description="GFLOP/s of torch's float32 matrix products of training's shapes."
    )
    train_bf16_gflop_per_s: Positive | None = Field(
        None, description="GFLOP/s of torch's bfloat16 matrix products of training's shapes."
    )
    infer_gflop_per_s: Positive | None = Field(
        None,
        description="GFLOP/s of the engine: 2 x weights x tokens/s at a prompt (its blocks) or of generation, whichever reached more.",
    )
    dequantise_gweights_per_s: Positive | None = Field(None, description="G weights/s turned from the file's form into floats.")
    model: str = Field("", description="The model that the engine's numbers were taken with.")
    prefill_tokens_per_s: Positive | None = Field(None, description="Tokens/s of one prompt in the engine.")
    decode: tuple[DecodeRate, ...] = Field((), description="Tokens/s for some numbers of rows after a short prompt.")
    machine: str = Field("", description="What the machine reported of itself; a profile of another one is not picked by itself.")
    processor: Literal["", "cpu", "cpu-phone", "cuda", "cuda-shared", "metal"] = Field(
        "", description="What the model is computed on; cuda-shared is a GPU that shares the machine's memory, as a Jetson's."
    )
    gpu_memory_mib: int | None = Field(None, ge=1, description="Memory of a GPU that has its own, in MiB.")
    peak_gflop_per_s: Positive | None = Field(
        None, description="GFLOP/s that the formula counts with: of the processor's float32 FMA units, or dense float16 of a GPU."
    )
    speeds: tuple[SpeedConfig, ...] = Field((), description="How fast models of some sizes are.")
    idle_w: NotNegative | None = Field(None, description="Watts of the whole device while it waits.")
    busy_w: Positive | None = Field(None, description="Watts of the whole device while a model computes.")
    throttle_after_s: Positive | None = Field(
        None, description="Seconds of unbroken work until heat slows it down (null: not known)."
    )
    throttle_share: float | None = Field(None, ge=0.01, le=1, description="Share of the speeds that is left then.")
    battery_wh: Positive | None = Field(None, description="Watt-hours of the battery (null: none, or not known).")
    sources: tuple[SourceConfig, ...] = Field((), description="Where the numbers come from.")

    @model_validator(mode="after")
    def _sources_are_of_numbers(self) -> DeviceConfig:
        check_sources(self, [each.of for each in self.sources])
        models = [speed.model for speed in self.speeds]
        if twice := next((name for name in models if models.count(name) > 1), None):
            raise ValueError(f"speeds has {twice} twice")
        if self.idle_w is not None and self.busy_w is not None and self.idle_w > self.busy_w:
            raise ValueError(f"idle_w must be at most busy_w ({self.busy_w:g}), not {self.idle_w:g}")
        return self


_NAMES = ("model", "rows")


def numbers(section: BaseModel) -> Iterator[tuple[str, float]]:
    """(path, value) of every number that is there."""
    yield from _numbers(section.model_dump(mode="json"), "")


def check_sources(section: BaseModel, named: Iterable[str]) -> None:
    """Raise ValueError where a source is given for no number of the section, or two for the same."""
    paths, seen = [path for path, _ in numbers(section)], set[str]()
    for of in named:
        if of in seen:
            raise ValueError(f"sources has {of} twice")
        if not any(path == of or path.startswith(f"{of}/") for path in paths):
            raise ValueError(f"sources has {of}, but there is no such number")
        seen.add(of)


def _numbers(data: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            if key not in _NAMES:
                yield from _numbers(value, f"{path}/{key}" if path else key)
    elif isinstance(data, Sequence) and not isinstance(data, str):
        for element in data:
            name = next((element[key] for key in _NAMES if key in element), None) if isinstance(element, Mapping) else None
            if name is not None:
                values = {key: value for key, value in element.items() if key not in _NAMES}
                yield from _numbers(values["tokens_per_s"] if set(values) == {"tokens_per_s"} else values, f"{path}/{name}")
    elif isinstance(data, (int, float)) and not isinstance(data, bool):
        yield path, data
