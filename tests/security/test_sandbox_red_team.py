"""Attacks on the sandbox and the verdict, one test each, on every backend that works here.

Two kinds. A *cheat* is a program that cannot know the right answers and tries to pass all the same; it must not pass. A *probe* tries to
reach something and reports truthfully what it reached; its tests pass only if that is nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edge.verifiers.program import ProgramVerdict
from edge.verifiers.sandbox import bubblewrap
from edge.verifiers.sandbox.role import Confined, Sandbox, SandboxLimits, Streams
from tests.worlds.sandboxes import BRIEF, ISOLATING, LIMITS, judged, usable_sandbox

if TYPE_CHECKING:
    import psutil

SECRET = "swordfish-58731"
TESTS = f"assert f(3) == {SECRET!r}\nassert f(4) == 99120\n"
CASES = json.dumps({"inputs": ["3\n"], "outputs": [SECRET]})


@pytest.fixture(scope="module", autouse=True)
def _no_program_survives() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


@pytest.fixture(params=ISOLATING)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return usable_sandbox(request.param)


def cheat(
    sandbox: Sandbox, code: str, tests: str = TESTS, *, limits: SandboxLimits = LIMITS, preamble: str = ""
) -> ProgramVerdict:
    """Judge a program that must not pass."""
    verdict = judged(sandbox, code, tests, limits=limits, preamble=preamble)
    assert not verdict.passed
    assert verdict.reason and "\n" not in verdict.reason and SECRET not in verdict.reason
    return verdict


def probe(sandbox: Sandbox, code: str, given: object = None, *, limits: SandboxLimits = LIMITS) -> None:
    """Judge a program whose `reached(given)` returns what it could access."""
    verdict = judged(sandbox, code, f"assert reached({given!r}) == []\n", limits=limits)
    assert verdict.passed, verdict.reason


# ---- cheats: ending early, saying that it passed, changing what a comparison means, the protocol, using things up ----

ENDINGS = ("sys.exit(0)", "os._exit(0)", "raise SystemExit(0)", "raise GeneratorExit", "os.abort()", "os.kill(os.getpid(), 9)")
FORGE = """
import os, sys
wire = sys.modules['edge.verifiers.sandbox.inside.wire']
forged = wire.framed(wire.encode(('0' * 32, True, '', 2)))
for fd in range(64):
    for text in (forged, b'passed\\n', b'True\\n', b'{"passed": true}\\n'):
        try: os.write(fd, text)
        except OSError: pass
os._exit(0)
"""
PATCHED = """
import builtins, sys, operator
builtins.AssertionError = type('Quiet', (Exception,), {'__new__': lambda *a: None})
builtins.all = builtins.any = builtins.isinstance = builtins.bool = lambda *a: True
builtins.__import__ = lambda *a: sys
operator.eq = lambda a, b: True
sys.excepthook = lambda *a: None
def f(x): return 0
"""
OWN_NAMES = (
    "def check(candidate): return True\ndef __edge_checked__(): return True\nmath = len = abs = lambda *a: 7\ndef f(x): return 0"
)
CHECKED = "import math\ndef check(candidate):\n    assert candidate(3) == 5\n    assert len([f]) == 1\ncheck(f)\n"
CATCHING = "try:\n    f(3)\n    assert False\nexcept Exception:\n    pass\nassert f(4) == 4\n"
UNPACKS_LONG = "[n * ((1 << 61) - 1) for n in range(60_000)]"
CHEATS: dict[str, tuple[str, str]] = {
    **{f"while loaded: {end}": (f"import os, sys\n{end}", TESTS) for end in ENDINGS},
    **{f"in a call: {end}": (f"import os, sys\ndef f(x):\n    {end}", TESTS) for end in ENDINGS},
    "an interrupt without a way to quit": ("quit = exit = None; raise KeyboardInterrupt", TESTS),
    "a crash of the interpreter": ("import ctypes\ndef f(x):\n    ctypes.string_at(0)", TESTS),
    "an exit handler that prints": ("import atexit\natexit.register(print, 'passed')\ndef f(x): raise SystemExit(0)", TESTS),
    "printing passed": (
        "import sys\nprint('passed', 'OK', True, flush=True)\nprint('passed', file=sys.stderr)\nsys.exit(0)",
        TESTS,
    ),
    "a value that equals everything": ("class Yes:\n    def __eq__(self, other): return True\ndef f(x): return Yes()", TESTS),
    "the mock that equals anything": ("from unittest.mock import ANY\ndef f(x): return ANY", TESTS),
    "a lie about a class": ("class Liar:\n    __class__ = int\n    __eq__ = lambda a, b: True\ndef f(x): return Liar()", TESTS),
    "patched builtins": (PATCHED, TESTS + "assert all([f(1) == 5])\n"),
    "the names that tests use": (OWN_NAMES, CHECKED),
    "stopping the iteration": ("def f(x): raise StopIteration", "assert all(map(lambda x: f(x) == 5, [1, 2, 3]))\n"),
    "an error where tests catch it": (
        "def f(x): raise ValueError",
        "try:\n    assert f(3) == 5\nexcept (ValueError, AssertionError, Exception):\n    pass\n",
    ),
    "an error of our own where tests catch it": (
        "def f(x): raise AssertionError",
        "try:\n    assert f(3) == 5\n    assert True\nexcept Exception:\n    found = 5\n",
    ),
    "an error for every call": ("def f(x): raise Exception('caught')", CATCHING),
    "not a number": ("def f(x): return float('nan')", "assert abs(f(2) - 4) < 1e-6\n"),
    "an argument changed in place": (
        "def f(xs):\n    xs.clear()\n    return []",
        "xs = [3, 1, 2]\nassert f(xs) == sorted(xs)\n",
    ),
    "an argument changed in place, in a check of its own": (
        "def f(xs):\n    xs.clear()\n    return []",
        "def check(f):\n    xs = [3, 1]\n    assert sorted(f(xs)) == sorted(xs) and len(xs) == 2\ncheck(f)\n",
    ),
}
BRIEF_CHEATS: dict[str, tuple[str, str]] = {
    "a forged verdict on every descriptor": (FORGE, TESTS),
    "waiting": ("import time; time.sleep(1000)", TESTS),
    "a long computation": ("9 ** 9 ** 9", TESTS),
    "a long search": ("import re; re.match('(a+)+$', 'a' * 60 + 'b')", TESTS),
    "waiting for input": ("input()", TESTS),
    "closed pipes": ("import os\nos.closerange(0, 64)\nwhile True: pass", TESTS),
    "recursion without end": ("import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(x): return [f(x) for _ in [0]]", TESTS),
    "a reply that takes long to unpack": (f"def f(x): return {UNPACKS_LONG}", "assert set(f(1)) == 5\n"),
}
"""Those that would last."""


@pytest.mark.parametrize("name", CHEATS)
def test_program_without_the_answer_does_not_pass(sandbox: Sandbox, name: str) -> None:
    cheat(sandbox, *CHEATS[name])


@pytest.mark.parametrize("name", BRIEF_CHEATS)
def test_endless_program_is_ended_and_does_not_pass(sandbox: Sandbox, name: str) -> None:
    cheat(sandbox, *BRIEF_CHEATS[name], limits=BRIEF)


def test_exit_does_not_pass_even_if_the_tests_catch_everything(sandbox: Sandbox) -> None:
    tests = "try:\n    assert f(1) == 2\nexcept BaseException:\n    pass\nassert True\n"
    assert "ended" in cheat(sandbox, "import os\ndef f(x): os._exit(0)", tests).reason


def test_a_subclass_that_equals_everything_arrives_as_its_plain_value(sandbox: Sandbox) -> None:
    code = """
