"""Addresses of a coordinator: HOST:PORT and unix:PATH."""

from __future__ import annotations

import ipaddress
import os.path
from dataclasses import dataclass

from edge.core.errors import UsageError

UNIX_PREFIX = "unix:"
MAX_UNIX_PATH_BYTES = 103  # the smaller of Linux (107) and macOS (103)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a coordinator listens: either `path` of a Unix socket, or `host` and `port`."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_local(self) -> bool:
        """True when nothing sent there leaves this machine: a Unix socket or a loopback address."""
        return bool(self.path) or is_loopback(self.host)

    def __str__(self) -> str:
        if self.path:
            return UNIX_PREFIX + self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def shown(text: str) -> str:
    """An address or a path as a person reads it, without `..` and doubled slashes where it leads to the same place without them."""
    prefix = UNIX_PREFIX if text.startswith(UNIX_PREFIX) else ""
    path = text.removeprefix(prefix)
    short = os.path.normpath(path)
    return prefix + short if "/" in path and os.path.realpath(short) == os.path.realpath(path) else text


def parse_address(text: str) -> Address:
    """The address a person wrote. Raises UsageError with what is wrong."""
    if text.startswith(UNIX_PREFIX):
        return _parse_unix(text)
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"cannot read the address {text!r}", hint="write HOST:PORT or unix:PATH")
    return Address(host=host, port=int(port))


def _parse_unix(text: str) -> Address:
    path = text.removeprefix(UNIX_PREFIX).removeprefix("//")
    if not path:
        raise UsageError(f"the address {text!r} names no path", hint="write unix:PATH")
    if len(path.encode()) > MAX_UNIX_PATH_BYTES:
        raise UsageError(
            f"the socket path is longer than {MAX_UNIX_PATH_BYTES} bytes: {path}", hint="use a shorter folder for the socket"
        )
    return Address(path=path)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. Names other than localhost count as foreign."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
