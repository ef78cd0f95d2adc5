"""Ctrl-C and SIGTERM for commands that run for long. Knows signals; knows nothing of what is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MOMENT_S = 1.0
_INTERRUPTED = 130
_SHOW_CURSOR = "\x1b[?25h"


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first signal. At the second cancel the task that entered the block, and end the process where that takes longer
    than a moment: an update under way cannot be cut, and what is on disk is whole whenever the process ends."""
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    seen = 0

    def on_signal() -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            stop()
        elif task is not None:
            task.cancel()
            _end_soon()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _end_soon() -> None:
    """End the process a moment from now, unless it has ended by itself. The embedded coordinator ends with it."""
    timer = threading.Timer(_MOMENT_S, _end)
    timer.daemon = True
    timer.start()


def _end() -> None:
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), _SHOW_CURSOR.encode())
    os._exit(_INTERRUPTED)
