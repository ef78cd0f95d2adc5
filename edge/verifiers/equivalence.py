"""Whether two mathematical answers are equivalent.

math-verify guards itself with signals, which work on the main thread only and do not reach a long computation in C. So it runs in a
process of its own (equivalence_worker.py), limited in CPU time and memory by the kernel: whatever a model boxes, the caller gets an
answer. CPU time and not the wall clock decides, so that verdicts do not depend on what else the machine does; a process that goes on
after its CPU limit all the same is killed a moment later.

math-verify takes the last side of an equation, and a percentage both with and without its hundredth. Here `3=4=5` is not 5, since its
sides differ (`x=5` is), and `10\\%` is 0.1 and not 10. It reads LaTeX, in which 1e16 is a product and 1 000.5 is none: such numbers are
written for it as LaTeX has them.
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

from edge.core.answer_key import without_invisible
from edge.core.errors import EdgeError, UsageError
from edge.core.install import pip_install

_WORKER = Path(__file__).with_name("equivalence_worker.py")
_MEMORY_BYTES = 1 << 30
_LONGEST = 500
_REMEMBERED = 4096
_LOOK_S = 0.5
_GRACE_LOOKS = 4  # checks past the CPU limit after which the process is killed
_THOUSANDS = re.compile(r"\{,\}|(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_SEVERAL = re.compile(r"[,;&\n]|\\\\|\\(?:begin|quad|qquad|land|lor|not)\b|\b(?:and|or)\b")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_PERCENT = re.compile(r"\\?%")
_BLANK_IN_NUMBER = re.compile(r"(?<=[0-9])\s+(?=[0-9]{3}(?![0-9]))")
_EXPONENT = re.compile(r"([+-]?[0-9.]+)[eE]([+-]?[0-9]{1,6})")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,100}")


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
                hint=f"run {pip_install('math-verify antlr4-python3-runtime')}, or use answer_match exact",
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
        reference, answer = _as_latex(reference), _as_latex(answer)
        if reference == answer:
            return bool(reference)
        if max(len(reference), len(answer)) > _LONGEST or not (reference and answer):
            return False
        if _WHOLE_NUMBER.fullmatch(reference) and _WHOLE_NUMBER.fullmatch(answer):
            return int(reference) == int(answer)
        pair = (reference, answer)
        if (known := self._known.get(pair)) is not None:
            return known  # without waiting for a comparison that takes long
        with self._lock:
            if pair not in self._known:
                agree = all(map(self._sides_agree, pair)) and not self._differ_by_percent(reference, answer)
                self._known[pair] = agree and self._ask(pair)
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
            return self._known[pair]

    def close(self) -> None:
        """End the process; a later comparison starts another."""
        with self._lock:
            self._end()

    def _sides_agree(self, text: str) -> bool:
        """Whether all numbers of a chain like 2+3=5 are the same; a name on the left is no number of the chain."""
        first, *others = _sides(text) or [""]
        chain = [first, *others] if _is_number(first) else others
        return all(chain[0] == side or self._ask((chain[0], side)) for side in chain[1:])

    def _differ_by_percent(self, reference: str, answer: str) -> bool:
        """Whether one is a percentage, and the other the same number without being one."""
        if bool(_PERCENT.search(reference)) == bool(_PERCENT.search(answer)):
            return False
        bare = [_PERCENT.sub("", text).strip() for text in (reference, answer)]
        return (bare[0] == bare[1] or self._ask((bare[0], bare[1]))) and not self._ask((bare[0], "0"))

    def _ask(self, pair: tuple[str, str]) -> bool:
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(pair).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            self._end()
            return False
        reply = self._line(process, self._cpu_s)
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

    def _line(self, process: subprocess.Popen[bytes], limit_s: float | None = None) -> str:
        """One line of the process's output; "" when it has ended, runs on past its CPU limit, or is silent for `wall_s`."""
        assert process.stdout is not None
        line, descriptor = b"", process.stdout.fileno()
        begun_s, late = _cpu_s(process.pid), 0
        for _ in range(max(int(self._wall_s / _LOOK_S), 1)):
            ready, _, _ = select.select([descriptor], [], [], _LOOK_S)
            if ready:
                chunk = os.read(descriptor, 64)
                line += chunk
                if not chunk or line.endswith(b"\n"):
                    return line.decode("ascii", "replace").strip() if chunk else ""
            elif limit_s is not None and _cpu_s(process.pid) - begun_s > limit_s:
                late += 1
                if late > _GRACE_LOOKS:
                    break
        return ""

    def _end(self) -> None:
        self._stop()
        self._process = None


def _as_latex(text: str) -> str:
    text = _BLANK_IN_NUMBER.sub("", without_invisible(text).strip())
    return _EXPONENT.sub(r"\1 \\times 10^{\2}", text) if _EXPONENT.fullmatch(text) else text


def _sides(text: str) -> list[str]:
    """The sides of an equation or a chain of them; [] for what lists several things."""
    text = _THOUSANDS.sub("", text)
    if "=" not in text or _SEVERAL.search(text):
        return []
    depth, sides = 0, [""]
    for at, letter in enumerate(text):
        depth += (letter in "{([") - (letter in "})]")
        if letter == "=" and depth == 0 and text[at - 1 : at] not in tuple("<>!:=\\") and text[at + 1 : at + 2] != "=":
            sides.append("")
        else:
            sides[-1] += letter
    return [side.strip() for side in sides if side.strip()]


def _is_number(side: str) -> bool:
    """Whether a side has digits and no names, e.g. \\frac{1}{2}."""
    rest = _COMMAND.sub("", side)
    return any(map(str.isdigit, rest)) and not any(map(str.isalpha, rest))


def _cpu_s(pid: int) -> float:
    """CPU time that a process has used; 0 where that is not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return float((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue
