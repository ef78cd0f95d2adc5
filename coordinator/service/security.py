"""The security of a coordinator put together: tokens, TLS, and the authentication of each listener."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from coordinator.config import ServerConfig, ServiceConfig
from coordinator.service.tokens import TokenAuthority, TokenStore
from edge.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    from coordinator.service.access import CredentialApi, ListenerAccess
    from coordinator.service.authentication import Authenticator, FailureLimiter
    from coordinator.service.tls import Handshakes, ServerCertificates


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """What a gRPC server needs."""

    access: ListenerAccess
    """Who may come in."""
    credentials: CredentialApi
    """Renews tokens."""
    certificates: ServerCertificates | None
    """Where TLS is on."""


class Security:
    """Shared by all listeners of a process. `tokens` also issues and revokes for the admin service; `handshakes` counts where TLS is on."""

    def __init__(self, config: ServerConfig, state_dir: Path, clock: Clock) -> None:
        from coordinator.service.authentication import FailureLimiter
        from coordinator.service.tls import Handshakes

        self._config = config
        self._clock = clock
        self.tokens = TokenAuthority(token_store(config, state_dir, SystemClock().monotonic), config.auth, clock)
        self._limiter: FailureLimiter = FailureLimiter(clock, config.auth.max_failures_per_min)
        self.handshakes: Handshakes | None = None
        if config.tls:
            self.handshakes = Handshakes(clock, _longest_connection_s(config.service))

    def listener(self, local_role: Literal["device", "admin"] = "device") -> ListenerSecurity:
        """For one gRPC server; `local_role` is what its uncredentialed callers from this machine are taken for."""
        from coordinator.service.access import CredentialApi, ListenerAccess

        tls = self._config.tls
        authenticator = self.authenticator(local_role, tokens_only=tls is not None and not tls.asks_certificate_of(local_role))
        access = ListenerAccess(authenticator, self.handshakes, tls=tls is not None)
        return ListenerSecurity(access, CredentialApi(authenticator, self.tokens), self._certificates(local_role))

    def _certificates(self, role: Literal["device", "admin"]) -> ServerCertificates | None:
        from coordinator.service.tls import ServerCertificates

        if self._config.tls is None or self.handshakes is None:
            return None
        return ServerCertificates(self._config.tls, self._clock, self.handshakes.began, role)

    def authenticator(self, local_role: Literal["device", "admin"] = "device", *, tokens_only: bool = False) -> Authenticator:
        """Who calls one listener, which with `tokens_only` asks for no certificate; all count failures together."""
        from coordinator.service.authentication import Authenticator

        return Authenticator(
            self.tokens,
            self._config.auth,
            self._limiter,
            self._clock,
            local_role=local_role,
            tokens_only=tokens_only,
            allow_remote=self._config.service.allow_insecure and local_role == "device",
        )


def _longest_connection_s(service: ServiceConfig) -> float:
    """gRPC ends connections at their age give or take a tenth, and then waits for what runs on them."""
    return 1.1 * service.connection_age_s + service.connection_grace_s


def token_store(config: ServerConfig, state_dir: Path, monotonic: Callable[[], float] | None = None) -> TokenStore:
    """Where the configuration keeps signing keys and epochs; nothing can be written where other replicas would not see it."""
    folder = None if config.auth.folder is None else Path(config.auth.folder).expanduser()
    return TokenStore(state_dir, folder, writable=keys_are_shared(config), monotonic=monotonic)


def keys_are_shared(config: ServerConfig) -> bool:
    """Whether every coordinator that can share the ledger sees the same signing keys and epochs."""
    return config.storage.backend != "postgres" or config.auth.folder is not None
