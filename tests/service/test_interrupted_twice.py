"""The second Ctrl-C ends a command though its work cannot be cut. A real process."""

from __future__ import annotations

import signal
import subprocess
import sys

WORK = """
import asyncio, time
from edge.cli.stopping import stop_on_signals

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


def test_a_second_interrupt_ends_the_process_though_a_step_cannot_be_cut() -> None:
    with subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for told in ("working", "stopping"):
                assert process.stdout.readline() == f"{told}\n"
                process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "cannot be cut\n"
            assert process.wait(60) == 130
        finally:
            process.kill()
