"""Our coordinator with its stacks watched: where processor time goes, by function.

    python -m tools.bench.coordinator.profiled PROFILE CONFIG

A signal comes after every so many milliseconds of processor time; what the event loop and the ledger's thread do then is counted
for each of our functions on the stack. The shares lie in PROFILE when the service ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

EVERY_S = 0.002
MOST = 80
LOOKS_PER_TALLY = 100
WAITING = frozenset({"selectors.EpollSelector.select", "sqlite.Writer._next_batch", "sqlite._Writer._next_batch"})
WRITER = "ledger-writer"
OURS_PARTS = frozenset({"coordinator", "edge"})
OUTER = frozenset({"cli", "commands", "bootstrap"})
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Profile:
    """Counts stacks."""

    def __init__(self) -> None:
        self._samples: Counter[str] = Counter()
        self._ours: dict[str, Counter[str]] = {"loop": Counter(), "ledger": Counter()}
        self._writer = 0
        self._looks = 0
        self._seconds: dict[str, float] = {}

    def look(self, _number: int, frame: FrameType | None) -> None:
        """A signal handler."""
        self._looks += 1
        self._count("loop", frame)
        writer = next((thread for thread in threading.enumerate() if thread.name == WRITER), None)
        if writer is not None:
            self._writer = writer.native_id or 0
        self._count("ledger", sys._current_frames().get(writer.ident or 0) if writer is not None else None)
        if self._looks % LOOKS_PER_TALLY == 0:
            self._seconds = thread_seconds({os.getpid(): "loop", self._writer: "ledger"})

    def shares(self) -> dict[str, Any]:
        """By thread: samples, and the shares of the coordinator's own functions on the stack; and processor seconds.

        A thread that waits for a disk or a lock inside a function is counted there too; its processor seconds tell how much that is.
        """
        told: dict[str, Any] = {}
        for name, counts in self._ours.items():
            samples = self._samples[name]
            shares = {function: count / samples for function, count in counts.most_common(MOST)}
            told[name] = {"samples": samples, "ours": shares}
        return {**told, "threads_s": self._seconds}

    def _count(self, thread: str, frame: FrameType | None) -> None:
        found = list(_functions(frame))
        if not found or found[0][0] in WAITING:
            return
        self._samples[thread] += 1
        self._ours[thread].update({name for name, is_ours in found if is_ours})


def _functions(frame: FrameType | None) -> Iterator[tuple[str, bool]]:
    """Functions, innermost first, and whether they are the coordinator's own."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        yield f"{path.stem}.{frame.f_code.co_qualname}", _is_ours(path)
        frame = frame.f_back


def _is_ours(path: Path) -> bool:
    parts = path.parts
    return "site-packages" not in parts and "bench" not in parts and path.stem not in OUTER and not OURS_PARTS.isdisjoint(parts)


def thread_seconds(names: Mapping[int, str]) -> dict[str, float]:
    """Processor seconds of this process's threads by name; those without one together."""
    found: Counter[str] = Counter()
    for folder in Path("/proc/self/task").glob("*"):
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        found[names.get(int(folder.name), "gRPC and others")] += int(fields[11]) + int(fields[12])
    return {name: ticks / TICKS_PER_S for name, ticks in found.most_common()}


def main(arguments: Sequence[str]) -> None:
    """Serve, watched."""
    from coordinator.cli import main as coordinator

    profile = Profile()
    signal.signal(signal.SIGPROF, profile.look)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
    try:
        coordinator(["serve", "--config", arguments[1], "--json"])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        Path(arguments[0]).write_text(json.dumps(profile.shares()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
