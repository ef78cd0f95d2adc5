"""Where a process's time goes, by looking at one thread many times a second. Knows stacks; knows nothing of what the functions do.

A moment is booked on the innermost function of this project that is on the thread's stack, and on what the process is doing at that time.
Calls into llama.cpp and torch count for the function that makes them; the gradients of a backward pass count for whoever asked for them.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

PACKAGE = "edge"
MOST = 6


class StackWatch:
    """Samples the thread of this name until it is left; `part` tells what is being done. Use as a context manager."""

    def __init__(self, thread: str, part: Callable[[], str], every_s: float = 0.01) -> None:
        self._name = thread
        self._part = part
        self._every_s = every_s
        self._counts: dict[str, Counter[str]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="stack-watch", daemon=True)

    def __enter__(self) -> StackWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def shares(self) -> dict[str, dict[str, float]]:
        """By part, the functions that took most of it: share of the moments in which the thread was at work."""
        return {part: most_of(counts) for part, counts in self._counts.items()}

    def _loop(self) -> None:
        while not self._stop.wait(self._every_s):
            watched = next((thread.ident for thread in threading.enumerate() if thread.name == self._name), None)
            frame = sys._current_frames().get(watched) if watched is not None else None
            found = innermost(frame)
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
