"""Secrets by reference: `env:NAME` and `file:PATH`. No secret is put into a message, and what was read once is cut from the logs.

A configuration names a secret and never holds one: `find_plain_secret` looks for what has the form of a key, a token or a password.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coordinator.redact import keep_out, looks_secret
from edge.core.errors import ConfigError

_MAX_BYTES = 64 << 10
_NEVER_MODE = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP


def read_secret(name: str, environ: Mapping[str, str]) -> str:
    """The secret of `UpstreamConfig.key_name`: in this variable of the environment, or in the file of `file:/PATH`; without white space
    around it. Raises ConfigError that names the reference alone.

    A file must be a regular one that only its owner can write and that others than its owner and group cannot read.
    """
    if name.startswith("file:"):
        what, secret = f"the secret {name}", _read_private(Path(name.removeprefix("file:")), f"the secret {name}")
    else:
        what, secret = f"environment variable {name}", environ.get(name, "")
    if not secret.strip():
        raise ConfigError(f"{what} is not set or empty", hint="set it, or correct the reference")
    if not (secret.strip().isascii() and secret.strip().isprintable()):
        raise ConfigError(f"{what} has characters that cannot be sent", hint="one line, without control characters")
    keep_out(secret.strip())
    return secret.strip()


def _read_private(path: Path, what: str) -> str:
    try:
        with path.expanduser().open("rb") as stream:
            check_private(stream.fileno(), what)
            data = stream.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ConfigError(f"{what} is longer than {_MAX_BYTES} bytes")
        return data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{what} is not UTF-8 text") from None


def check_private(descriptor: int, name: str) -> None:
    """Raises ConfigError when an open file is not a regular one or others may read or change it."""
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{name} is not a regular file")
    if mode & _NEVER_MODE:
        raise ConfigError(f"{name} has mode {stat.S_IMODE(mode):04o}: others can read or change it", hint="chmod 600 it")


def find_plain_secret(data: Any, key: str = "") -> str | None:
    """The dotted key of the first text in nested data that has the form of a secret; None when there is none."""
    return next((where for where, text in _texts(data, key) if looks_secret(text)), None)


def _texts(data: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(data, str):
        yield key, data
    elif isinstance(data, Mapping):
        for name, value in data.items():
            yield from _texts(value, f"{key}.{name}".strip("."))
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from _texts(value, f"{key}[{index}]")
