"""Where a coordinator would listen, checked without listening."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from coordinator.config import ServerConfig
from coordinator.service.tls import require_encrypted, side_address
from edge.core.errors import ConfigError, EdgeError
from edge.rpc.address import Address, parse_address

SIDE_PORTS = ("metrics_listen", "console_listen")
"""They may share one address."""
HTTP_PORTS = (*SIDE_PORTS, "openai_listen")


def check_listening(config: ServerConfig) -> None:
    """Raises ConfigError that begins with the setting's dotted key for what `serve` would refuse, whatever else runs on the machine."""
    taken: list[tuple[str, Address]] = []
    for key, text, encrypted in _listeners(config):
        try:
            address = side_address(text, encrypted) if key in HTTP_PORTS else parse_address(text)
            require_encrypted(address, encrypted)
        except EdgeError as error:
            raise ConfigError(f"{key}: {error}", hint=error.hint) from error
        for other, known in taken:
            if _clash(address, known) and {key, other} != set(SIDE_PORTS):
                raise ConfigError(f"{key}: {address} is taken by {other} already", hint="give each a port of its own")
        taken.append((key, address))


def _listeners(config: ServerConfig) -> Iterator[tuple[str, str, bool]]:
    """Each setting, an address of it, and whether other machines may connect there."""
    tls = config.tls is not None
    yield from (("listen", text, tls or config.service.allow_insecure) for text in config.listen)
    yield from (("admin_listen", text, tls) for text in config.admin_addresses)
    yield from ((key, text, tls) for key in HTTP_PORTS if (text := getattr(config, key)))


def _clash(one: Address, other: Address) -> bool:
    if one.path or other.path:
        return one.path == other.path
    return one.port == other.port != 0 and (one.host == other.host or _is_everywhere(one.host) or _is_everywhere(other.host))


def _is_everywhere(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
