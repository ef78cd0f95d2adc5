"""Whether a model's weights are held in memory as floats or stay in the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

Weights = Literal["auto", "resident", "streamed"]

RESIDENT_UP_TO_BYTES = 512 << 20
RESIDENT_SHARE = 1 / 8
_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUP_VERSIONS = (
    ("", "", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of both versions of control groups: controller, folder, and the files and key of the limit, what is used, and what can be reclaimed."""


def choose_weights(
    setting: Weights, needed_bytes: int, available_bytes: int, *, own_memory: bool = False
) -> Literal["resident", "streamed"]:
    """What the setting means for a model whose weights take so much: "auto" holds small ones, where they take little of what is free.

    `own_memory`: it is a graphics processor's own, where nothing of the file lies already; then floats may take half of it.
    """
    if setting != "auto":
        return setting
    if own_memory:
        return "resident" if 2 * needed_bytes <= available_bytes else "streamed"
    return "resident" if needed_bytes <= min(RESIDENT_UP_TO_BYTES, RESIDENT_SHARE * available_bytes) else "streamed"


def available_memory(free: Callable[[], int] | None = None, cgroup: Path = _CGROUP, own: Path = _OWN_GROUPS) -> int:
    """Bytes that can still be taken: what the system has free (`free`), or less where a control group allows less.

    `own` names this process's groups; each of them, and each above it up to `cgroup`, has a limit of its own, and the smallest rest holds.
    Page cache that nobody uses is not counted as used.
    """
    import psutil

    rests = [free() if free else int(psutil.virtual_memory().available)]
    try:
        lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        lines = []
    own_paths = {controller: line[2] for line in lines if len(line) == 3 for controller in line[1].split(",")}
    for controller, root, limit, used, reclaimable in _GROUP_VERSIONS:
        parts = [part for part in own_paths.get(controller, "").split("/") if part not in ("", ".", "..")]
        for depth in range(len(parts), -1, -1):
            folder = cgroup.joinpath(root, *parts[:depth])
            try:
                rest, in_use = (int((folder / name).read_text(encoding="ascii")) for name in (limit, used))
            except (OSError, ValueError):  # no such group, or its limit is "max"
                continue
            rests.append(rest - max(0, in_use - _reclaimable(folder / "memory.stat", reclaimable)))
    return max(0, min(rests))


def _reclaimable(file: Path, name: str) -> int:
    """The number after a name in memory.stat, 0 where there is none."""
    try:
        return int(dict(line.split() for line in file.read_text(encoding="ascii").splitlines())[name])
    except (OSError, ValueError, KeyError):
        return 0
