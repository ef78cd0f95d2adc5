"""Whether two mathematical answers are equivalent. Knows the comparing process and its limits; knows nothing of items or rewards.

math-verify guards itself with signals, which work on the main thread only and do not reach a long computation in C. So it runs in a
process of its own (equivalence_worker.py), limited in CPU time and memory by the kernel: whatever a model boxes, the caller gets an
answer. CPU time and not the wall clock decides, so that verdicts do not depend on what else the machine does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import select
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from edge.core.errors import EdgeError, UsageError

_WORKER = Path(__file__).with_name("equivalence_worker.py")
_MEMORY_BYTES = 1 << 30
_LONGEST = 500
_REMEMBERED = 4096
_WHOLE_NUMBER = re.compile(r"[+-]?\d{1,100}")


def equivalence_available() -> bool:
    """Whether the package math-verify is installed (looked up, not imported)."""
    return importlib.util.find_spec("math_verify") is not None


class Equivalence:
    """Compares answers in LaTeX; safe to call from any thread. The process starts with the first comparison that needs it."""

    def __init__(self, *, cpu_s: float = 2.0, wall_s: float = 60.0) -> None:
        """`cpu_s` bounds one comparison, `wall_s` the wait for a reply. Raises UsageError when math-verify is not installed."""
        if not equivalence_available():
            raise UsageError(
                "equivalence of mathematical answers needs the package math-verify, which is not installed",
                hint="run pip install 'edge-agent[lab]', or use answer_match exact",
            )
        self._cpu_s = cpu_s
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self._process: subprocess.Popen[bytes] | None = None
        self._stop: Callable[[], object] = lambda: None

    def equivalent(self, reference: str, answer: str) -> bool:
        """True when `answer` means the same as `reference`; False for what cannot be read or takes too long.

        Never raises on any text. Raises EdgeError when the comparing process cannot be started.
        """
        reference, answer = reference.strip(), answer.strip()
        if reference == answer:
            return bool(reference)
        if max(len(reference), len(answer)) > _LONGEST or not (reference and answer):
            return False
        if _WHOLE_NUMBER.fullmatch(reference) and _WHOLE_NUMBER.fullmatch(answer):
            return int(reference) == int(answer)
        with self._lock:
            return self._remembered(reference, answer)

    def close(self) -> None:
        """End the process; a later comparison starts another."""
        with self._lock:
            self._end()

    def _remembered(self, reference: str, answer: str) -> bool:
        pair = (reference, answer)
        if pair not in self._known:
            self._known[pair] = self._ask(pair)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return self._known[pair]

    def _ask(self, pair: tuple[str, str]) -> bool:
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(pair).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            self._end()
            return False
        reply = self._line(process)
        if not reply:
            self._end()
        return reply == "1"

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        process = subprocess.Popen(
            [sys.executable, "-I", str(_WORKER), str(self._cpu_s), str(_MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,  # Ctrl-C in the terminal is the agent's to handle
        )
        self._process, self._stop = process, weakref.finalize(self, _end_process, process)
        if self._line(process) != "ready":
            self._end()
            raise EdgeError(
                "the process that compares mathematical answers did not start", hint="check: python -c 'import math_verify'"
            )
        return process

    def _line(self, process: subprocess.Popen[bytes]) -> str:
        """One line of the process's output; "" when it has ended or says nothing for `wall_s`."""
        assert process.stdout is not None
        line, descriptor = b"", process.stdout.fileno()
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], self._wall_s)
            chunk = os.read(descriptor, 64) if ready else b""
            if not chunk:
                return ""
            line += chunk
        return line.decode("ascii", "replace").strip()

    def _end(self) -> None:
        self._stop()
        self._process = None


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue
