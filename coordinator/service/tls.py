"""TLS of the listeners: certificates from files, taken anew when the files change, and how many handshakes fail.

The files are looked at before every handshake, so a renewed certificate serves the next connection without a restart or a signal; files
that do not fit together are reported once and the certificate in use stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import grpc

from coordinator.config import TlsConfig
from coordinator.config_secrets import check_private
from edge.core.clock import Clock
from edge.core.errors import ConfigError
from edge.rpc.address import Address, parse_address

log = logging.getLogger(__name__)
PATIENCE_S = 10.0
LOG_EVERY_S = 60.0
Stamp = tuple[tuple[int, int, int], ...]


def require_encrypted(address: Address, encrypted: bool) -> None:
    """Raises ConfigError for an address that other machines can reach, unless what is sent there is encrypted (or need not be)."""
    if not (address.is_local or encrypted):
        raise ConfigError(
            f"refusing to listen unencrypted on {address}",
            hint="set tls (`edge-coordinator pki init` makes certificates), or listen on loopback or a Unix socket",
        )


def side_address(listen: str, encrypted: bool) -> Address:
    """The address of a side port. Raises ConfigError for a Unix socket, and for another interface than loopback without TLS."""
    address = parse_address(listen)
    if address.path:
        raise ConfigError(f"programs that speak HTTP cannot connect to {listen}", hint="give HOST:PORT")
    require_encrypted(address, encrypted)
    return address


class ServerCertificates:
    """The server's certificate, its key, and the authority that client certificates must come from."""

    def __init__(
        self,
        config: TlsConfig,
        clock: Clock,
        on_handshake: Callable[[], None] = lambda: None,
        role: Literal["device", "admin"] = "device",
    ) -> None:
        """For the listener of this role. `on_handshake` is called before each handshake, on a thread of gRPC's."""
        self._asks_certificate = config.asks_certificate_of(role)
        self._config = config
        self._clock = clock
        self._on_handshake = on_handshake
        self._seen: Stamp = ()

    def credentials(self) -> grpc.ServerCredentials:
        """Server credentials that follow the files. Raises ConfigError when the files cannot be used now."""
        self._seen = self._stamp()
        return grpc.dynamic_ssl_server_credentials(self._load(), self._changed, self._asks_certificate)

    def _changed(self) -> Any:
        """gRPC asks before each handshake: the new configuration, or None to go on with the one in use. Never raises."""
        self._on_handshake()
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return None
            self._seen = stamp
            fresh = self._load()
        except ConfigError as error:
            log.error("the server certificate was not changed: %s", error.with_hint)
            return None
        log.info("the server certificate was read again")
        return fresh

    def _paths(self) -> list[Path]:
        names = [self._config.cert, self._config.key, self._config.client_ca]
        return [Path(name).expanduser() for name in names if name]

    def _stamp(self) -> Stamp:
        try:
            found = [path.stat() for path in self._paths()]
        except OSError as error:
            raise ConfigError(
                f"cannot read {Path(error.filename).absolute()}: {error.strerror}",
                hint="paths count from the folder it is started in; `edge-coordinator pki init` makes certificates",
            ) from error
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)

    def _load(self) -> grpc.ServerCertificateConfiguration:
        certificate, key, *authority = self._paths()
        chain, private = _read(certificate), _read(key, private=True)
        now = self._clock.now()
        _check_pair(chain, private, now, certificate)
        roots = _read(authority[0]) if authority else None
        if roots is not None:
            _check_authorities(roots, now, authority[0])
        return grpc.ssl_server_certificate_configuration([(private, chain)], roots)


def _read(path: Path, *, private: bool = False) -> bytes:
    try:
        with path.open("rb") as stream:
            if private:
                check_private(stream.fileno(), str(path))
            return stream.read()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def _check_pair(chain: bytes, private: bytes, now: float, path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificate(chain)
        fits = load_pem_private_key(private, None).public_key() == certificate.public_key()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} or its key is no PEM file that can be used") from error
    if not fits:
        raise ConfigError(f"{path} and its key do not belong together")
    if now >= certificate.not_valid_after_utc.timestamp():
        raise ConfigError(f"{path} has expired", hint="renew it: edge-coordinator pki server DIR --name NAME --force")