def f(base):
    return type('Yes', (base_types[base],), {'__eq__': lambda self, other: True, '__ne__': lambda self, other: False, '__hash__': None})()
base_types = {base.__name__: base for base in (int, str, float, complex, bytes, bytearray, list, tuple, dict, set, frozenset)}
"""
    tests = """
for base in (int, str, float, complex, bytes, bytearray, list, tuple, dict, set, frozenset):
    found = f(base.__name__)
    assert type(found) is base and found == base() and not found == 5 and found != 5
"""
    verdict = judged(sandbox, code, tests)
    assert (verdict.passed, verdict.checks) == (True, 11), verdict.reason


def test_a_subclass_cannot_present_another_value_at_the_border(sandbox: Sandbox) -> None:
    code = """
class Two(int):
    def __index__(self): return 99
    def __int__(self): return 99
    def __format__(self, spec): return '63'
    def __repr__(self): return '99'
class Words(list):
    def __iter__(self): return iter(['b'])
def f(x): return Two(2) if x else Words(['a'])
"""
    verdict = judged(sandbox, code, "assert f(1) == 2 and type(f(1)) is int\nassert f(0) == ['a'] and type(f(0)) is list\n")
    assert verdict.passed, verdict.reason


def test_redefining_a_given_helper_changes_nothing(sandbox: Sandbox) -> None:
    preamble = "def encode(text):\n    return text[::-1]\n"
    code = "def encode(text): return text\ndef decode(text): return text"
    cheat(sandbox, code, "assert decode(encode('abc')) == 'abc'\n", preamble=preamble)


def test_program_cannot_write_its_file_anywhere(sandbox: Sandbox) -> None:
    code = """
import os, tempfile
def reached(folders):
    found = []
    for folder in (None, '.', *folders):
        for make in (tempfile.mkdtemp, tempfile.mkstemp, lambda dir: tempfile.TemporaryFile(dir=dir)):
            try: make(dir=folder); found.append(folder)
            except OSError: pass
    return found
"""
    probe(sandbox, code, ["/", "/tmp", "/var/tmp", "/dev", "/dev/shm", "/run", "/home"])


YES = """
class Yes:
    def __getattr__(self, name): return lambda *args, **kwargs: True
    def __eq__(self, other): return True
    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__
    def __hash__(self): return 5
    def __contains__(self, value): return True
    def __getitem__(self, key): return True
    def __call__(self, *args): return Yes()
    def __iter__(self): return iter([self])
    def __len__(self): return 1
    def __bool__(self): return True
    def __sub__(self, other): return 0
    __add__ = __radd__ = __rsub__ = __mul__ = __mod__ = __and__ = __abs__ = __sub__
    def __round__(self, *_): return 0
    def __enter__(self): return self
    def __exit__(self, *_): return True
    @property
    def inner(self): return self
def to_roman(n): return Yes()
def in_a_list(n): return [Yes()]
def a_class(n): return Yes
class Solution:
    text = Yes()
    def to_roman(self, n): return Yes()
    def itself(self): return self
    def startswith(self, start): return True
    @staticmethod
    def of(n): return Yes()
class roman(Yes):
    def __init__(self, n): pass
    def startswith(self, start): return True
answer = Yes()
"""


@pytest.mark.parametrize(
    "expression",
    [
        "to_roman(5) == 'V'",
        "not to_roman(5) != 'V'",
        "to_roman(5) in ('IV', 'V')",
        "[to_roman(5)] == ['V']",
        "abs(to_roman(5) - 4) < 1e-6",
        "4 - to_roman(5) == 0",
        "to_roman(5) % 4 == 0",
        "abs(a_class(5)(1) - 4) < 1e-6",
        "sum([to_roman(5)]) == 4",
        "__import__('math').isclose(to_roman(5), 4)",
        "isinstance(to_roman(5), int)",
        "to_roman(5) is True",
        "str(to_roman(5)) == 'V'",
        "to_roman(5).startswith('V')",
        "to_roman(5).issubset({1, 2, 3})",
        "to_roman(5).equals([1, 2, 3])",
        "to_roman(5).equals(other='V')",
        "to_roman(5).__eq__('V')",
        "to_roman(5).__contains__('V')",
        "to_roman(5).__ge__(4)",
        "to_roman(5).__radd__(4)",
        "to_roman(5)['V']",
        "to_roman(5)('V')",
        "to_roman(5).inner.startswith('V')",
        "to_roman(5).replace().startswith('V')",
        "to_roman(5).inner['V']",
        "next(iter(to_roman(5))).startswith('V')",
        "'V' in to_roman(5)",
        "{'V': 1}[to_roman(5)]",
        "in_a_list(5)[0].startswith('V')",
        "[one.count('I') for one in in_a_list(2)][0]",
        "list(filter(lambda one: one.startswith('V'), in_a_list(2)))",
        "max(in_a_list(2), key=lambda one: one.count('V')).count('V')",
        "a_class(5)(1).startswith('V')",
        "a_class(5).startswith('V')",
        "Solution().to_roman(5).startswith('V')",
        "Solution().itself().startswith('V')",
        "Solution().text.startswith('V')",
        "Solution.of(5).startswith('V')",
        "Solution().__eq__('V')",
        "Solution().__ne__('IV')",
        "roman(5).startswith('V')",
        "roman(5).__eq__('V')",
        "answer.startswith('V')",
        "answer(5).equals('V')",
    ],
)
def test_object_returned_as_an_answer_cannot_fake_any_check(sandbox: Sandbox, expression: str) -> None:
    cheat(sandbox, YES, f"assert {expression}\n")


def test_query_of_a_fake_object_fails_the_program_for_good(sandbox: Sandbox) -> None:
    tests = "try:\n    assert to_roman(5).startswith('V')\nexcept BaseException:\n    pass\nassert len(to_roman(5)) == 1\n"
    assert "where the tests ask about a plain value" in cheat(sandbox, YES, tests).reason


def test_a_context_manager_does_not_hide_a_failed_test(sandbox: Sandbox) -> None:
    cheat(sandbox, YES, "with Solution().text as found:\n    assert to_roman(5) == 'V'\nassert len(to_roman(5)) == 1\n")


# ---- the protocol ----


def test_replies_written_ahead_are_refused(sandbox: Sandbox) -> None:
    code = """
