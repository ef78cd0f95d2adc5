"""SIGTERM as Ctrl-C is: what is under way ends by an exception, so that a run can sum up its steps. Knows the signal only."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_MAIN_RANK = "0"


class Terminated(BaseException):
    """SIGTERM came. Not an Exception, as KeyboardInterrupt is none."""


@contextmanager
def stopped_by_term() -> Iterator[None]:
    """Raises Terminated in the block at the first SIGTERM; the next ones are passed over until the block has ended. Changes nothing where
    SIGTERM is ignored, outside the main thread, and in processes other than the main one, which have nothing to sum up."""
    alone = os.environ.get("RANK", _MAIN_RANK) == _MAIN_RANK
    before = signal.getsignal(signal.SIGTERM)
    if not alone or before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise Terminated