def _check_authorities(pem: bytes, now: float, path: Path) -> None:
    """Raises ConfigError unless a client's certificate could come from one of the authorities in this file."""
    from cryptography import x509

    hint = "tls.client_ca is the ca.crt of `edge-coordinator pki init`"
    try:
        authorities = x509.load_pem_x509_certificates(pem)
        signing = [each for each in authorities if _may_sign(each)]
    except ValueError as error:
        raise ConfigError(f"{path} (tls.client_ca) is no PEM file of certificates", hint=hint) from error
    if not signing:
        raise ConfigError(f"{path} (tls.client_ca) is no certificate of an authority", hint=hint)
    if all(now >= each.not_valid_after_utc.timestamp() for each in signing):
        raise ConfigError(
            f"{path} (tls.client_ca) has expired", hint="make a new authority: edge-coordinator pki init DIR --force"
        )


def _may_sign(certificate: Any) -> bool:
    """Whether a certificate is an authority's; one of the old form without extensions counts where it signed itself."""
    from cryptography import x509

    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        return bool(certificate.issuer == certificate.subject)


class Handshakes:
    """Counts, for all listeners of a process, the TLS connections that never came to a call. `began` may be called from any thread, the
    rest from the event loop.

    gRPC reports no handshake that failed. But it asks for the server's certificate before each one, and an established connection makes a
    call: what began and made none within PATIENCE_S is counted as failed. That is close, not exact: a port scan counts, and a device that
    waits longer before its first call is counted once too early and makes up for a later one. No connection lives for longer than
    `longest_connection_s`: after that the same peer is another one.
    """

    def __init__(self, clock: Clock, longest_connection_s: float) -> None:
        self._clock = clock
        self._longest_connection_s = longest_connection_s
        self._pending: deque[float] = deque()
        self._peers: OrderedDict[str, float] = OrderedDict()
        self._served = 0
        self._failed = 0
        self._counted_too_early = 0
        self._logged = 0

    def began(self) -> None:
        """A handshake begins."""
        self._pending.append(self._clock.monotonic())

    def served(self, peer: str) -> None:
        """This peer makes a call over TLS. Its first one ends the wait for a handshake: the newest, which most likely was its own."""
        now = self._clock.monotonic()
        first_seen = self._peers.get(peer)
        if first_seen is not None and now - first_seen <= self._longest_connection_s:
            return
        self._peers[peer] = now
        self._peers.move_to_end(peer)
        self._served += 1
        if self._pending:
            self._pending.pop()
        else:
            self._counted_too_early += 1
        self._forget_ended(now)

    def counts(self) -> tuple[int, int]:
        """Connections that made a call, and those that came to none."""
        return self._served, self.failed()

    def failed(self) -> int:
        """Handshakes that began PATIENCE_S ago or earlier and came to no call; never less than before."""
        now = self._clock.monotonic()
        while self._pending and now - self._pending[0] >= PATIENCE_S:
            self._pending.popleft()
            if self._counted_too_early:
                self._counted_too_early -= 1
            else:
                self._failed += 1
        return self._failed

    def log_failures(self) -> None:
        """One line in the log when more have failed since the last one."""
        fresh = self.failed() - self._logged
        if fresh:
            self._logged += fresh
            log.warning(
                "%d TLS connections came to no call: no certificate, one of another authority or one that has expired, or no TLS at all",
                fresh,
            )

    async def run(self) -> None:
        """Log from time to time, until cancelled."""
        while True:
            await asyncio.sleep(LOG_EVERY_S)
            self.log_failures()

    def _forget_ended(self, now: float) -> None:
        while self._peers and now - next(iter(self._peers.values())) > self._longest_connection_s:
            self._peers.popitem(last=False)
