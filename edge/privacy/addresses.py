"""E-mail addresses, IP addresses, and names of files and folders in a text.

Loopback, unspecified and netmask addresses identify nobody and are not found. A bare file name is one only with an ending that
hardly anything else has, so that `math.log` stays code and `node.js` a product. What every machine has (`/dev/null`, `/bin/sh`) and
addresses of the web are not found.
"""

from __future__ import annotations

import ipaddress
import re
from bisect import bisect_right
from collections.abc import Iterator

from edge.privacy.findings import PrivateSpan

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


def emails(text: str) -> Iterator[PrivateSpan]:
    """`jo@mail.example.org`, also with a quoted name, a domain of other letters, or an address in brackets."""
    for match in _EMAIL.finditer(text):
        if text[match.start()] not in "/":
            yield PrivateSpan(match.start(), match.end(), "email", match.group().replace("\n", "").casefold())


def ips(text: str) -> Iterator[PrivateSpan]:
    """Addresses of version 4 and 6, with a network's length, and of network cards; a port after one stays."""
    for pattern in (_IP4, _IP6) if ":" in text else (_IP4,):
        for match in pattern.finditer(text):
            address = _address(match.group())
            if address is not None:
                yield PrivateSpan(match.start(), match.end(), "ip", address)
    for match in _MAC.finditer(text):
        yield PrivateSpan(match.start(), match.end(), "ip", match.group().lower().replace("-", ":"))


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


_ENDING = (
    r"(?:docx?|xlsx?|pptx?|pdf|rtf|odt|ods|odp|txt|md|csv|tsv|jsonl?|ya?ml|toml|ini|cfg|xml|html?|log|sql|sqlite3?|db|parquet|ipynb|py|sh|bat|ps1|"
    r"jpe?g|png|gif|bmp|tiff?|heic|svg|webp|mp[34]|mov|avi|mkv|wav|flac|zip|tar|t?gz|bz2|xz|7z|rar|iso|dmg|exe|msi|apk|"
    r"pem|key|crt|p12|pfx|kdbx|gpg|asc|ovpn|pst|eml|msg|vcf|ics|env|bak|gguf|safetensors)"
)
_END = r"(?![\w-]|\.\w)"
_SEGMENT = r"[^\s/\\:*?\"'<>|`(),;{}\[\]$=]+"
_SPACED = r"[^/\\:*?\"'<>|`(),;{}\[\]$=\n]{1,80}"
_ROOTS = (
    r"(?:home|Users|root|etc|var|tmp|opt|srv|mnt|media|usr|private|Volumes|Library|Applications|data|proc|sys|run|boot|lib|bin|sbin|workspace"
    r"|app|nix|snap)"
)
_BEFORE = r"(?<![\w/.:<~\\\])}&-])"
_FORMS = (
    re.compile(r"(?i)\bfile:/{1,3}[^\s\"'<>`)\]]+"),
    re.compile(rf"{_BEFORE}/{_ROOTS}(?:/(?:{_SPACED}/){{0,20}}?{_SPACED}\.{_ENDING}{_END}|(?:/{_SEGMENT})+/?|/)"),
    re.compile(rf"{_BEFORE}(?:/{_SEGMENT}){{3,}}/?|{_BEFORE}(?:/{_SEGMENT}){{1,}}\.{_ENDING}{_END}"),
    re.compile(rf"(?<![\w/.:<~\\])~[\w.-]*/(?:{_SEGMENT}/?)+"),
    re.compile(rf"(?<![\w])[A-Za-z]:(?:\\\\?|/)(?:{_SPACED}(?:\\\\?|/)){{0,40}}(?:{_SPACED}\.{_ENDING}{_END}|{_SEGMENT})?"),
    re.compile(
        rf"(?<![\w\\])\\\\(?:\\\\)?[\w.$-]+\\\\?(?:{_SPACED}\\\\?){{0,40}}(?:{_SPACED}\.{_ENDING}{_END}|[^\s\\/:*?\"'<>|`(),;{{}}\[\]=]+)"
    ),
    re.compile(rf"(?<![\w/.:@~\\%+-])\.{{0,2}}/?(?:[\w.@+~-]+/)+[\w.@+~-]*\.{_ENDING}{_END}"),
    re.compile(rf"(?<![\w/.:@~\\%-])(?:[\w-]+\.)*[\w-]+\.{_ENDING}{_END}(?!\()"),
)
_QUOTED_NAME = re.compile(rf"(?<=[\"'`])[^\s\"'`/\\][^\"'`/\\\n]{{0,120}}\.{_ENDING}(?=[\"'`])")
_WEB = re.compile(r"(?i)\b(?:https?|ftp|wss?|ssh|git|s3|gs)://[^\s\"'<>`]*")
_EVERYWHERE = re.compile(r"/dev/(?:null|zero|u?random|tty|std(?:in|out|err))|(?:/usr)?/bin/(?:env|(?:ba|z|da)?sh|python3?)|/")
_ATTRIBUTES = frozenset({"log", "key", "db", "env", "msg", "bak", "asc", "gz", "tar"})
"""Endings that are more often what a program calls a part of something."""
_OWNERS = frozenset({"response", "self", "this", "request", "res", "req", "result", "df", "data", "obj", "r", "x"})
_TRAILING = ".,;:!?"


def paths(text: str) -> Iterator[PrivateSpan]:
    """Paths (POSIX, home, Windows, network shares, file addresses), and names with a known ending."""
    web = [match.span() for match in _WEB.finditer(text)]
    starts = [start for start, _ in web]
    for form in (*_FORMS, _QUOTED_NAME) if ("/" in text or "." in text or "\\" in text) else ():
        for match in form.finditer(text):
            name = match.group().rstrip(_TRAILING).rstrip()
            place = bisect_right(starts, match.start()) - 1
            if _is_name(name) and not (place >= 0 and match.start() < web[place][1]):
                yield PrivateSpan(match.start(), match.start() + len(name), "path", name)


def _is_name(name: str) -> bool:
    if len(name) < 3 or _EVERYWHERE.fullmatch(name) or not any(char.isalnum() for char in name):
        return False
    if "/" in name or "\\" in name:
        return not re.fullmatch(r"[\d./]+", name)
    stem, _, ending = name.rpartition(".")
    if ending.lower() in _ATTRIBUTES and re.fullmatch(r"[a-z_.]+|[A-Z]\w*", stem):
        return False
    return bool(stem) and stem.lower() not in _OWNERS
