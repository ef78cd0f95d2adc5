"""Lines from a pipe or a file on stdin. Knows bytes and one thread that waits for them; knows nothing of what the lines say."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Protocol


class Lines(Protocol):
    """Where a conversation's lines come from."""

    async def next_line(self) -> str | None:
        """The next line without white space around it; None at the end."""
        ...


class PipedLines:
    """Lines of stdin as they come, whoever writes them.

    The thread may wait for ever in a read that nothing can interrupt, so it is a daemon and reads without the interpreter's own buffer,
    whose lock it would hold when the program ends.
    """

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(maxsize=1)
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None

    async def next_line(self) -> str | None:
        """The next line, None at the end and ever after."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="stdin", daemon=True)
            self._thread.start()
        elif not self._thread.is_alive() and self._lines.empty():
            return None
        return await self._lines.get()

    def _read(self) -> None:
        with suppress(RuntimeError, CancelledError):  # the conversation is over: its loop is closed, or closing
            try:
                with io.FileIO(self._descriptor, closefd=False) as file:
                    for line in file:
                        self._hand_over(line.decode("utf-8", "replace").strip())
            except OSError as error:
                print(f"stdin cannot be read: {error.strerror}", file=sys.stderr)
            self._hand_over(None)

    def _hand_over(self, line: str | None) -> None:
        offered = self._lines.put(line)
        try:
            asyncio.run_coroutine_threadsafe(offered, self._loop).result()
        finally:
            offered.close()
