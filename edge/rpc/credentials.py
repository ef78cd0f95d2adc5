"""What a device shows to its coordinator: certificates and a token from files.

Files are checked before a connection or a call uses them, so that a renewed certificate or a token that was put there by hand is taken
without a restart. The token's end is read without checking its signature: it only shows when to renew.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from edge.core.clock import Clock, SystemClock
from edge.core.errors import ConfigError, Unauthenticated
from edge.core.files import write_atomically

_NEVER_MODE = 0o037
MAX_TOKEN_BYTES = 8192
Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class ClientTls:
    """PEM files: `ca` that the server's certificate must come from, and this device's `cert` and `key` where it has them.

    `server_name` is the name in the server's certificate when it differs from the host of the address.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def stamp(self) -> Stamp:
        """Changes when one of the files does. Raises ConfigError when one cannot be read."""
        return tuple(_stamp(path) for path in (self.ca, self.cert, self.key) if path is not None)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a new connection. Raises ConfigError when a file cannot be used."""
        key = _read(self.key, private=True) if self.key else None
        chain = _read(self.cert) if self.cert else None
        return grpc.ssl_channel_credentials(_read(self.ca), key, chain)

    def channel_options(self) -> list[tuple[str, str]]:
        """gRPC's option for a server that is called otherwise than its address."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


class TokenFile:
    """The token of this device, in a file of mode 0600 that it alone changes."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self._token = ""
        self._ends_at = 0.0
        self._life_s = 0.0

    def token(self) -> str:
        """As it is in the file now. Raises ConfigError when there is none that could be sent."""
        stamp = _stamp(self._path)
        if stamp != self._seen:
            token = _read(self._path, private=True).decode("ascii", "replace").strip()
            begins_at, ends_at = _times_of(token, self._path)
            self._token, self._ends_at, self._life_s, self._seen = token, ends_at, ends_at - begins_at, stamp
        return self._token

    def require_valid(self) -> str:
        """The token. Raises Unauthenticated when it has expired, so that nothing is sent in vain."""
        token = self.token()
        if self._clock.now() >= self._ends_at:
            raise Unauthenticated(
                f"the token in {self._path} has expired by this device's clock",
                hint="ask for a new one: edge-coordinator token issue NAME",
                metadata={"cause": "EXPIRED"},
            )
        return token

    def renew_in_s(self) -> float:
        """Seconds until it should be renewed: when two thirds of its life are over; 0 when that is now."""
        self.token()
        return max(0.0, self._ends_at - self._life_s / 3.0 - self._clock.now())

    def put(self, token: str) -> None:
        """Replace the file whole. Raises ConfigError when it cannot be written."""
        try:
            write_atomically(self._path, f"{token}\n", mode=0o600)
        except OSError as error:
            raise ConfigError(f"cannot write the token file {self._path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """What this device shows: over TLS a certificate, a token, or both; without TLS (on this machine) a token or nothing."""

    tls: ClientTls | None = None
    token: TokenFile | None = None
    clock: Clock = field(default_factory=SystemClock)


def _times_of(token: str, path: Path) -> tuple[float, float]:
    try:
        payload = token.split(".")[1]
        data = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(data["iat"]), float(data["exp"])
    except (ValueError, IndexError, KeyError, TypeError):
        raise ConfigError(f"{path} holds no token", hint="write it with: edge-coordinator token issue NAME --out FILE") from None


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.expanduser().stat()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path, *, private: bool = False) -> bytes:
    try:
        with path.expanduser().open("rb") as stream:
            if private and os.fstat(stream.fileno()).st_mode & _NEVER_MODE:
                raise ConfigError(f"{path} can be read or changed by others", hint="chmod 600 it")
            return stream.read(MAX_TOKEN_BYTES * 16)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
