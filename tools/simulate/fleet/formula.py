"""The speeds of a device where nobody has published a measurement: one formula, its constants, and how to print its rows.

With B the bandwidth, C the arithmetic (`peak_gflop_per_s`), W the bytes of the weights, P the parameters, and e of the kind of processor:

    decode(1)     = e_d · B / W
    prefill       = e_p · C / (2P)
    decode(n)     = n / (1 / decode(1) + (n - 1) / prefill)
    training      = e_t · C / (4P)

A decode reads all weights once, whatever its rows; each further row adds the arithmetic of one more token, so that many rows together are
never faster than a prompt. Where a decode of one row or a prompt was published, decode(n) goes by that. A LoRA update takes 4 FLOP per
weight and token (forward, and the gradient with respect to activations). What the key/value memory adds is left out: it holds for short
contexts. How the efficiencies were chosen: devices/README.md.

`python -m tools.simulate.fleet.formula FILE` prints the `speeds` of a device profile as the formula has them, indented to stand at the
end of the file's `device` section.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

from edge.cli.exits import ending
from edge.config.device import DecodeRate, DeviceConfig, SpeedConfig
from edge.config.schema import AgentConfig
from edge.core.errors import EdgeError, UsageError
from tools.simulate.fleet.profiles import read_yaml

ROWS = (1, 4, 8)
ROUNDED_TO = 3
"""Significant digits of an estimate."""
LORA_PASSES = 4
"""FLOP per weight and token of a LoRA update, as in edge.training.floor."""
USABLE_SHARE = 0.75
"""Of the device's memory: what is left for weights beside the system, its programs and the key/value memory."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the data sheet's rates that a kind of processor reaches: e_d of bandwidth, e_p and e_t of arithmetic."""

    decode: float
    prefill: float
    training: float


@dataclass(frozen=True, slots=True)
class Size:
    """A size of models: parameters, and bytes of the weights by quantisation."""

    parameters: float
    weight_bytes: dict[str, float]


EFFICIENCIES = {
    "cpu": Efficiency(decode=0.55, prefill=0.75, training=0.3),
    "cpu-phone": Efficiency(decode=0.32, prefill=0.9, training=0.2),
    "cuda": Efficiency(decode=0.9, prefill=0.55, training=0.065),
    "cuda-shared": Efficiency(decode=0.6, prefill=0.3, training=0.05),
    "metal": Efficiency(decode=0.8, prefill=0.7, training=0.35),
}
_MIB, _GIB = 2**20, 2**30
SIZES = {
    "0.5B": Size(494.03e6, {"Q4_K_M": 373.71 * _MIB, "Q8_0": 500.79 * _MIB}),
    "1.5B": Size(1.54e9, {"Q4_K_M": 934.69 * _MIB, "Q8_0": 1.53 * _GIB}),
    "3B": Size(3.09e9, {"Q4_K_M": 1.79 * _GIB, "Q8_0": 3.05 * _GIB}),
    "7B": Size(7.62e9, {"Q4_K_M": 4.36 * _GIB, "Q8_0": 7.54 * _GIB}),
}
"""Qwen2.5 of these sizes, as llama-bench tells them."""


def fitting_models(device: DeviceConfig) -> list[str]:
    """The models, as `1.5B-Q4_K_M`, whose weights have room in the device's memory, or in that of its graphics processor."""
    room = USABLE_SHARE * (device.gpu_memory_mib or device.memory_mib or 0) * _MIB
    return [f"{size}-{kind}" for size, known in SIZES.items() for kind, weights in known.weight_bytes.items() if weights <= room]


def estimated_speed(device: DeviceConfig, model: str, *, one: float | None = None, prefill: float | None = None) -> SpeedConfig:
    """The row of a model; `one` and `prefill` are tokens/s of one row and of a prompt where they were published.

    Raises UsageError where the device or the model is not known well enough.
    """
    bandwidth, peak = device.bandwidth_gb_per_s, device.peak_gflop_per_s
    if bandwidth is None or peak is None or not device.processor:
        raise UsageError("the formula needs device.processor, device.bandwidth_gb_per_s and device.peak_gflop_per_s")
    share, size, weights = EFFICIENCIES[device.processor], *_model(model)
    one = one or share.decode * 1e9 * bandwidth / weights
    prefill = prefill or share.prefill * 1e9 * peak / (2 * size.parameters)
    return SpeedConfig(
        model=model,
        prefill_tokens_per_s=_rounded(prefill),
        decode=tuple(DecodeRate(rows=rows, tokens_per_s=_rounded(rows / (1 / one + (rows - 1) / prefill))) for rows in ROWS),
        training_tokens_per_s=_rounded(share.training * 1e9 * peak / (LORA_PASSES * size.parameters)),
    )


def _model(model: str) -> tuple[Size, float]:
    name, _, quantisation = model.partition("-")
    size = SIZES.get(name)
    if size is None or quantisation not in size.weight_bytes:
        raise UsageError(
            f"the formula knows no model {model}",
            hint="known: " + ", ".join(f"{each}-{kind}" for each in SIZES for kind in SIZES[each].weight_bytes),
        )
    return size, size.weight_bytes[quantisation]


def _rounded(value: float) -> float:
    return float(f"{value:.{ROUNDED_TO}g}")


def speeds_text(device: DeviceConfig) -> str:
    """The `speeds` of every model that fits the device's memory, as YAML within a section. Raises UsageError where none is known to."""
    rows: list[Any] = [
        estimated_speed(device, model).model_dump(mode="json", exclude_none=True) for model in fitting_models(device)
    ]
    if not rows:
        needed = "device.gpu_memory_mib or device.memory_mib"
        raise UsageError(
            f"no model is known to fit the device's memory: {needed} is absent or too small", hint="see devices/README.md"
        )
    return indent(yaml.safe_dump({"speeds": rows}, sort_keys=False, default_flow_style=None, width=128), "  ")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows of a profile; 2, with one line, for one that cannot be read or says too little."""
    parser = ArgumentParser(prog="python -m tools.simulate.fleet.formula", description="speeds of a device by the formula")
    parser.add_argument(
        "profile", type=Path, metavar="FILE", help="a device profile; the rows belong at the end of its device section"
    )
    path = parser.parse_args(arguments).profile

    def estimate() -> int:
        try:
            print(speeds_text(read_yaml(AgentConfig, path).config.device), end="")
        except EdgeError as error:
            text = str(error) if str(error).startswith(str(path)) else f"{path}: {error}"
            raise UsageError(text, hint=error.hint) from error
        return 0

    return ending(estimate)


if __name__ == "__main__":
    sys.exit(main())
