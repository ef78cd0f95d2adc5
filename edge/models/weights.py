"""Whether a model's weights are held in memory as floats or stay in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Weights = Literal["auto", "resident", "streamed"]

RESIDENT_UP_TO_BYTES = 512 << 20
RESIDENT_SHARE = 1 / 8
_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def choose_weights(
    setting: Weights, parameters: int, available_bytes: int, *, own_memory: bool = False
) -> Literal["resident", "streamed"]:
    """What the setting means for a model of this many parameters: "auto" holds small ones, where they take little of what is free.

    `own_memory`: it is a graphics processor's own, where nothing of the file lies already; then floats may take half of it.
    """
    if setting != "auto":
        return setting
    needed = 4 * parameters
    if own_memory:
        return "resident" if 2 * needed <= available_bytes else "streamed"
    return "resident" if needed <= min(RESIDENT_UP_TO_BYTES, RESIDENT_SHARE * available_bytes) else "streamed"


def available_memory(free: Callable[[], int] | None = None, cgroup: Path = _CGROUP, own: Path = _OWN_GROUPS) -> int:
    """Bytes that can still be taken: what the system has free (`free`), or less where a control group allows less.

    `own` names this process's groups; each of them, and each above it up to `cgroup`, has a limit of its own, and the smallest rest holds.
    """
    rests = [rest for folder, names in _groups(cgroup, own) if (rest := _rest(folder, names)) is not None]
    return max(0, min([_system_free() if free is None else free(), *rests]))


@dataclass(frozen=True, slots=True)
class _Names:
    """What a version of control groups calls its limit, what is used, and the part of that which is given back on demand."""

    limit: str
    used: str
    reclaimable: str


_SECOND = _Names("memory.max", "memory.current", "inactive_file")
_FIRST = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _groups(cgroup: Path, own: Path) -> Iterator[tuple[Path, _Names]]:
    """The folders of this process's groups and of those above, of either version."""
    paths = _own_paths(own)
    for root, names, key in ((cgroup, _SECOND, ""), (cgroup / "memory", _FIRST, "memory")):
        parts = [part for part in paths.get(key, "").split("/") if part not in ("", ".", "..")]
        for depth in range(len(parts), -1, -1):
            yield root.joinpath(*parts[:depth]), names


def _own_paths(own: Path) -> dict[str, str]:
    """The paths of this process's groups by controller, "" for the second version."""
    try:
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    fields = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return {controller: path for _, controllers, path in fields for controller in controllers.split(",")}


def _rest(folder: Path, names: _Names) -> int | None:
    """What a group may still take; page cache that nobody uses is not counted as used. None without a limit."""
    limit, used = _number(folder / names.limit), _number(folder / names.used)
    if limit is None or used is None:
        return None
    return limit - max(0, used - _reclaimable(folder / "memory.stat", names.reclaimable))


def _reclaimable(file: Path, name: str) -> int:
    """The number behind a name in memory.stat, 0 where there is none."""
    try:
        fields = dict(line.split() for line in file.read_text(encoding="ascii").splitlines())
        return int(fields[name])
    except (OSError, ValueError, KeyError):
        return 0


def _system_free() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def _number(file: Path) -> int | None:
    """The number in a file; None where it is absent or says "max"."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
