"""Ctrl-C while seeds are played. Knows the signal; knows nothing of seeds.

A KeyboardInterrupt rises wherever the program is just then: in a simulated device it would be taken for what that device's own code raised,
and so for a violation. Here the first Ctrl-C is only noted, and a second one ends the program where it is.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C came since the block began. Beside the main thread, which alone gets signals, it never did."""
    came = False

    def note(number: int, frame: Any) -> None:
        nonlocal came
        came = True
        signal.signal(number, before)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)
