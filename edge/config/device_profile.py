"""Device profiles: which one is this machine's where nobody has named one, and writing one that was measured.

A profile is a configuration file with what a device measures and which batch suits it. It is read as any other layer
(`--device-profile FILE`, or `device_profile` in a file).

Picked is first the one that `edge-agent doctor --keep-profile` has measured here, then a known device that the machine is. A kept
profile of another machine, as in a home folder on a network, is left alone, and so is one that cannot be read: what is picked by itself
must not keep the agent from starting. A known profile brings nothing but `device` and when to learn, and is picked only where the machine
leaves no doubt.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from edge.config.device import DeviceConfig
from edge.config.loader import resolve
from edge.config.schema import AgentConfig
from edge.core.errors import ConfigError, UsageError
from edge.core.files import write_atomically
from edge.core.machine import MachineFacts

NONE = "none"
"""The value of `device_profile` for no profile."""
KEPT_NAME = "device.yaml"
MEASURED, KNOWN = "picked: measured on this machine", "picked: a known device"
NOT_PICKED = "not picked"
_PACKAGED, _SOURCE = Path(__file__).parent / "devices", Path(__file__).parents[2] / "devices"
_GIB = 1024
_SMALL_SHARE = 0.8
"""The least share of the memory it was sold with that a system reports."""


@dataclass(frozen=True, slots=True)
class Pick:
    """A profile (None: there is none), and why: the origin that its settings are shown with."""

    profile: Path | None = None
    why: str = ""


def pick_profile(measured: Sequence[Path], known: Path, facts: Callable[[], MachineFacts]) -> Pick:
    """The first of the `measured` files that there is, or the known device of that folder that this machine is."""
    here, file = facts(), next((file for file in measured if file.is_file()), None)
    if file is None:
        name = known_device(here)
        profile = known / f"{name}.yaml"
        return Pick(profile, KNOWN) if name and profile.is_file() else Pick()
    try:
        machine = resolve(AgentConfig, files=[file]).config.device.machine
    except ConfigError as error:
        return Pick(None, f"{NOT_PICKED}: {error}")
    if machine and machine != here.fingerprint:
        return Pick(None, f"{NOT_PICKED}: {file} was measured on another machine ({machine}); this one is {here.fingerprint}")
    return Pick(file, MEASURED)


def known_profiles() -> Path:
    """The folder of the profiles that come with the package, or with its source."""
    return _PACKAGED if _PACKAGED.is_dir() else _SOURCE


def known_device(facts: MachineFacts) -> str:
    """The name of the profile of this kind of machine; "" where there is none."""
    return next((name for name, is_one in _KINDS if is_one(facts)), "")


def _has(memory_gib: int) -> Callable[[MachineFacts], bool]:
    """Whether the machine was sold with this much memory."""
    return lambda facts: _SMALL_SHARE * memory_gib * _GIB <= facts.memory_mib <= memory_gib * _GIB


def _is_orin_nano(facts: MachineFacts) -> bool:
    return "Orin Nano" in facts.board and _has(8)(facts)


def _is_laptop(facts: MachineFacts) -> bool:
    return facts.has_battery and not facts.is_phone and not facts.board and "avx2" in facts.flags


_KINDS: tuple[tuple[str, Callable[[MachineFacts], bool]], ...] = (
    ("jetson-orin-nano-super", lambda facts: _is_orin_nano(facts) and facts.board.endswith("Super")),
    ("jetson-orin-nano", _is_orin_nano),
    ("jetson-agx-orin", lambda facts: "AGX Orin" in facts.board and _has(64)(facts)),
    ("raspberry-pi-5", lambda facts: facts.board.startswith("Raspberry Pi 5 ") and _has(8)(facts)),
    ("macbook-air-m3", lambda facts: facts.model in ("Mac15,12", "Mac15,13") and _has(16)(facts)),
    ("phone", lambda facts: facts.is_phone),
    ("laptop-nvidia-8gb", lambda facts: _is_laptop(facts) and _SMALL_SHARE * 8 * _GIB <= facts.gpu_memory_mib <= 8 * _GIB),
    ("laptop-avx2", lambda facts: _is_laptop(facts) and facts.gpu_memory_mib == 0),
)


_HEADING = """\
# Device profile, as edge-agent doctor --measure found it: what the device reaches, and the batch that suits it.
# Use it with --device-profile FILE. Fields: devices/README.md.
"""


def profile_text(device: DeviceConfig, settings: Mapping[str, Mapping[str, Any]], doubt: str = "") -> str:
    """The file: what was measured, and sections of settings; `doubt`: why the numbers may be wrong.

    Raises ValidationError when the settings are none.
    """
    measured = device.model_dump(mode="json", exclude_defaults=True)
    AgentConfig.model_validate({"device": measured, **settings})
    remark = "".join(f"# {line}\n" for line in doubt.splitlines())
    return _HEADING + remark + yaml.safe_dump({"device": measured, **settings}, sort_keys=False, allow_unicode=True)


def check_writable(path: Path) -> None:
    """Raise UsageError where no file can be written, which is tried in its folder."""
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            writable = not path.is_dir()
    except OSError:
        writable = False
    if not writable:
        raise UsageError(f"{path}: cannot be written", hint="give a file in a folder that is there")


def write_profile(path: Path, text: str) -> None:
    """Put the file in place, whole or not at all. Raises UsageError."""
    check_writable(path)
    try:
        write_atomically(path, text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