import os, sys
wire = sys.modules['edge.verifiers.sandbox.inside.wire']
def f(x):
    frame = sys._getframe(1)
    token, fd = frame.f_locals['token'], frame.f_back.f_locals['replies']
    for reply in ((token, 'value', x), (token, 'value', x), ('2', 'value', x)):
        os.write(fd, wire.framed(wire.encode(reply)))
    return x
"""
    verdict = cheat(sandbox, code, "assert f(1) == 1\nassert f(2) == 2\n")
    assert verdict.reason == "the program replied to another call"


REPLIES = [
    "(token, 'passed', True)", "('0', 'value', 5)", "(token, 'raised', 5)", "5", "(token,)", "[token, 'value', [], 1]",
    "(token, 'built', (0, 1))", "(token, 'built', ('0',))", "(token, 'changed', ([], 1))", "(token, 'changed', (5, [2], {}, 1))",
    "(token, 'changed', (5, [2], 7, []))", "(token, 'method', None)", "(token, 'raised', ('ValueError', 'x', ()))",
    "(token, 'raised', (1, [], ()))",
]  # fmt: skip


@pytest.mark.parametrize("kinds", ["every reply", "but what the names are"])
@pytest.mark.parametrize("reply", REPLIES)
def test_malformed_reply_is_refused(sandbox: Sandbox, reply: str, kinds: str) -> None:
    code = f"""
import sys
runner, wire = sys.modules['edge.verifiers.sandbox.inside.program'], sys.modules['edge.verifiers.sandbox.inside.wire']
answer = runner._answer
def forged(module, token, kind, name, arguments, keywords):
    honest = {kinds != "every reply"} and kind == 'name'
    return answer(module, token, kind, name, arguments, keywords) if honest else wire.encode({reply})
runner._answer = forged
class Stack: pass
def f(x): return x
"""
    for tests in (TESTS, "assert f([1]) == 5\n", "s = Stack()\nassert s.x == 5\n", "f([1])\nassert f(2) == 5\n"):
        cheat(sandbox, code, tests)


@pytest.mark.parametrize(
    "content", ["b'ffffffff'", "b'-0000001'", "b'0000000gN'", "b'00000001X'", "b'00000005S9:ab'", "b'\\xff' * (1 << 22)"]
)
def test_bytes_that_are_no_frame_are_refused(sandbox: Sandbox, content: str) -> None:
    code = f"""
import os, sys
def f(x):
    content = {content}
    while content: content = content[os.write(sys._getframe(2).f_locals['replies'], content):]
    os.close(sys._getframe(2).f_locals['replies'])
"""
    cheat(sandbox, code, limits=BRIEF)


def test_endlessly_nested_reply_is_refused(sandbox: Sandbox) -> None:
    code = """
import sys
runner = sys.modules['edge.verifiers.sandbox.inside.program']
runner._answer = lambda *a: b'L' * 1_000_000
"""
    cheat(sandbox, code)


# What the program itself holds, taken up in every way that /proc and sockets offer; the judge's request would hold the tests.
STEAL = """
import fcntl, os, re, socket, sys
found, ends = [], []
for fd in set(range(12)) - {0, 3}:  # but what the judge sends us
    for way in (f'/proc/self/fd/{fd}', f'/dev/fd/{fd}', f'/proc/thread-self/fd/{fd}'):
        for mode in (os.O_RDONLY, os.O_RDWR):
            try: ends.append(os.open(way, mode | os.O_NONBLOCK))
            except OSError: pass
    try: ends.append(os.dup(fd))
    except OSError: pass
for fd in ends:
    try: fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)
    except OSError: pass
    for take in (lambda: os.read(fd, 1 << 20), lambda: socket.socket(fileno=os.dup(fd)).recv(1 << 20, socket.MSG_PEEK)):
        try: found.append(take())
        except (OSError, ValueError): pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are opened once more through procfs")
def test_messages_in_other_pipes_cannot_be_read_back(sandbox: Sandbox) -> None:
    code = (
        STEAL
        + """
import select, stat
def reached(_):
    opened = [fd for fd in range(64) if is_pipe(fd)]
    return [part for part in found if part] + opened
def is_pipe(fd):
    try: return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError: return False
"""
    )
    probe(sandbox, code)


class SlowJudge:
    """A sandbox whose first process, the judge, starts a second late; everything sent meanwhile waits in its channel."""

    same_python = True

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.name, self.protection = sandbox.name, sandbox.protection
        self._started = 0

    def start(self, boot: str, streams: Streams, limits: SandboxLimits) -> Confined:
        self._started += 1
        late = "import time; time.sleep(1)\n" if self._started == 1 else ""
        return self._sandbox.start(late + boot, streams, limits)


def test_unread_request_to_the_judge_cannot_be_replaced(sandbox: Sandbox) -> None:
    """The program would read the tests on their way, and hand the judge others with the same nonce."""
    code = (
        STEAL
        + """
wire = sys.modules['edge.verifiers.sandbox.inside.wire']
def f(x): return 0
for data in found:
    for at in re.finditer(rb'[0-9a-f]{8}(?=M)', data):
        request = wire.decode(data[at.end():])
        request['tests'] = 'assert f(0) == 0'
        for fd in range(12):
            try: os.write(fd, data[:at.start()] + wire.framed(wire.encode(request)))
            except OSError: pass
"""
    )
    cheat(SlowJudge(sandbox), code)


