"""Names of files and folders in a text. Knows how systems write them; knows nothing of which files there are.

A bare name is one only with an ending that hardly anything else has, so that `math.log` stays code and `node.js` a product. What every
machine has (`/dev/null`, `/bin/sh`) and addresses of the web are not found.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from edge.privacy.found import Found

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


def paths(text: str) -> Iterator[Found]:
    """Paths (POSIX, home, Windows, network shares, file addresses), and names with a known ending."""
    web = [match.span() for match in _WEB.finditer(text)]
    starts = [start for start, _ in web]
    for form in (*_FORMS, _QUOTED_NAME) if ("/" in text or "." in text or "\\" in text) else ():
        for match in form.finditer(text):
            name = match.group().rstrip(_TRAILING).rstrip()
            place = bisect_right(starts, match.start()) - 1
            if _is_name(name) and not (place >= 0 and match.start() < web[place][1]):
                yield Found(match.start(), match.start() + len(name), "path", name)


def _is_name(name: str) -> bool:
    if len(name) < 3 or _EVERYWHERE.fullmatch(name) or not any(char.isalnum() for char in name):
        return False
    if "/" in name or "\\" in name:
        return not re.fullmatch(r"[\d./]+", name)
    stem, _, ending = name.rpartition(".")
    if ending.lower() in _ATTRIBUTES and re.fullmatch(r"[a-z_.]+|[A-Z]\w*", stem):
        return False
    return bool(stem) and stem.lower() not in _OWNERS
