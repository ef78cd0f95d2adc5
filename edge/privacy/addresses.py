"""E-mail and IP addresses in a text. Knows their forms; knows nothing of what becomes of them.

Loopback, unspecified and netmask addresses tell nothing of anybody and are not found.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from edge.privacy.found import Found

_EMAIL = re.compile(
    r"(?<![\w.+-])(?:\w[\w.!#$&'*+/^`{|}~-]{0,63}|\"[^\"\n]{1,62}\")@\n?(?:(?:[\w](?:[\w-]{0,61}[\w])?\.)+(?:xn--[a-z0-9-]{2,59}|[^\W\d_]{2,24})\b"
    r"|(?:\d{1,3}\.){3}\d{1,3}(?![\w.])|\[[0-9A-Fa-f.:]{7,45}\])"
)
_IP4 = re.compile(r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w]|\.\d)(?:/\d{1,2}\b)?")
_IP6 = re.compile(
    r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:[0-9A-Fa-f]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?(?![\w:]|\.\d)(?:%\w{1,16})?(?:/\d{1,3}\b)?"
)
_MAC = re.compile(r"(?<![\w:.-])(?:(?:[0-9A-Fa-f]{2}:){5}|(?:[0-9A-Fa-f]{2}-){5})[0-9A-Fa-f]{2}(?![\w:-])")
_FEWEST_GROUPS = 3


def emails(text: str) -> Iterator[Found]:
    """`jo@mail.example.org`, also with a quoted name, a domain of other letters, or an address in brackets."""
    for match in _EMAIL.finditer(text):
        if text[match.start()] not in "/":
            yield Found(match.start(), match.end(), "email", match.group().replace("\n", "").casefold())


def ips(text: str) -> Iterator[Found]:
    """Addresses of version 4 and 6, with a network's length, and of network cards; a port behind one stays."""
    for pattern in (_IP4, _IP6) if ":" in text else (_IP4,):
        for match in pattern.finditer(text):
            address = _address(match.group())
            if address is not None:
                yield Found(match.start(), match.end(), "ip", address)
    for match in _MAC.finditer(text):
        yield Found(match.start(), match.end(), "ip", match.group().lower().replace("-", ":"))


def _address(text: str) -> str | None:
    """The address in its usual form, or None for what is none or is nobody's."""
    bare = text.partition("/")[0]
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return None
    nobodys = address.is_loopback or address.is_unspecified or bare.startswith("255.")
    if nobodys or (address.version == 6 and not _is_written_as_address(bare)):
        return None
    return str(address) + text[len(bare) :]


def _is_written_as_address(text: str) -> bool:
    """`a[::2]` and `1:2:3:4:5:6:7:8` are read by ipaddress, too, but nobody means an address by them."""
    groups = [group for group in text.partition("%")[0].split(":") if group]
    return len(groups) >= _FEWEST_GROUPS - ("::" in text) and any(len(group) >= _FEWEST_GROUPS for group in groups)
