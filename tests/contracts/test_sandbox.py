"""The contract of Sandbox, for every backend that works here (also `none`, where isolation does not matter)."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge.core.errors import UsageError
from edge.verifiers.sandbox import choice
from edge.verifiers.sandbox.role import Confined, Sandbox, SandboxLimits, Streams
from tests.worlds.sandboxes import ISOLATING, judged, usable_sandbox

LIMITS = SandboxLimits(wall_s=10.0)


@pytest.fixture(params=[*ISOLATING, "none"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return usable_sandbox(request.param)


@contextmanager
def started(sandbox: Sandbox, boot: str, given: bytes = b"") -> Iterator[tuple[Confined, int]]:
    """A process that runs `boot`, with the descriptor of its output; killed at the end."""
    stdin, stdin_end = os.pipe()
    output, output_end = os.pipe()
    os.write(stdin_end, given)
    try:
        confined = sandbox.start(boot, Streams(stdin, output_end, output_end), LIMITS)
    finally:
        for fd in (stdin, stdin_end, output_end):
            os.close(fd)
    try:
        yield confined, output
    finally:
        confined.kill()
        os.close(output)


def output_of(sandbox: Sandbox, boot: str, given: bytes = b"") -> str:
    """All that a process wrote until its end."""
    with started(sandbox, boot, given) as (confined, output), os.fdopen(os.dup(output)) as file:
        text = file.read()
        assert confined.wait(20) == 0, text
        return text


def test_process_has_only_the_three_standard_streams(sandbox: Sandbox) -> None:
    boot = """
import os, sys
def is_open(fd):
    try: os.fstat(fd)
    except OSError: return False
    return True
print(sys.stdin.read(), [fd for fd in range(3, 64) if is_open(fd)], flush=True)
print('errors', file=sys.stderr)
"""
    held = [os.open(__file__, os.O_RDONLY), *os.pipe()]
    try:
        assert output_of(sandbox, boot, b"given") == "given []\nerrors\n"
    finally:
        for fd in held:
            os.close(fd)


def test_the_interpreter_is_bare_and_the_same_in_every_run(sandbox: Sandbox) -> None:
    boot = """
import sys, json
flags = sys.flags
print(json.dumps([hash('a'), flags.no_site, flags.no_user_site, flags.safe_path, flags.utf8_mode, flags.optimize,
                  [path for path in sys.path if 'packages' in path], 'site' in sys.modules]))
"""
    first, second = output_of(sandbox, boot), output_of(sandbox, boot)
    assert first == second
    assert json.loads(first)[1:] == [1, 1, True, 1, 0, [], False]
    version = output_of(sandbox, "import sys; print(sys.version_info[:3])").strip()
    assert (version == str(sys.version_info[:3])) or not sandbox.same_python


def test_the_whole_standard_library_can_be_imported(sandbox: Sandbox) -> None:
    boot = """
import sys
names = ['array', 'asyncio', 'bisect', 'collections', 'copy', 'csv', 'dataclasses', 'datetime', 'decimal', 'enum', 'fractions',
         'functools', 'hashlib', 'heapq', 'itertools', 'json', 'math', 'operator', 'queue', 'random', 're', 'statistics', 'string',
         'struct', 'textwrap', 'threading', 'time', 'typing', 'unicodedata', 'unittest', 'uuid', 'zlib', 'zoneinfo']
for name in names: __import__(name)
print('all')
"""
    assert output_of(sandbox, boot) == "all\n"


@pytest.mark.parametrize("status", [0, 3])
def test_exit_status_is_returned(sandbox: Sandbox, status: int) -> None:
    with started(sandbox, f"import os; os._exit({status})") as (confined, _):
        assert confined.wait(20) == status
        assert confined.wait(0.0) == status


def test_a_running_process_has_no_status_and_can_be_killed_twice(sandbox: Sandbox) -> None:
    with started(sandbox, "import time\nprint('up', flush=True)\ntime.sleep(1000)") as (confined, output):
        assert os.read(output, 3) == b"up\n"
        assert confined.wait(0.0) is None
        assert confined.excess(LIMITS) == ""
        confined.kill()
        assert confined.wait(0.0) not in (None, 0)
        confined.kill()


def test_kill_right_after_start_leaves_nothing(sandbox: Sandbox) -> None:
    for _ in range(5):
        with started(sandbox, "import time; time.sleep(1000)") as (confined, output):
            confined.kill()
            assert os.read(output, 1) == b""


def test_temporary_files_fail_in_the_same_way_everywhere(sandbox: Sandbox) -> None:
    """A verdict must not depend on the available sandbox."""
    boot = """
