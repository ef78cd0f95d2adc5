"""What memory this process takes, by kind and by what it is doing. Reads Linux's own counts; allocates nothing to speak of.

`anon` is what the process has allocated, `file` what it maps and has touched (the weights in a GGUF file): pages that the system can drop.
The peak that counts for goals is the kernel's own (VmHWM), which misses no moment; the peaks by part come from looking many times a
second. A file that is mapped twice, as weights are that serve and train, is counted twice there; `once_mib` counts its pages once (the
proportional set size).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FIELDS = {"VmHWM": "peak_mib", "VmRSS": "rss_mib", "RssAnon": "anon_mib", "RssFile": "file_mib"}


def memory_now(process: int | str = "self", root: Path = Path("/proc")) -> dict[str, float]:
    """MiB by kind; {} where there is no such process or the system keeps no such counts."""
    try:
        lines = (root / str(process) / "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    found = (line.partition(":") for line in lines)
    return {_FIELDS[name]: int(rest.split()[0]) / 1024 for name, _, rest in found if name in _FIELDS}


def file_pages_once(root: Path = Path("/proc")) -> float:
    """MiB of file pages this process has mapped, shared ones in parts (Pss_File); 0 where the system does not tell."""
    try:
        lines = (root / "self" / "smaps_rollup").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss_File:")), 0.0)


def peak_of_children(without: int = 0) -> float:
    """The sum of the peaks of the processes this one has started, in MiB, `without` that process."""
    import psutil

    children = psutil.Process(os.getpid()).children(recursive=True)
    return sum(memory_now(child.pid).get("peak_mib", 0.0) for child in children if child.pid != without)


class MemoryWatch:
    """A thread that keeps, for every part of the work, the moment at which most was resident. Use as a context manager."""

    def __init__(self, every_s: float = 0.02, *, count_pages_once: bool = False) -> None:
        """`count_pages_once` looks at the page tables once a second, which costs some milliseconds a GB."""
        self._every_s = every_s
        self._looks_a_second = round(1.0 / every_s) if count_pages_once else 0
        self._looks = 0
        self._file_once = 0.0
        self._once = 0.0
        self._part = "start"
        self._peaks: dict[str, dict[str, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="memory-watch", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def part(self, name: str) -> None:
        """From now on it is this that is done."""
        self._look()
        self._part = name

    @property
    def current(self) -> str:
        """What is being done."""
        return self._part

    def peaks(self) -> Mapping[str, Mapping[str, float]]:
        """By part, in the order in which they were first seen: MiB by kind at the fullest moment."""
        self._look()
        return self._peaks

    @property
    def once_mib(self) -> float:
        """The most that was resident with every page of a file counted once, MiB; 0 where that is not looked at."""
        return self._once

    def _loop(self) -> None:
        while not self._stop.wait(self._every_s):
            self._look()
            self._looks += 1
            if self._looks_a_second and self._looks % self._looks_a_second == 1:
                self._file_once = max(self._file_once, file_pages_once())

    def _look(self) -> None:
        now: dict[str, Any] = memory_now()
        now.pop("peak_mib", None)
        if self._file_once and now:
            self._once = max(self._once, now["anon_mib"] + self._file_once)
        known = self._peaks.get(self._part)
        if now and (known is None or now["rss_mib"] > known["rss_mib"]):
            self._peaks[self._part] = now