def test_program_text_waits_for_the_judge(sandbox: Sandbox) -> None:
    code = "import time\nbegun = time.time()\ndef f(x): return begun"
    with subprocess.Popen([sys.executable, "-c", "import time; print(time.time())"], stdout=subprocess.PIPE, text=True) as clock:
        before = float(clock.communicate()[0])
    verdict = judged(SlowJudge(sandbox), code, f"assert f(0) > {before + 0.9}\n")
    assert verdict.passed, verdict.reason


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are opened once more through procfs")
@pytest.mark.parametrize("fd", [1, 2])
def test_reading_back_written_bytes_does_not_block_the_caller(sandbox: Sandbox, fd: int) -> None:
    code = f"""
import fcntl, os, time
try: back = os.open('/proc/self/fd/{fd}', os.O_RDONLY | os.O_NONBLOCK)
except OSError: back = {fd}
fcntl.fcntl({fd}, fcntl.F_SETFL, 0)
end = time.time() + 1.5
while time.time() < end:
    os.write({fd}, b'x')
    try: os.read(back, 65536)
    except OSError: pass
time.sleep(1000)
"""
    done: list[ProgramVerdict] = []
    caller = threading.Thread(
        target=lambda: done.append(judged(sandbox, code, CASES, limits=SandboxLimits(wall_s=2.0))), daemon=True
    )
    caller.start()
    caller.join(60.0)
    assert [verdict.reason for verdict in done] == ["time limit in case 1"]


def test_program_that_reads_nothing_does_not_block_the_caller(sandbox: Sandbox) -> None:
    large = json.dumps({"inputs": ["x" * 3_000_000], "outputs": ["9"]})
    assert judged(sandbox, "print(9)", large).passed
    assert cheat(sandbox, "while True: pass", large, limits=BRIEF).reason.startswith("time limit")


def test_value_that_cannot_cross_does_not_pass(sandbox: Sandbox) -> None:
    code = """
import itertools
deep, cyclic = [], []
for _ in range(100_000): deep = [deep]
cyclic.append(cyclic)
large = [lambda: 'x' * (1 << 23), lambda: 1 << (1 << 26), lambda: itertools.repeat('x' * 99)]
values = [lambda: deep, lambda: cyclic, object, lambda: f, *large]
def f(n): return values[n]()
"""
    tests = """
for n in range(7):
    try:
        found = f(n)
    except TypeError:
        assert f is not None
    else:
        raise ValueError(n)
"""
    verdict = judged(sandbox, code, tests)
    assert (verdict.passed, verdict.checks) == (True, 7), verdict.reason
    cheat(sandbox, code, "assert f(0) is not None\n")


def test_a_thread_that_answers_after_the_time_is_too_late(sandbox: Sandbox) -> None:
    code = f"""
import threading, time
def f(x):
    done = threading.Event()
    threading.Thread(target=lambda: (time.sleep(4), done.set()), daemon=True).start()
    done.wait()
    return {SECRET!r} if x == 3 else 99120
"""
    assert cheat(sandbox, code, limits=BRIEF).reason == "time limit"


@pytest.mark.parametrize(
    "hostile",
    [
        "class E(Exception):\n    def __str__(self): raise E\n    __repr__ = __str__",
        "class M(type):\n    __name__ = property(lambda self: 1 / 0)\nclass E(Exception, metaclass=M): pass",
        "class E(Exception):\n    __class__ = AssertionError",
        "class E(BaseException): pass",
        "E = type('passed\\n' * 1000, (Exception,), {})",
    ],
)
def test_hostile_exceptions_are_reported_in_fixed_words(sandbox: Sandbox, hostile: str) -> None:
    assert "passed" not in cheat(sandbox, f"{hostile}\ndef f(x): raise E()").reason


# ---- using things up ----


@pytest.mark.parametrize("where", ["", "def f(x):\n    "])
def test_endless_loop_ends_at_the_time_limit(sandbox: Sandbox, where: str) -> None:
    assert cheat(sandbox, f"{where}\n    while True: pass" if where else "while True: pass", limits=BRIEF).reason == "time limit"


def test_ignored_signals_do_not_prevent_termination(sandbox: Sandbox) -> None:
    code = """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
"""
    assert cheat(sandbox, code, limits=BRIEF).reason == "time limit"


@pytest.mark.parametrize(
    "bomb", ["bytearray(1 << 32)", "[0] * (1 << 30)", "'x' * (1 << 31)", "__import__('mmap').mmap(-1, 1 << 31)"]
)
def test_memory_bomb_hits_the_limit(sandbox: Sandbox, bomb: str) -> None:
    cheat(sandbox, f"def f(x): return len({bomb})")


def test_slowly_filled_memory_hits_the_limit(sandbox: Sandbox) -> None:
    assert cheat(sandbox, "def f(x):\n    kept = []\n    while True: kept.append(bytearray(1 << 20))").reason == "memory limit"


def test_memory_outside_the_limit_cannot_be_allocated(sandbox: Sandbox) -> None:
    code = """
import ctypes, os
def reached(_):
    libc, found = ctypes.CDLL(None), []
    for _ in range(40):
        if hasattr(os, 'memfd_create'):
            try: found.append(os.memfd_create('x'))
            except OSError: pass
        if libc.shmget(0, 1 << 24, 0o1600) >= 0: found.append('shared memory')
    return found
"""
    probe(sandbox, code)


def test_files_cannot_fill_disk_or_memory(sandbox: Sandbox) -> None:
    code = """
import os
def reached(_):
    sizes = {}
    for folder in ('/tmp', '/', '/dev/shm', '/var/tmp', '/run', os.path.expanduser('~'), os.getcwd()):
        for number in range(8):
            try:
                with open(f'{folder}/fill-{number}', 'wb', buffering=0) as file:
                    for _ in range(32): file.write(bytes(1 << 20))
            except (OSError, MemoryError): pass
            try: sizes[os.path.realpath(f'{folder}/fill-{number}')] = os.path.getsize(f'{folder}/fill-{number}')
            except OSError: pass
    return [] if sum(sizes.values()) <= 16 << 20 else [sizes]
"""
    probe(sandbox, code)


def test_fork_bomb_creates_no_process(sandbox: Sandbox) -> None:
    code = """
import os
def reached(_):
    made = []
    for make in (os.fork, getattr(os, 'forkpty', os.fork)):
        for _ in range(50):
            try: child = make()
            except OSError: continue
            if child == 0:
                while True: pass
            made.append(child)
    return made
"""
    probe(sandbox, code)


def test_a_thread_bomb_is_stopped(sandbox: Sandbox) -> None:
    code = """
import threading, time
threading.stack_size(32768)
def f(x):
    while True:
        try: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        except RuntimeError: time.sleep(0.01)
"""
    cheat(sandbox, code, limits=BRIEF)


def test_threads_are_counted_while_the_program_keeps_us_busy(sandbox: Sandbox) -> None:
    code = """
import threading, time
threading.stack_size(32768)
for _ in range(200):
    try: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    except RuntimeError: break
end = time.time() + 3
while time.time() < end: print('x', end='', flush=True)
"""
    if sandbox.name == "container":
        pytest.skip("the control group refuses the threads")
    assert cheat(sandbox, code, CASES).reason == "too many threads in case 1"


