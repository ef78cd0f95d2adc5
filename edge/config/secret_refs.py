"""How configurations name a secret without holding it: `env:NAME` or `file:/PATH`."""

from __future__ import annotations

import re
from dataclasses import dataclass

HOW = "write env:NAME or file:/PATH, and keep the secret itself out of the configuration"
_BARE = "is no name of an environment variable; write the bare name, without env: or $, or give api_key as env:NAME"
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class SecretRef:
    """Where a secret lies: the variable `env`, or the file `path`."""

    env: str = ""
    path: str = ""

    def __str__(self) -> str:
        return f"env:{self.env}" if self.env else f"file:{self.path}"


def parse_secret_ref(text: str) -> SecretRef:
    """The reference a person wrote. Raises ValueError with how to write one and never repeats what was written."""
    kind, _, rest = text.partition(":")
    if kind == "env" and _ENV_NAME.fullmatch(rest):
        return SecretRef(env=rest)
    if kind == "file" and rest:
        return SecretRef(path=rest)
    raise ValueError(f"is no reference to a secret; {HOW}")


def require_one_reference(api_key: str | None, api_key_env: str | None) -> None:
    """Raises ValueError when both are given, or when the one that is has not the form of a reference."""
    if api_key is not None and api_key_env is not None:
        raise ValueError("takes api_key or api_key_env, not both")
    if api_key_env is not None and not _ENV_NAME.fullmatch(api_key_env):
        raise ValueError(f"api_key_env {_BARE}")
    try:
        if api_key is not None:
            parse_secret_ref(api_key)
    except ValueError as error:
        raise ValueError(f"api_key {error}") from None