import tempfile
for make in (tempfile.TemporaryFile, tempfile.mkdtemp, lambda: open('made', 'w'), lambda: open('/tmp/made', 'w')):
    try: make(); print('made', end=' ')
    except OSError: print('refused', end=' ')
"""
    if not sandbox.protection.isolates:
        pytest.skip("without isolation files can be made")
    assert output_of(sandbox, boot) == "refused " * 4


def test_many_threads_may_use_one_sandbox(sandbox: Sandbox) -> None:
    verdicts: dict[int, bool] = {}

    def work(number: int) -> None:
        verdicts[number] = judged(sandbox, f"def f(x): return x + {number}", f"assert f(1) == {number + 1}\n").passed

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == dict.fromkeys(range(6), True)


def test_sandbox_states_what_it_protects_against_and_what_not(sandbox: Sandbox) -> None:
    assert sandbox.protection.isolates is (sandbox.name != "none")
    assert sandbox.protection.lacks
    assert choice.probe(sandbox) == ""


# ---- the choice ----


def test_first_working_sandbox_is_chosen() -> None:
    names = {"linux": ["bubblewrap", "landlock"], "darwin": ["sandbox-exec"]}[sys.platform]
    working = [name for name in names if choice.look_for(name).sandbox is not None]
    if not working:
        pytest.skip("no sandbox works on this machine")
    assert choice.best_sandbox().name == working[0]
    assert choice.choose_sandbox("auto").name == choice.choose_sandbox("auto", unsafe=True).name == working[0]


def test_without_a_sandbox_the_error_is_one_line_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "look_for", lambda name: choice.Found(name, None, "gone"))
    with pytest.raises(UsageError, match="cannot be isolated") as raised:
        choice.choose_sandbox("auto")
    assert "--unsafe-programs" in raised.value.hint
    with pytest.raises(UsageError, match="bubblewrap cannot be used: gone"):
        choice.choose_sandbox("bubblewrap", unsafe=True)


def test_none_is_used_only_on_explicit_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--unsafe-programs"):
        choice.choose_sandbox("none")
    assert choice.choose_sandbox("none", unsafe=True).name == "none"
    look_for = choice.look_for
    monkeypatch.setattr(choice, "look_for", lambda name: look_for(name) if name == "none" else choice.Found(name, None, "gone"))
    assert choice.choose_sandbox("auto", unsafe=True).name == "none"


def test_a_sandbox_that_does_not_isolate_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = usable_sandbox("none")
    pretender = type("Pretender", (), {"name": "pretender", "same_python": True, "start": staticmethod(plain.start)})()
    pretender.protection = choice.look_for("none").sandbox.protection.__class__(holds=("everything",))  # type: ignore[union-attr]
    assert choice.probe(pretender) == "it does not isolate"


FAKE_DOCKER = """#!{python}
import os, sys
arguments = sys.argv[1:]
with open({log!r}, "a") as log: log.write(" ".join(arguments)[:2000] + "\\n")
if arguments[0] == "run":
    at = arguments.index("IMAGE")
    os.execv({python!r}, [{python!r}, *arguments[at + 2:]])
"""


def test_container_runs_without_network_privileges_or_downloads_and_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container runtime is a stand-in that runs the same interpreter; long tests use a real one where there is one."""
    from edge.verifiers.sandbox.container import Container

    log = tmp_path / "log"
    (tmp_path / "docker").write_text(FAKE_DOCKER.format(python=sys.executable, log=str(log)))
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert judged(Container("IMAGE"), "def f(x): return x", "assert f(1) == 1\n").passed
    lines = log.read_text().splitlines()
    runs = [line for line in lines if line.startswith("run ")]
    assert len(runs) == 2
    rights = "--rm|--pull never|--network none|--read-only|--cap-drop ALL|no-new-privileges|--pids-limit|--memory 256m"
    assert all(needed in run for needed in rights.split("|") for run in runs)
    assert sorted(line.split()[-1] for line in lines if line.startswith("rm --force")) == sorted(run.split()[2] for run in runs)


def test_macos_profile_denies_by_default_and_quotes_paths() -> None:
    from edge.verifiers.sandbox.interpreter import Interpreter
    from edge.verifiers.sandbox.sandbox_exec import profile

    python = Interpreter("/a/bin/python", '/a/lib/py"3', ('/a/lib/py"3/site-packages',), (), (), ())
    text = profile(python, "/a")
    assert text.startswith("(version 1)\n(deny default)\n")
    assert '(deny file-read* (subpath "/a/lib/py\\"3/site-packages"))' in text
    assert "network" not in text and "file-write*" not in text and text.count("(") == text.count(")")
