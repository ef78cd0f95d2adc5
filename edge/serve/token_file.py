"""The file with the token that clients show to the endpoint."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from edge.core.errors import ConfigError, EdgeError
from edge.core.files import write_atomically

_LEAST_CHARS = 16
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_NEVER_MODE = 0o077


def read_token(path: Path) -> str:
    """The token. Raises ConfigError for a file that is missing, open to others, or no token."""
    try:
        if path.stat().st_mode & _NEVER_MODE:
            raise ConfigError(f"{path} can be read by others", hint=f"chmod 600 {path}")
        token = path.read_text(encoding="ascii").strip()
    except FileNotFoundError as error:
        raise ConfigError(f"there is no token in {path}", hint="make one with edge-agent serve-token") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"the token in {path} cannot be read ({type(error).__name__})") from error
    if len(token) < _LEAST_CHARS or not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"{path} holds no token: at least {_LEAST_CHARS} letters and digits", hint="edge-agent serve-token --new makes one"
        )
    return token


def make_token(path: Path) -> str:
    """A new random token, kept in the file for this user alone; one that was there is replaced. Raises EdgeError."""
    token = secrets.token_urlsafe(32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, f"{token}\n", mode=0o600)
    except OSError as error:
        raise EdgeError(f"cannot write a token to {path} ({error.strerror or error})") from error
    return token