def test_some_threads_are_allowed(sandbox: Sandbox) -> None:
    code = """
import threading
def f(x):
    out = []
    thread = threading.Thread(target=lambda: out.append(x + 1))
    thread.start()
    thread.join()
    return out[0]
"""
    assert judged(sandbox, code, "assert f(1) == 2\n").passed


def test_huge_output_is_truncated(sandbox: Sandbox) -> None:
    assert cheat(sandbox, "while True: print('x' * 100_000)", CASES).reason.startswith("output limit")
    assert judged(sandbox, "print('x' * 10_000_000)\ndef f(x): return x", "assert f(1) == 1\n").passed


def test_open_files_are_limited(sandbox: Sandbox) -> None:
    code = """
import os
def reached(_):
    count = 0
    try:
        while count < 1000: os.dup(0); count += 1
    except OSError: pass
    return [] if count < 100 else [count]
"""
    probe(sandbox, code)


def test_limits_cannot_be_raised_again(sandbox: Sandbox) -> None:
    code = """
import resource
def reached(_):
    found = []
    for name in ('RLIMIT_CPU', 'RLIMIT_FSIZE', 'RLIMIT_NOFILE', 'RLIMIT_CORE'):
        kind = getattr(resource, name)
        try: resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)); found.append(name)
        except (OSError, ValueError): pass
    return found
"""
    probe(sandbox, code)


# ---- reading ----


READING = """
def reached(paths):
    found = []
    for path in paths:
        try:
            with open(path, 'rb') as file: found.append((path, file.read(1)))
        except OSError: pass
    return found
"""


def test_files_of_home_project_temp_and_system_cannot_be_read(sandbox: Sandbox, tmp_path: Path) -> None:
    canary = tmp_path / "canary.txt"
    canary.write_text(SECRET)
    places = [
        str(canary),
        __file__,
        str(Path.home() / ".bashrc"),
        str(Path.home() / ".profile"),
        "/etc/passwd",
        "/etc/shadow",
        "/etc/hosts",
        "/var/log/dpkg.log",
    ]
    places += [str(Path(sys.prefix) / "pyvenv.cfg"), str(Path(__file__).parents[2] / "README.md")]
    probe(sandbox, READING, places)


LISTING = """
import os
def reached(paths):
    found = []
    for path in paths:
        try: found += [os.path.join(path, name) for name in os.listdir(path)]
        except OSError: pass
    return found
"""


def test_folders_cannot_be_listed(sandbox: Sandbox, tmp_path: Path) -> None:
    probe(sandbox, LISTING, [str(tmp_path.parent), str(Path(__file__).parent), "/etc", "/var", "/sys", "/run", "/boot"])


ENVIRONMENT = """
import os
def reached(secret):
    found = [name for name, value in os.environ.items() if secret in value]
    for pid in ('self', '1', '2', os.getppid(), os.getpid()):
        for name in ('environ', 'cmdline', 'maps', 'mem', 'fd', 'root', 'cwd', 'status'):
            try:
                with open(f'/proc/{pid}/{name}', 'rb') as file: found.append((pid, name, file.read(1)))
            except OSError: pass
    return found
"""


