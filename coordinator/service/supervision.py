"""This process and those around it: the service manager is notified, and the parent is watched."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)
POLL_S = 0.3


class ServiceManager:
    """Notifies systemd (Type=notify) at the socket that NOTIFY_SOCKET names; does nothing without one."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        name = (os.environ if environ is None else environ).get("NOTIFY_SOCKET", "")
        self._path = "\0" + name[1:] if name.startswith("@") else name

    def ready(self, status: str) -> None:
        """Serving; `status` is shown by `systemctl status`."""
        self._notify(f"READY=1\nSTATUS={status}")

    def alive(self) -> None:
        """The event loop still turns."""
        self._notify("WATCHDOG=1")

    def stopping(self) -> None:
        """The drain has begun."""
        self._notify("STOPPING=1\nSTATUS=draining")

    def _notify(self, message: str) -> None:
        if not self._path:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as out:
                out.sendto(message.encode(), self._path)
        except OSError as error:
            log.warning("the service manager cannot be notified: %s", error.strerror)


async def parent_gone(parent_pid: int, poll_s: float = POLL_S) -> None:
    """Return once this process is no longer the child of `parent_pid` (a dead parent's children are adopted by another process)."""
    while os.getppid() == parent_pid:  # noqa: ASYNC110 - no signal reaches a process whose parent died
        await asyncio.sleep(poll_s)
