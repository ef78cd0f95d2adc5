"""Ctrl-C while something is going on. Knows the signal and the work it stops; knows nothing of what the work is."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """Ctrl-C stopped the work."""


class Interrupts:
    """Within its block a SIGINT stops the work in progress, once; where there is none it is handed to `idle`."""

    def __init__(self, idle: Callable[[], object]) -> None:
        self._idle = idle
        self._work: asyncio.Task[Any] | None = None
        self._stopping = False

    def __enter__(self) -> Interrupts:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    async def stoppable(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work. Raises Stopped where Ctrl-C came first; its clean-up has run by then."""
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._work = task
        self._stopping = False
        try:
            return await task
        except asyncio.CancelledError:
            if not (self._stopping and task.cancelled()):
                raise
            raise Stopped from None
        finally:
            self._work = None

    def _on_signal(self) -> None:
        if self._work is None:
            self._idle()
        elif not self._stopping:  # a second one must not cut the clean-up short
            self._stopping = True
            self._work.cancel()