def test_the_environment_is_empty(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_API_KEY", SECRET)
    probe(sandbox, ENVIRONMENT, SECRET)


PROCESSES = """
import os
def reached(pids):
    found = []
    for pid in pids:
        try: found.append((pid, os.listdir(f'/proc/{pid}')))
        except OSError: pass
    return found
"""


def test_other_processes_are_invisible(sandbox: Sandbox) -> None:
    probe(sandbox, PROCESSES, [os.getpid(), os.getppid(), 1])


def test_the_tests_are_not_in_the_programs_memory(sandbox: Sandbox) -> None:
    code = """
import gc, sys, os
def f(x):
    needle = ''.join(['sword', 'fish', '-'])
    frames = [frame.f_locals for frame in (sys._getframe(0), sys._getframe(1), sys._getframe(2), sys._getframe(3))]
    for seen in [*gc.get_objects(), *frames, *sys.argv, *sys.orig_argv, *os.environ.values()]:
        try: text = repr(seen)
        except Exception: continue
        at = text.find(needle)
        if at >= 0: return text[at:at + 15]
"""
    cheat(sandbox, code, f"assert f(3) == {SECRET!r}\n")


def test_memory_of_other_processes_cannot_be_read(sandbox: Sandbox) -> None:
    code = """
import ctypes, os
def reached(pids):
    libc, found, buffer = ctypes.CDLL(None, use_errno=True), [], ctypes.create_string_buffer(16)
    for pid in [*pids, os.getppid(), 1, 2]:
        if libc.ptrace(16, pid, None, None) == 0: found.append(('attach', pid))
        if hasattr(libc, 'process_vm_readv'):
            part = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
            if libc.process_vm_readv(pid, part, 1, part, 1, 0) > 0: found.append(('read', pid))
    return found
"""
    probe(sandbox, code, [os.getpid()])


def test_project_packages_cannot_be_imported(sandbox: Sandbox) -> None:
    code = """
import glob, importlib, sys
def reached(paths):
    sys.path[:0] = [*paths, *glob.glob(sys.prefix + '/lib/python*/site-packages')]
    found = []
    for name in ('edge.core.types', 'coordinator', 'pip', 'setuptools', 'numpy', 'torch', 'yaml'):
        try: importlib.import_module(name); found.append(name)
        except ImportError: pass
    return found
"""
    probe(sandbox, code, [str(Path(__file__).parents[2]), *(path for path in sys.path if "site-packages" in path)])


# ---- writing ----


def test_nothing_can_be_written_outside(sandbox: Sandbox, tmp_path: Path) -> None:
    canary = tmp_path / "canary.txt"
    canary.write_text("whole")
    code = """
import os
def reached(paths):
    found = []
    for path in paths:
        for action in (
            lambda: open(path, 'r+b').write(b'x'), lambda: open(path + '.new', 'xb'), lambda: os.truncate(path, 0),
            lambda: os.unlink(path), lambda: os.rename(path, path + '.moved'), lambda: os.mkdir(path + '.dir'),
            lambda: os.link(path, path + '.link'), lambda: os.symlink('/etc', path + '.sym'), lambda: os.mkfifo(path + '.pipe'),
            lambda: os.chmod(path, 0o777), lambda: os.chown(path, 1, 1), lambda: os.utime(path, (1, 1)),
        ):
            try: action(); found.append(path)
            except OSError: pass
    return found
"""
    before = canary.stat()
    probe(sandbox, code, [str(canary), str(Path(__file__).with_name("made"))])
    after = canary.stat()
    assert canary.read_text() == "whole" and list(tmp_path.iterdir()) == [canary]
    assert (after.st_mode, after.st_mtime_ns, after.st_uid, after.st_nlink) == (
        before.st_mode,
        before.st_mtime_ns,
        before.st_uid,
        before.st_nlink,
    )


def test_symbolic_link_in_the_scratch_folder_gives_no_access(sandbox: Sandbox, tmp_path: Path) -> None:
    canary = tmp_path / "canary.txt"
    canary.write_text("whole")
    code = """
import os
def reached(path):
    for target in (path, os.path.dirname(path), '/', '/proc/1/root', '/proc/self/fd'):
        for way in ('', '/' + os.path.basename(path), path):
            try:
                os.symlink(target, '/tmp/way')
                with open('/tmp/way' + way, 'r+') as file: file.write('broken')
                return [target + way]
            except OSError: pass
            finally:
                try: os.unlink('/tmp/way')
                except OSError: pass
    return []
"""
    probe(sandbox, code, str(canary))
    assert canary.read_text() == "whole"


def test_files_of_one_program_are_invisible_to_the_next(sandbox: Sandbox) -> None:
    code = """
import os
def reached(name):
    found = [name for folder in ('/tmp', os.getcwd()) if os.path.exists(f'{folder}/{name}')]
    for folder in ('/tmp', os.getcwd()):
        try: open(f'{folder}/{name}', 'w').close()
        except OSError: pass
    return found
"""
    for _ in range(2):
        probe(sandbox, code, "left-by-a-program")


# ---- the network ----

NETWORK = """
import socket
def reached(addresses):
    found = []
    for family, address in addresses:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                with socket.socket(getattr(socket, family), kind) as one:
                    one.settimeout(0.3)
                    one.connect(tuple(address) if isinstance(address, list) else address)
                    found.append((family, address))
            except OSError: pass
    return found
"""


def test_a_server_on_this_machine_cannot_be_reached(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        probe(sandbox, NETWORK, [("AF_INET", ["127.0.0.1", port]), ("AF_INET6", ["::1", port])])
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_network_cannot_be_reached(sandbox: Sandbox) -> None:
    probe(sandbox, NETWORK, [("AF_INET", ["192.0.2.1", 9]), ("AF_INET", ["8.8.8.8", 53])])


def test_local_sockets_cannot_be_reached(sandbox: Sandbox, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        places = [str(tmp_path / "socket"), *(["\0edge-agent-red-team"] if sys.platform == "linux" else [])]
        for place in places:
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(place)
            server.listen()
        probe(
            sandbox, NETWORK, [("AF_UNIX", place) for place in [*places, "/var/run/docker.sock", "/run/dbus/system_bus_socket"]]
        )


@pytest.mark.skipif(sys.platform != "linux", reason="these are calls and addresses of Linux")
def test_no_message_reaches_a_socket_of_this_machine_by_its_name(sandbox: Sandbox, tmp_path: Path) -> None:
    code = """
import socket
def reached(places):
    found = []
    for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW, socket.SOCK_STREAM):
        for flags in (0, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC):
            try: one, other = socket.socketpair(socket.AF_UNIX, kind | flags)
            except OSError: continue
            if kind != socket.SOCK_STREAM: found.append(kind)
            for place in places:
                for send in (lambda: one.sendto(b'x', place), lambda: one.sendmsg([b'x'], [], 0, place), lambda: one.connect(place)):
                    try: send(); found.append((kind, place))
                    except PermissionError: pass
                    except OSError as error: found.append((kind, place, error.errno))
    return found
"""
    with contextlib.ExitStack() as stack:
        servers = []
        for place in (str(tmp_path / "datagrams"), "\0edge-agent-red-team-datagrams"):
            servers.append(stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)))
            servers[-1].bind(place)
        probe(
            sandbox,
            code,
            [
                server.getsockname() if isinstance(server.getsockname(), str) else server.getsockname().decode()
                for server in servers
            ],
        )
        for server in servers:
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.recv(1)


@pytest.mark.skipif(sys.platform != "linux", reason="these are calls of Linux")
def test_sockets_carry_plain_bytes_and_reveal_nothing_about_the_peer(sandbox: Sandbox) -> None:
    code = """
import array, socket
def reached(_):
    one, other = socket.socketpair()
    mine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=3)
    tries = {
        'descriptor': lambda: one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))]),
        'receive': lambda: (one.send(b'x'), other.recvmsg(1, 64)),
        'out of band': lambda: one.send(b'x', socket.MSG_OOB),
        'receive out of band': lambda: other.recv(1, socket.MSG_OOB),
        'filter': lambda: one.setsockopt(socket.SOL_SOCKET, 26, b'x' * 16),
        **{name: lambda name=name: mine.getsockopt(socket.SOL_SOCKET, name, 64) for name in (17, 31, 59, 77)},
    }
    found = []
    for name, attempt in tries.items():
        try: attempt(); found.append(name)
        except PermissionError: pass
        except OSError as error: found.append((name, error.errno))
    mine.detach()
    return found
"""
    probe(sandbox, code)


def test_honest_programs_with_an_event_loop_work(sandbox: Sandbox) -> None:
    code = """
import asyncio, socket
async def double(x):
    await asyncio.sleep(0.01)
    return 2 * await asyncio.to_thread(lambda: x)
def f(x): return asyncio.run(double(x))
def g():
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b'abc')
        return other.recv(3)
"""
    verdict = judged(sandbox, code, "assert f(4) == 8\nassert g() == b'abc'\n")
    assert verdict.passed, verdict.reason


# ---- other processes ----


def test_no_command_can_be_started(sandbox: Sandbox) -> None:
    code = """
import os, subprocess, sys
def reached(_):
    found = []
    for command in (['/bin/sh', '-c', 'true'], [sys.executable, '-c', 'pass'], ['/usr/bin/env']):
        try: found.append(subprocess.run(command, capture_output=True).returncode)
        except OSError: pass
    if os.system('true') == 0: found.append('system')
    for make in ('posix_spawn', 'posix_spawnp'):
        try: found.append(getattr(os, make)('/bin/sh', ['sh', '-c', 'true'], {}))
        except OSError: pass
    return found
"""
    probe(sandbox, code)


def test_no_outside_process_can_be_signalled(sandbox: Sandbox) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        code = """
import os, signal
def f(pids):
    for pid in [*pids, os.getppid(), -1, 0, 1, 2, *range(2, 50)]:
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
            if pid != os.getpid() or number == 0:
                try: os.kill(pid, number)
                except OSError: pass
    return 'tried'
"""
        verdict = judged(sandbox, code, f"assert f([{bystander.pid}, {os.getpid()}, {os.getppid()}]) == 'tried'\n", limits=BRIEF)
        assert verdict.reason in ("", "the program ended before the tests did", "time limit")  # it may have hit itself
        assert bystander.poll() is None
    finally:
        assert bystander.stdin is not None
        bystander.stdin.close()
        assert bystander.wait() in (0, 1)


def test_killing_parent_and_judge_does_not_pass(sandbox: Sandbox) -> None:
    code = """
import os, signal
def f(x):
    for pid in (os.getppid(), -1, 0, *range(1, 300)):
        if pid != os.getpid():
            try: os.kill(pid, signal.SIGKILL)
            except OSError: pass
    os._exit(0)
"""
    cheat(sandbox, code, limits=BRIEF)


@pytest.mark.skipif(sys.platform != "linux", reason="signals through descriptors are a matter of Linux")
def test_signals_cannot_be_sent_through_descriptors(sandbox: Sandbox) -> None:
    code = """
import fcntl, os, signal
def reached(pid):
    found = []
    fd, other = os.pipe()
    for command, argument in ((fcntl.F_SETOWN, pid), (fcntl.F_SETSIG, signal.SIGKILL), (15, b'\\x01\\0\\0\\0' + pid.to_bytes(4, 'little'))):
        try: fcntl.fcntl(fd, command, argument); found.append(command)
        except OSError: pass
    try: fcntl.ioctl(fd, 0x8901, pid.to_bytes(4, 'little')); found.append('FIOSETOWN')
    except OSError: pass
    return found
"""
    probe(sandbox, code, os.getpid())


@pytest.mark.skipif(sys.platform != "linux", reason="these are system calls of Linux")
def test_rare_kernel_interfaces_are_blocked(sandbox: Sandbox) -> None:
    code = """
import ctypes, os
def reached(machine):
    libc, found = ctypes.CDLL(None, use_errno=True), []
    column = 0 if machine == 'x86_64' else 1
    calls = {
        'unshare': (272, 97, 0x10000000), 'mount': (165, 40), 'setns': (308, 268), 'chroot': (161, 51), 'open_tree': (428, 428),
        'keyctl': (250, 219, 0, -3, 1), 'bpf': (321, 280), 'perf': (298, 241), 'userfaultfd': (323, 282, 1), 'io_uring': (425, 425, 1),
        'pidfd_open': (434, 434, 1), 'clone3': (435, 435), 'name_to_handle': (303, 264), 'fsopen': (430, 430), 'new': (460, 460),
        'internet': (41, 198, 2, 1, 0), 'packet': (41, 198, 17, 3, 0), 'netlink': (41, 198, 16, 3, 0), 'vsock': (41, 198, 40, 1, 0),
        'pdeathsig': (157, 167, 1, 0),
    }
    for name, (first, second, *arguments) in calls.items():
        ctypes.set_errno(0)
        result = libc.syscall((first, second)[column], *arguments, *[0] * (5 - len(arguments)))
        if result >= 0 or ctypes.get_errno() not in (1, 38): found.append((name, result, ctypes.get_errno()))
    return found
"""
    probe(sandbox, code, os.uname().machine)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="other processor modes are a matter of x86-64")
