"""Commands as separate processes, forked from one that has already imported their modules, which saves a second each.

For tests of a command's output and effects. How an interpreter starts, and what a command imports, is tested where `-m edge.cli` is run.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from threading import Event, Lock

from edge.core.clock import SystemClock

LIMIT_S = 120.0
LOADED = ("aiohttp", "edge.app.agents", "edge.agent", "edge.cli.app", "edge.cli.remote", "coordinator.commands.main")
"""Nothing that reads the environment when it is imported, and nothing that starts threads."""


Ended = tuple[int, str, str]
_ORDERS = Lock()


def run_command(module: str, *words: str, stdin: str | bytes = b"", environment: Mapping[str, str] | None = None) -> Ended:
    """`python -m MODULE WORDS` with this environment (None: this process's); its exit code, stdout and stderr."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "in").write_bytes(stdin.encode() if isinstance(stdin, str) else stdin)
        chosen = dict(os.environ if environment is None else environment)
        _order(
            {
                "module": module,
                "words": [str(word) for word in words],
                "environment": chosen,
                "folder": place,
                "cwd": str(Path.cwd()),
            }
        )
        clock, pause = SystemClock(), Event()
        began = clock.monotonic()
        while not (folder / "code").exists():
            if clock.monotonic() - began > LIMIT_S:
                os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
                raise AssertionError(f"{module} {' '.join(words)} did not end in {LIMIT_S:g} s")
            pause.wait(0.005)
        return int((folder / "code").read_text()), (folder / "out").read_text("utf-8"), (folder / "err").read_text("utf-8")


async def edge_agent(*words: str, stdin: str | bytes = b"", **environment: str) -> Ended:
    """`edge-agent WORDS`, with additional environment variables."""
    chosen = {**os.environ, **environment}
    return await asyncio.to_thread(run_command, "edge.cli", *words, stdin=stdin, environment=chosen)


def _order(what: Mapping[str, object]) -> None:
    with _ORDERS:
        server = _server()
        assert server.stdin is not None
        server.stdin.write(json.dumps(what).encode() + b"\n")
        server.stdin.flush()


@cache
def _server() -> subprocess.Popen[bytes]:
    """One for each process of the tests; it ends with its standard input."""
    server = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE)
    assert server.stdin is not None
    atexit.register(server.stdin.close)
    return server


def serve() -> None:
    """Fork a process for each line of standard input."""
    for module in LOADED:
        __import__(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # without waiting for them
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        if os.fork() == 0:
            _run(**json.loads(line))


def _run(module: str, words: list[str], environment: dict[str, str], folder: str, cwd: str) -> None:
    """As `python -m` does it, between files in place of a terminal; never returns."""
    place, code = Path(folder), 1
    try:
        (place / "pid").write_text(str(os.getpid()))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        for number, name in enumerate(("in", "out", "err")):
            os.dup2(os.open(place / name, os.O_RDWR | os.O_CREAT, 0o600), number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = [module, *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        (place / "code.draft").write_text(str(code))
        shutil.move(place / "code.draft", place / "code")
        os._exit(0)


if __name__ == "__main__":
    serve()
