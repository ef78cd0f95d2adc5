"""The second Ctrl-C ends a command even if its work cannot be interrupted; a closed terminal lets it finish. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

WORK = """
import asyncio, time
from edge.cli.exits import stop_on_signals

async def work():
    with stop_on_signals(lambda: print("stopping", flush=True)):
        print("working", flush=True)
        step = asyncio.ensure_future(asyncio.to_thread(time.sleep, 600))
        while not step.done():
            try:
                await asyncio.shield(step)
            except asyncio.CancelledError:
                print("cannot be cut", flush=True)

asyncio.run(work())
"""


def test_second_interrupt_ends_the_process_during_an_uninterruptible_step() -> None:
    with subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for word in ("working", "stopping"):
                assert process.stdout.readline() == f"{word}\n"
                process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "cannot be cut\n"
            assert process.wait(60) == 130
        finally:
            process.kill()


HANGS_UP = """
import asyncio, fcntl, os, signal, sys, termios
from pathlib import Path
from edge.cli.exits import stop_on_signals

async def work():
    stop = asyncio.Event()
    def begin_stop():
        print("stopping", flush=True)
        stop.set()
    with stop_on_signals(begin_stop):
        print("working", flush=True)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGHUP)  # a shell signals its jobs once more
        await asyncio.sleep(0.1)
        print("settling", flush=True)
    Path(sys.argv[1]).write_text("settled")

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
asyncio.run(work())
"""


def read_line(terminal: int) -> bytes:
    """Read a whole line: closing in the middle of one would make the writer fail."""
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(terminal, 100)
    return line


def test_closed_terminal_lets_the_work_finish(tmp_path: Path) -> None:
    terminal, end = os.openpty()
    file = tmp_path / "state"
    command = [sys.executable, "-c", HANGS_UP, str(file)]
    with subprocess.Popen(command, stdin=end, stdout=end, stderr=end, start_new_session=True) as process:
        try:
            os.close(end)
            assert read_line(terminal).startswith(b"working")
            os.close(terminal)
            assert process.wait(60) == 0
            assert file.read_text() == "settled"
        finally:
            process.kill()


IGNORES = """
import asyncio, signal
from edge.cli.exits import stop_on_signals

async def work():
    with stop_on_signals(lambda: print("stopping", flush=True)):
        print("working", signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, flush=True)

signal.signal(signal.SIGHUP, signal.SIG_IGN)
asyncio.run(work())
"""


def test_under_nohup_a_closed_terminal_stops_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", IGNORES], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "working True\n"
