"""What this machine is: board, processor, graphics processor, memory, battery, as each operating system reports them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The first processor's feature words (x86 `flags`, Arm `Features`); empty where the file is absent."""
    features = (words for key, words in _entries(cpuinfo) if key.lower() in ("flags", "features"))
    return frozenset(next(features, "").split())


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The first processor's name; "" where the file is absent or has none."""
    return next((name.strip() for key, name in _entries(cpuinfo) if key.lower() == "model name"), "")


def usable_cores() -> int:
    """Logical cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_cores() -> int:
    """Physical cores this process may use, at least 1."""
    import psutil

    allowed = usable_cores()
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def nvidia_driver(root: Path = Path("/")) -> bool:
    """Whether the driver of an NVIDIA graphics processor runs here (Linux; a Jetson's has devices of its own)."""
    return any((root / place).exists() for place in ("proc/driver/nvidia/version", "dev/nvhost-gpu", "dev/nvgpu"))


def _entries(cpuinfo: Path) -> list[tuple[str, str]]:
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [(key.strip(), value) for key, _, value in (line.partition(":") for line in lines)]


_ASKING_S = 5.0
"""Time limit of a program that reports on the machine."""
_BATTERY = "Battery"


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """`board` as the device tree names it (Jetson, Raspberry Pi), `model` as Apple numbers its machines, `gpu_memory_mib` of an NVIDIA
    graphics processor of its own (0: none). What a system does not report is empty.
    """

    architecture: str = ""
    board: str = ""
    chip: str = ""
    model: str = ""
    flags: frozenset[str] = frozenset()
    cores: int = 0
    memory_mib: int = 0
    gpu_memory_mib: int = 0
    has_battery: bool = False
    is_phone: bool = False

    @property
    def fingerprint(self) -> str:
        """What stays the same as long as it is this machine: architecture, board or processor, cores."""
        name = self.board or self.model or self.chip or "unknown processor"
        return f"{self.architecture}, {name}, {self.cores} cores"


def machine_facts(root: Path = Path("/")) -> MachineFacts:
    """Everything that this machine reports; never raises."""
    board = _text(root / "proc/device-tree/model")
    battery = has_battery(root)
    return MachineFacts(
        architecture=platform.machine(),
        board=board,
        chip=cpu_name(root / "proc/cpuinfo") or _asked("sysctl", "-n", "machdep.cpu.brand_string"),
        model=_asked("sysctl", "-n", "hw.model"),
        flags=cpu_flags(root / "proc/cpuinfo"),
        cores=os.cpu_count() or 1,
        memory_mib=_memory_mib(),
        gpu_memory_mib=_gpu_memory_mib() if battery and not board and nvidia_driver(root) else 0,
        has_battery=battery,
        is_phone=hasattr(sys, "getandroidapilevel") or (root / "system/build.prop").exists(),
    )


def has_battery(root: Path = Path("/")) -> bool:
    """Whether the machine itself runs on a battery (Linux); that of a mouse does not count."""
    return any(True for _ in _batteries(root))


def battery_wh(root: Path = Path("/")) -> float | None:
    """Watt-hours of the batteries when full, by their own gauges (Linux); None where one has no gauge."""
    return _of_all(
        _gauge(folder, "energy_full", "charge_full", "voltage_min_design", "voltage_now") for folder in _batteries(root)
    )


def drawn_w(root: Path = Path("/")) -> float | None:
    """Watts that the batteries give at this moment (Linux); None on mains, or without a gauge."""
    folders = _batteries(root)
    if any(_text(folder / "status") != "Discharging" for folder in folders):
        return None
    return _of_all(_gauge(folder, "power_now", "current_now", "voltage_now") for folder in folders) or None


def _batteries(root: Path) -> list[Path]:
    folders = sorted((root / "sys/class/power_supply").glob("*"))
    return [folder for folder in folders if _text(folder / "type") == _BATTERY and _text(folder / "scope") != "Device"]


def _gauge(folder: Path, whole: str, flow: str, *voltages: str) -> float | None:
    """Watts or watt-hours: the gauge `whole`, else `flow` (amperes) times the first voltage that there is; all in millionths."""
    if (value := _number(folder / whole)) is not None:
        return abs(value) / 1e6
    amperes, voltage = _number(folder / flow), next(filter(None, (_number(folder / name) for name in voltages)), None)
    return None if amperes is None or voltage is None else abs(amperes * voltage) / 1e12


def _of_all(values: Iterable[float | None]) -> float | None:
    """The sum; None where there is no value or one is not known."""
    known = list(values)
    return None if not known or None in known else sum(filter(None, known))


def _number(file: Path) -> float | None:
    try:
        return float(_text(file))
    except ValueError:
        return None


def _text(file: Path) -> str:
    """The file's text without the zero byte that device trees end it with; "" where there is none."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip("\0 \n")
    except OSError:
        return ""


def _memory_mib() -> int:
    try:
        return (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) >> 20
    except (AttributeError, OSError, ValueError):
        return 0


def _gpu_memory_mib() -> int:
    """Of the first NVIDIA graphics processor."""
    lines = _asked("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits").splitlines()
    return int(lines[0]) if lines and lines[0].strip().isdigit() else 0


def _asked(*command: str) -> str:
    """What a program prints; "" where there is none, it fails, or it takes too long. `sysctl` knows these names on a Mac alone."""
    if command[0] == "sysctl" and sys.platform != "darwin":
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASKING_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