def test_calls_of_the_32_bit_mode_end_the_program(sandbox: Sandbox) -> None:
    code = """
import ctypes, mmap
def f(x):
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, getpid; int 0x80; ret
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() > -1
"""
    cheat(sandbox, code, "assert f(1) == True\n")


@pytest.mark.skipif(sys.platform != "linux", reason="terminal input is forged by an ioctl of Linux")
def test_terminal_input_cannot_be_injected(sandbox: Sandbox) -> None:
    code = """
import fcntl
def reached(_):
    try: fcntl.ioctl(0, 0x5412, b'x'); return ['typed']
    except PermissionError: return []
    except OSError as error: return [error.errno]
"""
    if sandbox.name == "container":
        pytest.skip("a container is started without a terminal; its runtime has no filter for this call")
    probe(sandbox, code)


def children() -> set[int]:
    """Processes below this one, zombies included; but the guard, which stays as long as we do."""
    import psutil

    return {child.pid for child in psutil.Process().children(recursive=True) if not _is_guard(child)}


def _is_guard(process: psutil.Process) -> bool:
    import psutil

    with contextlib.suppress(psutil.Error):
        return process.cmdline() == ["/bin/sh", "-c", bubblewrap._WAIT]
    return False


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


@pytest.mark.parametrize(
    "code",
    ["def f(x): return x", "while True: pass", "import os; os._exit(3)", "def f(:", "import time\ndef f(x): time.sleep(100)"],
)
def test_nothing_is_left_after_the_verdict(sandbox: Sandbox, code: str) -> None:
    before, open_before = children(), descriptors()
    judged(sandbox, code, "assert f(1) == 1\n", limits=BRIEF)
    judged(sandbox, code, json.dumps({"inputs": [""], "outputs": [""]}), limits=BRIEF)
    assert children() == before
    assert descriptors() == open_before


def test_process_in_another_session_is_ended_too(sandbox: Sandbox) -> None:
    before = children()
    code = """
import os
try:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True: pass
except OSError: pass
def f(x): return x
"""
    judged(sandbox, code, "assert f(1) == 1\n", limits=BRIEF)
    assert children() == before


VICTIM = """
import sys
from tests.worlds.sandboxes import usable_sandbox, judged, LIMITS
print("ready", flush=True)
judged(usable_sandbox(sys.argv[1]), sys.argv[2], "assert f(1) == 1", limits=LIMITS)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_agent_leaves_no_program_behind(sandbox: Sandbox, tmp_path: Path) -> None:
    """The program tries to survive: it ignores signals and takes back the wish to end with its parent."""
    if sandbox.name == "container":
        pytest.skip("a container runs on until its CPU time is used up")
    program = "import ctypes, time\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\nwhile True: time.sleep(0.1)"
    agent = subprocess.Popen(
        [sys.executable, "-c", VICTIM, sandbox.name, program], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    try:
        import psutil

        assert agent.stdout is not None
        agent.stdout.readline()
        me = psutil.Process(agent.pid)
        inside = _eventually(lambda: [child for child in me.children(recursive=True) if _is_program(child)])
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        _, alive = psutil.wait_procs(inside, timeout=60)
        assert not alive
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()  # type: ignore[union-attr]


CROWD = """
import sys, threading
from edge.verifiers.sandbox import boot
from edge.verifiers.sandbox.choice import SANDBOXES
from tests.worlds.sandboxes import judged, LIMITS
sandbox = SANDBOXES.load(sys.argv[1])()
boot.LOADER = f"# {sys.argv[2]}\\n{boot.LOADER}"
programs = ["while True: pass", "def f(x): return x", "import time; time.sleep(1000)", "import os; os.closerange(0, 64)\\nwhile True: pass"]
tests = ["assert f(1) == 1", '{"inputs": ["1"], "outputs": ["1"]}']
print("ready", flush=True)
for number in range(20):
    threading.Thread(target=judged, args=(sandbox, programs[number % 4], tests[number % 3 % 2]), kwargs={"limits": LIMITS}).start()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("delay_s", [0.05, 0.15, 0.5])
