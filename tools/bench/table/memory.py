"""What one process takes while it works: memory by part of the work, and where the time of one thread goes.

Of memory, `anon` is what the process has allocated, `file` what it maps and has touched (the weights in a GGUF file): pages that the system
can drop. The peak that counts for goals is the kernel's own (VmHWM), which misses no moment; peaks by part come from looking many times a
second. A file that is mapped twice, as weights are that serve and train, is counted twice there; `once_mib` counts its pages once (the
proportional set size).

Of time, a moment is booked on the innermost function of this project that is on the thread's stack, and on the part of the work. Calls into
llama.cpp and torch count for the function that makes them; the gradients of a backward pass count for whoever asked for them.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Self

_FIELDS = {"VmHWM": "peak_mib", "VmRSS": "rss_mib", "RssAnon": "anon_mib", "RssFile": "file_mib"}
PACKAGE = "edge"
MOST = 6


class _Sampler:
    """Looks again and again on a thread of its own until it is left. Use as a context manager."""

    def __init__(self, name: str, every_s: float) -> None:
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stop.wait(self._every_s):
            self._sample()

    def _sample(self) -> None:
        raise NotImplementedError


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


class MemoryWatch(_Sampler):
    """Keeps, for every part of the work, the moment at which most was resident."""

    def __init__(self, every_s: float = 0.02, *, count_pages_once: bool = False) -> None:
        """`count_pages_once` looks at the page tables once a second, which costs some milliseconds a GB."""
        super().__init__("memory-watch", every_s)
        self._looks_a_second = round(1.0 / every_s) if count_pages_once else 0
        self._looks = 0
        self._file_once = 0.0
        self._once = 0.0
        self._part = "start"
        self._peaks: dict[str, dict[str, float]] = {}

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

    def _sample(self) -> None:
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


class StackWatch(_Sampler):
    """Samples the stack of the thread of this name; `part` returns what is being done."""

    def __init__(self, thread: str, part: Callable[[], str], every_s: float = 0.01) -> None:
        super().__init__("stack-watch", every_s)
        self._name = thread
        self._part = part
        self._counts: dict[str, Counter[str]] = {}

    def shares(self) -> dict[str, dict[str, float]]:
        """By part, the functions that took most of it: share of the moments in which the thread was at work."""
        return {part: most_of(counts) for part, counts in self._counts.items()}

    def _sample(self) -> None:
        watched = next((thread.ident for thread in threading.enumerate() if thread.name == self._name), None)
        found = innermost(sys._current_frames().get(watched) if watched is not None else None)
        if found is not None:
            self._counts.setdefault(self._part(), Counter())[found] += 1


def innermost(frame: FrameType | None) -> str | None:
    """`module.function` of the innermost frame of the package; None for a thread that waits for work."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if PACKAGE in path.parts and "site-packages" not in path.parts:
            name = f"{path.stem}.{frame.f_code.co_qualname}"
            return None if name == "worker.EngineWorker._loop" else name
        frame = frame.f_back
    return None


def most_of(counts: Mapping[str, int]) -> dict[str, float]:
    """The shares of the most frequent, greatest first."""
    total = sum(counts.values())
    return {name: count / total for name, count in sorted(counts.items(), key=lambda entry: -entry[1])[:MOST]}
