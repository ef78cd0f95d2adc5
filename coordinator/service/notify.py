"""What a service manager is told: ready, still alive, stopping. Knows the datagram socket that systemd names; does nothing without one."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)


class ServiceManager:
    """Tells systemd (Type=notify) how this process is; silent where nobody asked for it."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        name = (os.environ if environ is None else environ).get("NOTIFY_SOCKET", "")
        self._path = "\0" + name[1:] if name.startswith("@") else name

    def ready(self, status: str) -> None:
        """Serving; `status` is shown by `systemctl status`."""
        self._tell(f"READY=1\nSTATUS={status}")

    def alive(self) -> None:
        """The event loop still turns."""
        self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """The drain has begun."""
        self._tell("STOPPING=1\nSTATUS=draining")

    def _tell(self, message: str) -> None:
        if not self._path:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as out:
                out.sendto(message.encode(), self._path)
        except OSError as error:
            log.warning("the service manager cannot be told: %s", error.strerror)
