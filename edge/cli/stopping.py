"""Ctrl-C, SIGTERM and a closed terminal for commands that run for long."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MOMENT_S = 1.0
_INTERRUPTED = 130
_SHOW_CURSOR = "\x1b[?25h"


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first signal. At the second cancel the task that entered the block, and end the process where that takes longer
    than a moment: an update under way cannot be cut, and what is on disk is whole whenever the process ends. A closed terminal stops too,
    but not twice: shell and system both tell of it. Where that is ignored, as under nohup, it stays so."""
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    seen = 0

    def on_signal(number: int) -> None:
        nonlocal seen
        if number == signal.SIGHUP:
            _speak_to_nobody()
            if seen:
                return
        seen += 1
        if seen == 1:
            stop()
        elif task is not None:
            task.cancel()
            _end_soon()

    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _speak_to_nobody() -> None:
    """Writing to a terminal that is gone, or to a pipe whose reader went with it, is an error, and would cut what is still to be done."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for channel in (0, 1, 2):
        with suppress(OSError):
            mode = os.fstat(channel).st_mode
            if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
                os.dup2(nowhere, channel)
    os.close(nowhere)


def _end_soon() -> None:
    """End the process a moment from now, unless it has ended by itself. The embedded coordinator ends with it."""
    timer = threading.Timer(_MOMENT_S, _end)
    timer.daemon = True
    timer.start()


def _end() -> None:
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), _SHOW_CURSOR.encode())
    os._exit(_INTERRUPTED)
