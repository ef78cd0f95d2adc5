"""A coordinator that samples itself.

    python -m tools.bench.coordinator.profiled RESULT serve ...

The words after RESULT are the coordinator's own. SIGUSR1 begins and SIGUSR2 ends the measured time and writes RESULT: processor seconds of
each thread, and of the main one how they divide among GROUPS. A sample is the stack after some milliseconds of the process's processor
time, and weighs what the main thread has used since the last one. It belongs to the innermost frame of a file that a group names; what C
code does belongs to who called it. What uvloop and gRPC's own code do on the event loop has no frame: it is with the loop.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from coordinator.cli import main

SAMPLE_S = 0.004
LOOP = "event loop, sockets, gRPC's core"
GROUPS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("authentication", ("service/authentication.py", "service/tokens.py", "service/access.py", "control/devices.py")),
    ("parsing and encoding", ("endpoint/requests.py", "endpoint/replies.py", "endpoint/api.py", "rpc/codec.py", "rpc/client.py")),
    ("parsing and encoding", ("rpc/openai_fields.py", "google/protobuf/")),
    ("metrics", ("service/instruments.py", "service/metrics.py")),
    ("transport", ("/aiohttp/", "/grpc/", "/multidict/", "/yarl/", "service/http_listener.py", "service/methods.py")),
    ("transport", ("service/server.py", "service/device_api.py", "endpoint/listener.py")),
    ("upstream HTTP client", ("/providers/",)),
    ("ledger: group commit on the loop", ("stores/group_commit.py", "stores/sqlite.py", "stores/store.py", "stores/changes.py")),
    ("ledger: transitions and rows", ("coordinator/ledger/",)),
    ("broker", ("coordinator/calls/", "coordinator/control/", "coordinator/deadlines.py", "service/budget_watch.py")),
)
"""Of files, by what their paths contain; the first that fits counts."""


def group_of(file: str) -> str | None:
    """The group of a file, None where it belongs to who called it."""
    return next((group for group, parts in GROUPS if any(part in file for part in parts)), None)


class Sampler:
    """Samples between `begin` and `end`."""

    def __init__(self, result: Path) -> None:
        self._result = result
        self._seconds: dict[str, float] = defaultdict(float)
        self._last = 0.0
        self._threads: dict[str, float] = {}
        self._known: dict[str, str | None] = {}

    def begin(self, _number: int, _frame: FrameType | None) -> None:
        """The measured time begins."""
        self._threads = thread_seconds()
        self._last = time.thread_time()
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)

    def end(self, _number: int, _frame: FrameType | None) -> None:
        """It is over."""
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        threads = {name: seconds - self._threads.get(name, 0.0) for name, seconds in thread_seconds().items()}
        found = {"threads": threads, "groups": dict(self._seconds)}
        partial = self._result.with_suffix(".partial")
        partial.write_text(json.dumps(found), encoding="utf-8")
        partial.replace(self._result)

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        now = time.thread_time()
        seconds, self._last = now - self._last, now
        while frame is not None:
            group = self._group(frame)
            if group is not None:
                break
            frame = frame.f_back
        self._seconds[group if frame is not None and group is not None else LOOP] += seconds

    def _group(self, frame: FrameType) -> str | None:
        file = frame.f_code.co_filename
        if file not in self._known:
            self._known[file] = group_of(file)
        return self._known[file]


def thread_seconds() -> dict[str, float]:
    """Processor seconds of each thread by name; those that Python did not start together."""
    import psutil

    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[str, float] = defaultdict(float)
    for thread in psutil.Process().threads():
        found[names.get(thread.id, "threads of libraries")] += thread.user_time + thread.system_time
    return dict(found)


def run(arguments: Sequence[str]) -> int:
    """The coordinator."""
    sampler = Sampler(Path(arguments[0]))
    signal.signal(signal.SIGUSR1, sampler.begin)
    signal.signal(signal.SIGUSR2, sampler.end)
    signal.siginterrupt(signal.SIGPROF, False)
    return main(arguments[1:])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
