"""How numbers, names, texts from elsewhere and exit codes are shown to people."""

from __future__ import annotations

import math
import re
import signal


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 call`, `2 calls`, `0 calls`. `plural`: where it takes more than an s, such as `calls wait`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def percent(share: float | None) -> str:
    """`31.2 %`, or `-` for None."""
    return "-" if share is None else f"{100 * share:.1f} %"


def rate_words(rate: float) -> str:
    """`15 %`: as many digits as a person gives it."""
    return f"{100 * rate:.3g} %"


def points(difference: float | None) -> str:
    """`+14.2 points`, or `-` for None: a difference of two shares in percent."""
    return "-" if difference is None else f"{100 * difference:+.1f} points"


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def data_size(size_bytes: int) -> str:
    """`512 B`, `1.5 KiB`, `37.2 MiB`, `1.1 GiB`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"


def money(uusd: float) -> str:
    """Micro-USD in USD with as many digits as matter: `12.30 USD`, `0.42 USD`, `0.000012 USD`; below 1 USD three of them."""
    size = abs(uusd) / 1e6
    digits = 2 if size >= 1.0 or size == 0.0 else max(2, 2 - math.floor(math.log10(size)))
    whole, _, rest = f"{uusd / 1e6:,.{digits}f}".partition(".")
    return f"{whole}.{rest.rstrip('0').ljust(2, '0')} USD"


def uusd_of(text: str) -> int:
    """`5`, `5 USD`, `$5`, `0.000012` as micro-USD. Raises ValueError for anything else, and for more than six decimals."""
    word = text.strip().removeprefix("$").upper().removesuffix("USD").strip()
    whole, _, rest = word.partition(".")
    if not (whole + rest).isascii() or not (whole + rest).isdecimal() or len(rest) > 6 or len(whole) > 9:
        raise ValueError(f"must be an amount of USD such as 5 or 0.25, below 1,000,000,000, not {text!r}")
    return int(whole or "0") * 1_000_000 + int(rest.ljust(6, "0") or "0")


PRACTICE_CLOUD = "practice cloud, nothing is charged"
"""What the bundled cloud model is called wherever money is shown."""
PRACTICE_MODEL = "nano-cloud"


def practice_note(cloud_model: str) -> str:
    """What is printed after an amount of the bundled cloud model; "" for any other model."""
    return f" ({PRACTICE_CLOUD})" if cloud_model == PRACTICE_MODEL else ""


_MOST_CHARS = 80


def shown(name: str, most_chars: int = _MOST_CHARS) -> str:
    """The name, or its beginning and its length where it is long."""
    return name if len(name) <= most_chars else f"{name[:most_chars]}... ({len(name)} characters)"


def source_name(source: str) -> str:
    """A task source in reports: of one's own file its name without the folders, and in words what is learned from use."""
    for kind, words in (("mine:", "your own use"), ("watched:", "your task files")):
        if source.startswith(kind):
            return f"{words} ({source.removeprefix(kind)})"
    folders, _, file = source.rpartition("/")
    return source if ":" in folders else file


STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that steer a terminal or the direction of text, and what no terminal can be sent; line ends and tabs are not among them."""


def visible(text: str) -> str:
    """The text with escapes in place of characters that would steer the terminal; `\\r\\n` is a line end."""

    def escape(found: re.Match[str]) -> str:
        code = ord(found[0])
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return STEERING.sub(escape, text.replace("\r\n", "\n"))


_CRASHES = ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP")


def exit_name(code: int) -> str:
    """The signal that ended it, else the code."""
    try:
        return signal.Signals(-code).name if code < 0 else str(code)
    except ValueError:
        return str(code)


def has_crashed(code: int) -> bool:
    """Whether it ended by a fault of its own program, which comes again when it is started again."""
    return exit_name(code) in _CRASHES
