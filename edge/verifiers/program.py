"""Judges programs written by a model: all tests pass.

Tests come in two forms (`TaskItem.answer`):

- Python text: asserts that call the program's functions and use its classes, or HumanEval's `def check(candidate)` with its call at the
  end. A name the tests do not define is the preamble's, else a built-in, else the program's. Arguments are passed as copies, and
  changed in place where a call is a statement of its own or returns None (edge.verifiers.sandbox.inside.judge). A pass needs at least one
  check that was really executed and at least one call of the program. A check is an assert that held, or an exception of the program
  caught where the tests expect one (`try: f(-1); assert False` with `except ValueError: pass`).
- JSON text `{"inputs": [...], "outputs": [...]}`: each input is given to the program on its standard input and what it prints is
  compared with the output, line by line without trailing blanks, else word by word with numbers to six digits. With `fn_name` each
  input is a list of arguments of that function (of the module, or a method of its class `Solution`) and each output its result, equal
  as JSON sees values; a result may be wrapped in a list of one.

`timeout_s` bounds one run of the program: all calls of the tests together, or one input. A verdict is the same for the same texts
(random numbers in tests are seeded, hashes fixed) unless the time limit decides.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from edge.core.clock import Clock, SystemClock
from edge.core.machine import usable_cores
from edge.core.types import TaskItem
from edge.dagrpo.answers import last_python_block
from edge.verifiers.sandbox.role import Sandbox, SandboxLimits

_REMEMBERED = 4096
_CLOSE = 1e-6
_DEEPEST = 90  # of JSON tests; within what the wire carries
_BOM = "\ufeff"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import[ \t]+(?:\([\w\s,]*\)|[\w \t,]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProgramVerdict:
    """Whether a program passed its tests; `reason` is one short line without text of the program, "" for a pass; `checks` that held."""

    passed: bool
    reason: str
    checks: int = 0


@dataclass(frozen=True, slots=True)
class ProgramTests:
    """One program with what judges it."""

    code: str
    tests: str
    preamble: str = ""


class _BadTests(ValueError):
    """Tests in JSON that cannot be run; the message is the verdict's reason."""


def judge_program(given: ProgramTests, sandbox: Sandbox, limits: SandboxLimits, clock: Clock) -> ProgramVerdict:
    """One verdict, without memory of others; no text of the three raises. Raises SandboxError when the sandbox itself fails."""
    from edge.verifiers.sandbox.inside.wire import Unencodable
    from edge.verifiers.sandbox.session import run_functions

    given = ProgramTests(*(text.removeprefix(_BOM) for text in (given.code, given.tests, given.preamble)))
    try:
        cases = _cases(given.tests)
        if cases is None:
            # The tests' random numbers depend on the tests alone, and a program cannot see them.
            seed = int.from_bytes(hashlib.blake2b(given.tests.encode("utf-8", "replace"), digest_size=8).digest(), "big")
            request = {"form": "tests", "tests": given.tests, "preamble": given.preamble, "seed": seed}
        elif cases.function:
            request = {"form": "cases", "function": cases.function, "cases": cases.pairs}
        else:
            return _judge_outputs(_whole_source(given), cases.pairs, sandbox, limits, clock)
        outcome = run_functions(sandbox, _whole_source(given), request, limits, clock)
    except _BadTests as error:
        return ProgramVerdict(False, str(error))
    except Unencodable as error:
        return ProgramVerdict(False, f"program or tests hold {error}")
    return ProgramVerdict(not outcome.reason, outcome.reason, outcome.checks)


@dataclass(frozen=True, slots=True)
class _Cases:
    """(input, output) each; `function` is the one to call with each input as its arguments, "" for whole programs."""

    pairs: list[tuple[Any, Any]]
    function: str


def _cases(tests: str) -> _Cases | None:
    """The pairs of JSON tests; None for tests in Python. Raises _BadTests."""
    if not tests.lstrip().startswith("{"):
        return None
    try:
        content = json.loads(tests)
    except (ValueError, RecursionError):
        return None
    inputs, outputs, function = content.get("inputs"), content.get("outputs"), str(content.get("fn_name") or "")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise _BadTests("the tests cannot be read: inputs and outputs must be lists of one length")
    if _deeper_than(content, _DEEPEST):
        raise _BadTests(f"the tests cannot be read: nested deeper than {_DEEPEST}")
    if not inputs:
        raise _BadTests("no check was executed")
    if function and not all(isinstance(arguments, list) for arguments in inputs):
        raise _BadTests("the tests cannot be read: each input must be a list of arguments")
    return _Cases(list(zip(inputs, outputs, strict=True)), function)


