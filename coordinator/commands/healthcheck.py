"""Asks a coordinator on this machine whether it takes work. Knows the standard health service and where a coordinator listens."""

from __future__ import annotations

import asyncio

from coordinator.app import admin_listen_of
from coordinator.commands.admin_client import access_of
from coordinator.config import CoordinatorConfig
from edge.core.errors import CoordinatorUnavailable, UsageError
from edge.rpc.address import parse_address
from edge.rpc.credentials import ClientCredentials
from edge.rpc.handshake import ADMINISTRATOR
from edge.rpc.health import is_serving, require_handshake

DEVICE_SERVICE = "edge.rpc.v1.DeviceService"


def require_serving(config: CoordinatorConfig, address: str | None, timeout_s: float) -> str:
    """The address that answered SERVING. Raises CoordinatorUnavailable, or UsageError when nothing local can be asked."""
    asked = address or config.admin.address or local_address(config)
    credentials = ClientCredentials() if parse_address(asked).path else access_of(config).credentials
    asyncio.run(_require(asked, timeout_s, credentials))
    return asked


async def _require(address: str, timeout_s: float, credentials: ClientCredentials) -> None:
    if await is_serving(address, timeout_s, service=DEVICE_SERVICE, credentials=credentials):
        return
    await require_handshake(address, timeout_s, credentials, ADMINISTRATOR)
    raise CoordinatorUnavailable(f"NOT_SERVING: no coordinator takes work on {address}", hint="look at its log")


def local_address(config: CoordinatorConfig) -> str:
    """Where a health check can connect without a credential: a Unix socket, or a loopback port without TLS. Raises UsageError."""
    listening = [*admin_listen_of(config), *config.listen]
    sockets = [each for each in listening if parse_address(each).path]
    ports = [each for each in listening if config.tls is None and parse_address(each).is_local]
    for each in (*sockets, *ports):
        return each
    raise UsageError("nothing listens locally without TLS", hint="give the address, or a Unix socket in admin_listen")