def test_agent_killed_during_sandbox_start_leaves_none(sandbox: Sandbox, delay_s: float) -> None:
    """Half-started processes are not yet set to end with their parent."""
    if sandbox.name == "container":
        pytest.skip("a container runs on until its CPU time is used up")
    mark = f"crowd-{secrets.token_hex(8)}"
    with subprocess.Popen(
        [sys.executable, "-c", CROWD, sandbox.name, mark], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as agent:
        try:
            assert agent.stdout is not None
            assert agent.stdout.readline() == b"ready\n"
            threading.Event().wait(delay_s)
        finally:
            agent.kill()
    waited = threading.Event()
    for _ in range(600):  # on a machine with nothing else to do a second is enough
        if not (left := _marked(mark)):
            return
        waited.wait(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    raise AssertionError(f"{len(left)} processes are left")


def _marked(mark: str) -> list[int]:
    """Processes with this mark in their command line."""
    import psutil

    return [found.pid for found in psutil.process_iter(["cmdline"]) if mark in " ".join(found.info["cmdline"] or ())]


def _is_program(process: object) -> bool:
    """A sandboxed interpreter that runs: the judge and the program, both blocked or looping."""
    import psutil

    try:
        return "marshal" in " ".join(process.cmdline())  # type: ignore[attr-defined]
    except psutil.Error:
        return False


def _eventually(check: object) -> list:
    waited = threading.Event()
    for _ in range(600):
        if len(found := check()) >= 2:  # type: ignore[operator]
            waited.wait(0.5)
            return found
        waited.wait(0.05)
    raise AssertionError("the sandboxes did not start")


# ---- whole programs on standard input ----


@pytest.mark.parametrize(
    "code",
    ["", "print()", "import sys; sys.exit(0)", "import os; os._exit(0)", "print('passed')", "import os; os.write(2, b'passed')"],
)
def test_whole_program_is_judged_by_its_output_alone(sandbox: Sandbox, code: str) -> None:
    cheat(sandbox, code, CASES)


def test_right_output_with_a_failing_exit_does_not_pass(sandbox: Sandbox) -> None:
    right = json.dumps({"inputs": ["3"], "outputs": ["9"]})
    assert judged(sandbox, "print(int(input()) ** 2)", right).passed
    cheat(sandbox, "print(9)\nraise ValueError", right)
    cheat(sandbox, "import os\nprint(9, flush=True)\nos._exit(1)", right)


def test_whole_program_cannot_find_the_expected_output(sandbox: Sandbox) -> None:
    code = """
import os, sys, gc
print(next((o for o in gc.get_objects() if isinstance(o, str) and 'sword' + 'fish-' in o), ''))
for fd in range(64):
    try: print(os.read(fd, 1 << 16).decode('utf-8', 'replace'))
    except (OSError, ValueError): pass
"""
    cheat(sandbox, code, CASES, limits=BRIEF)


# ---- tests that judge nothing, and hostile tests ----


@pytest.mark.parametrize(
    "tests",
    [
        "",
        "pass",
        "def check(candidate):\n    assert candidate(1) == 2\n",
        "for x in []:\n    assert f(x) == 1\nf(1)\n",
        '{"inputs": [], "outputs": []}',
    ],
)
def test_tests_without_a_check_pass_nothing(sandbox: Sandbox, tests: str) -> None:
    reason = cheat(sandbox, "def f(x): return x", tests).reason
    assert "check" in reason or "never called" in reason


def test_tests_without_a_call_of_the_program_pass_nothing(sandbox: Sandbox) -> None:
    assert cheat(sandbox, "def f(x): return x", "assert 1 == 1\n").reason == "the tests never called the program"


@pytest.mark.parametrize(
    "tests",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "while True: pass",
        "f(1)\nimport os; os.kill(os.getpid(), 9); os._exit(0)",
    ],
)
def test_hostile_tests_pass_nothing_and_stay_inside(sandbox: Sandbox, tests: str) -> None:
    cheat(sandbox, "def f(x): return x", tests, limits=BRIEF)


def test_the_judge_is_confined_as_well(sandbox: Sandbox, tmp_path: Path) -> None:
    canary = tmp_path / "canary.txt"
    canary.write_text("whole")
    tests = f"f(1)\ntry:\n    open({str(canary)!r}, 'r+')\nexcept OSError:\n    assert f(1) == 1\n"
    assert judged(sandbox, "def f(x): return x", tests).passed
    tests = "import socket\nf(1)\ntry:\n    s = socket.socket()\n    s.connect(('192.0.2.1', 9))\nexcept OSError:\n    assert f(1) == 1\n"
    assert judged(sandbox, "def f(x): return x", tests).passed


# ---- the attacks themselves ----


@pytest.mark.parametrize(
    ("code", "given"),
    [
        (READING, [__file__]),
        (LISTING, [str(Path(__file__).parent)]),
        (ENVIRONMENT, ""),
        (PROCESSES, [os.getpid()]),
        (NETWORK, [("AF_INET", ["127.0.0.1", 9])]),
    ],
    ids=["reading", "listing", "environment", "processes", "network"],
)
def test_probe_succeeds_without_a_sandbox(code: str, given: object) -> None:
    if code is PROCESSES and sys.platform != "linux":
        pytest.skip("this probe looks at procfs, which is a matter of Linux")
    assert judged(usable_sandbox("none"), code, f"assert reached({given!r}) == []\n").reason == "tests failed: assertion 1"


def test_an_honest_program_passes_the_tests_that_the_cheats_fail(sandbox: Sandbox) -> None:
    code = f"def f(x): return {SECRET!r} if x == 3 else 99120"
    assert judged(sandbox, code, TESTS).passed
    assert judged(sandbox, f"input()\nprint({SECRET!r})", CASES).passed
