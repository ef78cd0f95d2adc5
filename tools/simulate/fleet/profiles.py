"""Devices and links by name or path, as a simulation wants them.

A device's row of speeds goes by its model (`1.5B-Q4_K_M`, or the name of the model file that was measured); without one the first row
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field, model_validator

from edge.config.agent import resolve_agent_config
from edge.config.device import DeviceConfig, SourceConfig, SpeedConfig, check_sources
from edge.config.loader import Resolved, refusal, resolve
from edge.config.section import NotNegative, Positive, Section
from edge.core.errors import ConfigError, UsageError
from tools.simulate.fleet.hardware import ANSWER_OVERHEAD_S, LinkModel, SimulatedSpeed

DEVICES = Path(__file__).resolve().parents[3] / "devices"
LINKS = DEVICES / "links"
_BITS_PER_BYTE = 8


class LinkConfig(Section):
    """A way from a device to its coordinator."""

    name: str = Field(description="What it is; free to change.")
    rtt_ms: NotNegative = Field(description="Median round trip to a server in the same region, in milliseconds.")
    jitter_ms: NotNegative = Field(0.0, description="Mean of what a round trip takes beyond that, in milliseconds.")
    up_mbit_per_s: Positive = Field(description="Bandwidth from the device, in Mbit/s.")
    down_mbit_per_s: Positive = Field(description="Bandwidth to the device, in Mbit/s.")
    loss: float = Field(0.0, ge=0, le=0.9, description="Share of messages that are lost and sent again.")
    retransmit_ms: Positive = Field(300.0, description="Milliseconds until a lost message is sent again.")
    mean_up_s: float | None = Field(
        None, ge=1, allow_inf_nan=False, description="Seconds between two outages, on average (null: none)."
    )
    mean_down_s: NotNegative = Field(0.0, description="Seconds that an outage takes, on average.")
    offline_from_hour: float | None = Field(None, ge=0, lt=24, description="Hour of the day from which it is off (null: never).")
    offline_until_hour: float | None = Field(None, gt=0, le=24, description="Hour until which it is off.")
    sources: tuple[SourceConfig, ...] = Field((), description="Where the numbers come from.")

    @model_validator(mode="after")
    def _belongs_together(self) -> LinkConfig:
        check_sources(self, [each.of for each in self.sources])
        if (self.offline_from_hour is None) != (self.offline_until_hour is None):
            raise ValueError("offline_from_hour and offline_until_hour go together")
        if self.offline_from_hour is not None and self.offline_from_hour == self.offline_until_hour:
            raise ValueError("offline_from_hour and offline_until_hour are the same: 0 and 24 are all day, none of them is never")
        if (self.mean_up_s is not None) != (self.mean_down_s > 0):
            raise ValueError("mean_up_s and mean_down_s go together")
        return self


class LinkFile(Section):
    """A file of devices/links."""

    link: LinkConfig = Field(description="The link.")


def load_device(name_or_path: str, model: str = "") -> SimulatedSpeed:
    """A device with one of its models, by the name of a file of devices/ or by path. Raises UsageError, ConfigError: one line."""
    path = _found("device", name_or_path, DEVICES)
    return device_speed(resolve_agent_config(path).config.device, model, str(path))


def device_speed(device: DeviceConfig, model: str, where: str) -> SimulatedSpeed:
    """A device with one of its models ("": the first one). Raises UsageError that begins with `where`."""
    row = _row(device, model, where)
    prefill, training = row.prefill_tokens_per_s, row.training_tokens_per_s
    if prefill is None or training is None or not row.decode:
        raise UsageError(f"{where}: {row.model} has no prefill_tokens_per_s, decode or training_tokens_per_s")
    return SimulatedSpeed(
        name=device.name or Path(where).stem,
        model=row.model,
        prefill_tokens_per_s=prefill,
        decode_tokens_per_s=tuple((rate.rows, rate.tokens_per_s) for rate in row.decode),
        training_tokens_per_s=training,
        idle_w=device.idle_w or 0.0,
        busy_w=device.busy_w or device.idle_w or 0.0,
        throttle_after_s=device.throttle_after_s,
        throttle_share=1.0 if device.throttle_share is None else device.throttle_share,
        battery_wh=device.battery_wh,
        overhead_s=ANSWER_OVERHEAD_S if row.answer_overhead_s is None else row.answer_overhead_s,
        token_overhead_s=row.token_overhead_s or 0.0,
    )


def load_link(name_or_path: str) -> LinkModel:
    """A link by the name of a file of devices/links/ or by path. Raises UsageError, ConfigError: one line."""
    path = _found("link", name_or_path, LINKS)
    link = read_yaml(LinkFile, path).config.link
    off = None
    if link.offline_from_hour is not None and link.offline_until_hour is not None:
        off = link.offline_from_hour, link.offline_until_hour
    return LinkModel(
        name=path.stem,
        rtt_s=link.rtt_ms / 1e3,
        jitter_s=link.jitter_ms / 1e3,
        up_bytes_per_s=link.up_mbit_per_s * 1e6 / _BITS_PER_BYTE,
        down_bytes_per_s=link.down_mbit_per_s * 1e6 / _BITS_PER_BYTE,
        loss=link.loss,
        retransmit_s=link.retransmit_ms / 1e3,
        mean_up_s=link.mean_up_s,
        mean_down_s=link.mean_down_s,
        offline_hours=off,
    )


def _found(kind: str, name_or_path: str, folder: Path) -> Path:
    """The file that is meant: a name of the folder, or a path."""
    if is_known(name_or_path, folder):
        return folder / f"{name_or_path}.yaml"
    if (given := Path(name_or_path)).is_file():
        return given
    known = _listed(path.stem for path in folder.glob("*.yaml"))
    raise UsageError(f"there is no {kind} {name_or_path}", hint=f"known: {known}; or give the path of a file")


def _row(device: DeviceConfig, model: str, where: str) -> SpeedConfig:
    rows = {row.model: row for row in device.speeds}
    if not rows:
        hint = "edge-agent doctor --write-profile FILE measures them"
        if device.processor and device.bandwidth_gb_per_s and device.peak_gflop_per_s:
            hint = f"python -m tools.simulate.fleet.formula {where} estimates them"
        raise UsageError(f"{where}: no speeds of any model", hint=hint)
    if model and model not in rows:
        raise UsageError(f"{where}: no speeds of {model}", hint=f"known: {_listed(rows)}")
    return rows[model] if model else device.speeds[0]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


FileT = TypeVar("FileT", bound=BaseModel)


def read_yaml(schema: type[FileT], path: Path, sets: Sequence[str] = (), example: str = "") -> Resolved[FileT]:
    """The file by its schema; `sets` are `key=value` texts that win over it, `example` is one.

    Raises ConfigError with one line: file and line (the file alone for what is not in it), or the option, the key, and what is allowed.
    """
    try:
        return resolve(schema, files=[path], sets=sets, example=example)
    except ConfigError as error:
        text = str(error)
        raise refusal(text if text.startswith((str(path), "--")) else f"{path}: {text}", error.hint) from error


def from_folder(name_or_path: str, folder: Path, known: Path) -> str:
    """What a file in `folder` names: a name as it is, or a path that begins at the folder."""
    is_path = "/" in name_or_path or bool(Path(name_or_path).suffix) or (folder / name_or_path).is_file()
    return str(folder.resolve() / name_or_path) if is_path and not is_known(name_or_path, known) else name_or_path


def is_known(name_or_path: str, known: Path) -> bool:
    """Whether it is the name of a YAML file of the folder `known`."""
    return "/" not in name_or_path and (known / f"{name_or_path}.yaml").is_file()