def _deeper_than(value: Any, depth: int) -> bool:
    """Whether JSON content is nested deeper than this; checked level by level, without recursion."""
    level = [value]
    for _ in range(depth):
        items = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [inner for item in items for inner in item]
    return bool(level)


def _judge_outputs(
    source: str, cases: Sequence[tuple[Any, Any]], sandbox: Sandbox, limits: SandboxLimits, clock: Clock
) -> ProgramVerdict:
    from edge.verifiers.sandbox.session import run_whole

    for number, (input_, output) in enumerate(cases):
        run = run_whole(sandbox, source, _text(input_).encode("utf-8", "replace"), limits, clock)
        reason = run.reason or ("" if same_output(run.output.decode("utf-8", "replace"), _text(output)) else "wrong output")
        if reason:
            return ProgramVerdict(False, reason if reason.startswith("syntax") else f"{reason} in case {number + 1}", number)
    return ProgramVerdict(True, "", len(cases))


def _whole_source(given: ProgramTests) -> str:
    """What is run: the preamble, then the model's program. Its imports from `__future__` go first, where Python wants them."""
    if not given.preamble.strip():
        return given.code
    future = "".join(f"{found[0]}\n" for found in _FUTURE.finditer(given.code))
    code = _FUTURE.sub(lambda found: "pass" + "\n" * found[0].count("\n"), given.code) if future else given.code
    return f"{future}{given.preamble.rstrip()}\n\n{code}"


def _text(value: Any) -> str:
    """Input or output as text; some data sets hold a list of lines."""
    if isinstance(value, list):
        return "\n".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value)


def same_output(found: str, expected: str) -> bool:
    """Equal lines without trailing blanks, else equal words; where a decimal fraction is expected, a number close to it."""
    lines = ([line.rstrip() for line in text.strip().splitlines()] for text in (found, expected))
    if next(lines) == next(lines):
        return True
    mine, theirs = found.split(), expected.split()
    return len(mine) == len(theirs) and bool(theirs) and all(map(_same_word, mine, theirs))


def _same_word(found: str, expected: str) -> bool:
    if found == expected:
        return True
    if "." not in expected or len(found) > 400 or not (_NUMBER.fullmatch(found) and _NUMBER.fullmatch(expected)):
        return False
    mine, theirs = float(found), float(expected)
    return math.isfinite(mine) and math.isclose(mine, theirs, rel_tol=_CLOSE, abs_tol=_CLOSE)


class ProgramJudge:
    """Judges many programs from many threads: as many at once as there are cores, each different one once.

    Eight samples of one prompt are often the same program; a verdict is remembered for the last 4096 different ones, and a thread that
    asks for a verdict that another is working out waits for it. `sandbox` is called for the first program and may raise UsageError.
    """

    def __init__(
        self,
        sandbox: Callable[[], Sandbox],
        limits: SandboxLimits | None = None,
        *,
        at_once: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._sandbox = functools.cache(sandbox)
        self._limits = limits or SandboxLimits()
        self._clock = clock or SystemClock()
        self._slots = threading.BoundedSemaphore(at_once or usable_cores())
        self._lock = threading.Lock()
        self._known: OrderedDict[ProgramTests, Future[ProgramVerdict]] = OrderedDict()

    def verdict(self, given: ProgramTests) -> ProgramVerdict:
        """The verdict on a program. Raises UsageError, SandboxError; neither is remembered."""
        with self._lock:
            known = self._known.get(given)
            ours = known is None
            future: Future[ProgramVerdict] = Future() if known is None else known
            self._known[given] = future
            self._known.move_to_end(given)
        if ours:
            try:
                with self._slots:
                    future.set_result(judge_program(given, self._sandbox(), self._limits, self._clock))
            except BaseException as error:
                with self._lock:
                    self._known.pop(given, None)
                future.set_exception(error)
            else:
                with self._lock:
                    while len(self._known) > _REMEMBERED:
                        self._known.popitem(last=False)
        return future.result()


class ProgramVerifier:
    """A Verifier: right when the last ```python block of a response, after the item's preamble, passes the item's tests."""

    def __init__(self, judge: ProgramJudge) -> None:
        self._judge = judge

    def is_correct(self, item: TaskItem, response: str) -> bool:
        """True when the response's program passes. Raises UsageError where nothing can isolate it, SandboxError."""
        return self.verdict(item, response).passed

    def verdict(self, item: TaskItem, response: str) -> ProgramVerdict:
        """The same with its reason."""
        code = last_python_block(response)
        if code is None:
            return ProgramVerdict(False, "no python block")
        return self._judge.verdict(ProgramTests(code, item.answer, item.preamble))
