"""A program at a pseudo-terminal: typed keys, and the resulting screen."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

WAIT_S = 60.0
CTRL_C, CTRL_D, CTRL_R, ALT_ENTER, UP, DOWN, TAB, ENTER = "\x03", "\x04", "\x12", "\x1b\r", "\x1b[A", "\x1b[B", "\t", "\r"
_CONTROL = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_=>])")


def pasted(text: str) -> str:
    """Encode pasted text as a terminal does: Enter's code at the end of each line, between paste marks."""
    return "\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~"


class PseudoTerminal:
    """The other end of a running program's terminal."""

    def __init__(self, descriptor: int, process: asyncio.subprocess.Process) -> None:
        self._descriptor = descriptor
        self._raw = b""
        self._from = 0
        self._changed = asyncio.Event()
        self.process = process
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    @property
    def screen(self) -> str:
        """All output without cursor movement and colours."""
        return _CONTROL.sub("", self._raw.decode("utf-8", "replace")).replace("\r", "")

    @property
    def raw(self) -> str:
        """All that was written."""
        return self._raw.decode("utf-8", "replace")

    def type(self, text: str) -> None:
        """Type it."""
        os.write(self._descriptor, text.encode())

    async def sees(self, text: str) -> None:
        """Wait until new output contains the text. Raises AssertionError with the screen otherwise."""
        try:
            async with asyncio.timeout(WAIT_S):
                while text not in self.screen[self._from :]:
                    self._changed.clear()
                    await self._changed.wait()
                self._from = self.screen.index(text, self._from) + len(text)
        except TimeoutError:
            raise AssertionError(f"{text!r} never came; the screen:\n{self.screen}") from None

    async def ends(self) -> int:
        """Wait for the program's exit code."""
        return await asyncio.wait_for(self.process.wait(), WAIT_S)

    def _read(self) -> None:
        try:
            self._raw += os.read(self._descriptor, 65536)
        except OSError:  # the program has closed its end
            asyncio.get_running_loop().remove_reader(self._descriptor)
        self._changed.set()

    def close(self) -> None:
        """Close the terminal."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)


@asynccontextmanager
async def at_a_terminal(*words: str, environment: Mapping[str, str] | None = None) -> AsyncIterator[PseudoTerminal]:
    """`edge-agent WORDS` in a terminal of 30 lines and 100 columns; ended with the block."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    settings = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **(environment or {})}

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "edge.cli", *words, stdin=theirs, stdout=theirs, stderr=theirs, env=settings, preexec_fn=own_terminal
    )  # fmt: skip
    os.close(theirs)
    terminal = PseudoTerminal(ours, process)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        terminal.close()
