"""The memory of one process by part of its work.

`anon` is what the process has allocated, `file` what it maps and has touched (the weights in a GGUF file): pages that the system can drop.
The peak for goals is the kernel's own (VmHWM), which is exact; peaks by part come from many samples per second. A file that is mapped
twice, such as weights that serve and train, is counted twice there; `once_mib` counts its pages once (the proportional set size).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

_FIELDS = {"VmHWM": "peak_mib", "VmRSS": "rss_mib", "RssAnon": "anon_mib", "RssFile": "file_mib"}


def memory_now(process: int | str = "self") -> dict[str, float]:
    """MiB by kind; {} where there is no such process or the system keeps no such counts."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    found = (line.partition(":") for line in lines)
    return {_FIELDS[name]: int(rest.split()[0]) / 1024 for name, _, rest in found if name in _FIELDS}


def file_pages_once() -> float:
    """MiB of file pages this process has mapped, shared ones proportionally (Pss_File); 0 where the system does not report it."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss_File:")), 0.0)


def peak_of_children(without: int = 0) -> float:
    """The sum of the peaks of the processes this one has started, in MiB, `without` that process."""
    import psutil

    children = psutil.Process(os.getpid()).children(recursive=True)
    return sum(memory_now(child.pid).get("peak_mib", 0.0) for child in children if child.pid != without)


class MemoryWatch:
    """Keeps the peak of resident memory for every part of the work. Samples on its own thread until the block ends; a context manager.
    `current`: the current part. `once_mib`: the peak with every page of a file counted once, 0 where that is not measured.
    """

    def __init__(self, every_s: float = 0.02, *, count_pages_once: bool = False) -> None:
        """`count_pages_once` reads the page tables once a second, which costs some milliseconds per GB."""
        self._every_s = every_s
        self._samples_per_s = round(1.0 / every_s) if count_pages_once else 0
        self._file_once = 0.0
        self._peaks: dict[str, dict[str, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="memory-watch", daemon=True)
        self.current = "start"
        self.once_mib = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def part(self, name: str) -> None:
        """From now on it is this that is done."""
        self._sample()
        self.current = name

    def peaks(self) -> Mapping[str, Mapping[str, float]]:
        """By part, in the order in which they were first seen: MiB by kind at the fullest moment."""
        self._sample()
        return self._peaks

    def _loop(self) -> None:
        samples = 0
        while not self._stop.wait(self._every_s):
            self._sample()
            if self._samples_per_s and samples % self._samples_per_s == 0:
                self._file_once = max(self._file_once, file_pages_once())
            samples += 1

    def _sample(self) -> None:
        now = memory_now()
        if not now:
            return
        now.pop("peak_mib")
        if self._file_once:
            self.once_mib = max(self.once_mib, now["anon_mib"] + self._file_once)
        known = self._peaks.get(self.current)
        if known is None or now["rss_mib"] > known["rss_mib"]:
            self._peaks[self.current] = now
