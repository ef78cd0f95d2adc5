"""`edge-agent run` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge.cli.remote import announcement

START_S, STOP_S = 60.0, 60.0


@contextmanager
def agent_process(state: Path, *words: str, **environment: str) -> Iterator[str]:
    """The base address of an agent on this state folder, once it serves. It is ended with the block."""
    command = [sys.executable, "-m", "edge.cli", "run", "--port", "0", "--state", str(state), "--set", "engine.threads=1", *words]
    log = state.parent / "agent.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}
        )
    try:
        watchdog = threading.Timer(START_S, process.kill)
        watchdog.start()
        while (found := announcement(state)) is None:
            assert process.poll() is None, log.read_text()[-2000:]
            threading.Event().wait(0.1)
        watchdog.cancel()
        yield str(found["url"])
    finally:
        process.terminate()
        process.wait(STOP_S)
