"""Where a coordinator would listen, checked without listening."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from coordinator.config import CoordinatorConfig
from edge.core.errors import ConfigError, EdgeError
from edge.rpc.address import Address, parse_address


def check_listening(config: CoordinatorConfig) -> None:
    """Raises ConfigError that begins with the setting's dotted key for what `serve` would refuse, whatever else runs on the machine."""
    taken: list[tuple[str, Address]] = []
    for key, text, encrypted in _listeners(config):
        address = _readable(key, text)
        if not (address.is_local or encrypted):
            raise ConfigError(
                f"{key}: refusing to listen unencrypted on {address}",
                hint="set tls (`edge-coordinator pki init` makes certificates), or listen on loopback or a Unix socket",
            )
        for other, known in taken:
            if _clash(address, known) and {key, other} != {"metrics_listen", "console_listen"}:
                raise ConfigError(f"{key}: {address} is taken by {other} already", hint="give each a port of its own")
        taken.append((key, address))


def _listeners(config: CoordinatorConfig) -> Iterator[tuple[str, str, bool]]:
    """Each setting, an address of it, and whether other machines may connect there."""
    tls = config.tls is not None
    for text in config.listen:
        yield "listen", text, tls or config.service.allow_insecure
    for text in config.admin_addresses:
        yield "admin_listen", text, tls
    for key in ("metrics_listen", "console_listen"):
        if text := getattr(config, key):
            yield key, text, tls


def _readable(key: str, text: str) -> Address:
    try:
        address = parse_address(text)
    except EdgeError as error:
        raise ConfigError(f"{key}: {error}", hint=error.hint) from error
    if address.path and key in ("metrics_listen", "console_listen"):
        raise ConfigError(f"{key}: a browser or scraper cannot connect to {text}", hint="give HOST:PORT")
    return address


def _clash(one: Address, other: Address) -> bool:
    if one.path or other.path:
        return one.path == other.path
    return one.port == other.port != 0 and (one.host == other.host or _is_everywhere(one.host) or _is_everywhere(other.host))


def _is_everywhere(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
