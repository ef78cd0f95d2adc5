"""Ends a group of processes when this process is gone, however it went.

A process can ask Linux to be ended with its parent, but not one that is still being made by another program: bubblewrap's inner process
waits without end for an outer one that has been killed at the wrong moment. So there is a shell that does nothing but wait for the end of
a pipe, which comes with our end, and then kills its own group. Who is started in this group and leaves it must have a way of its own to
end with us (`boot.LOADER` watches whether we are still there).
"""

from __future__ import annotations

import os
import subprocess
import threading
import weakref
from contextlib import suppress

_WAIT = "trap '' HUP INT TERM; read -r nothing; kill -KILL 0"


class Guard:
    """A process group that ends with this process. The shell in it starts when it is first asked for; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._shell: subprocess.Popen[bytes] | None = None

    def group(self) -> int:
        """The number of the group. Raises OSError when there is no shell."""
        with self._lock:
            if self._shell is None or self._owner != os.getpid() or self._shell.poll() is not None:
                self._shell = subprocess.Popen(
                    ["/bin/sh", "-c", _WAIT],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={},
                    cwd="/",
                    process_group=0,
                )
                self._owner = os.getpid()
                weakref.finalize(self, _end, self._shell, self._owner)
            return self._shell.pid


def _end(shell: subprocess.Popen[bytes], owner: int) -> None:
    """Let the shell end the group; a process forked from ours has no say in it."""
    assert shell.stdin is not None
    with suppress(OSError):
        shell.stdin.close()
    if owner == os.getpid():
        shell.wait()
