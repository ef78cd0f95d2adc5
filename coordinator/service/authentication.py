"""Who calls, and what the caller may do: roles, credentials and the facts of a connection, without gRPC objects.

`Authenticator.authenticate(CallFacts) -> Identity` decides from the strongest thing shown:

- over TLS, the client certificate's `edge://ROLE/NAME?epoch=N`, a token, or both (then they must agree); with neither the call is refused;
- in the clear from this machine, a token if one is sent; without one a device call is trusted as the embedded coordinator needs it (the
  device `local`, or the one named in `device-id`), and an admin call only over a Unix socket;
- in the clear from another machine a token is always refused, because it was just shown to the network.

Metadata other than a credential is never trusted. `authorize` then holds the identity to its role's services, and
`Identity.require_tasks` to its tasks.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from coordinator.config import AuthConfig
from coordinator.control.devices import LOCAL_PEERS, identify
from coordinator.service.holders import ShownCertificate, shown_certificate
from coordinator.service.tokens import Claims, TokenAuthority
from edge.core.clock import Clock
from edge.core.errors import PermissionDenied, RateLimited, Unauthenticated

log = logging.getLogger(__name__)
Role = Literal["device", "client", "admin", "console", "metrics"]
SHARED_SERVICES = frozenset(
    {"edge.rpc.v1.CredentialService", "grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection"}
)
SERVICES_OF_ROLE: Mapping[str, frozenset[str]] = {
    "device": frozenset({"edge.rpc.v1.DeviceService"}),
    "client": frozenset(),  # HTTP alone
    "admin": frozenset({"edge.rpc.v1.AdminService"}),
    "console": frozenset(),
    "metrics": frozenset(),
}
MAX_REMEMBERED = 4096
BEARER = "bearer "


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What a transport knows of a call."""

    peer: str
    """In gRPC's notation."""
    encrypted: bool = False
    """Whether it came over TLS."""
    certificate_pem: bytes | None = field(default=None, repr=False)
    authorization: str = field(default="", repr=False)
    claimed_device: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls."""

    role: Role
    device: str
    """The holder's name."""
    tasks: frozenset[str] | None = None
    """None means every task."""
    shown: Literal["local", "certificate", "token"] = "local"
    claims: Claims | None = None
    """Those of its token, where it showed one; held to their end."""
    certificate: ShownCertificate | None = field(default=None, compare=False)
    """What it showed in TLS, where it did; held to its end as well."""

    def require_tasks(self, tasks: Collection[str]) -> None:
        """Raises PermissionDenied when one of them is not this caller's."""
        if self.tasks is not None and (foreign := sorted(set(tasks) - self.tasks)):
            raise PermissionDenied(
                f"{self.role} {self.device} may not work on task {foreign[0][:64]!r}",
                hint="its token and auth.devices of the coordinator's configuration name its tasks",
            )


class FailureLimiter:
    """Counts failed authentications of each peer; one with too many in a minute is turned away before any cryptography."""

    def __init__(self, clock: Clock, max_per_min: int) -> None:
        self._clock = clock
        self._max = max_per_min
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def require_patience(self, peer: str) -> None:
        """Raises RateLimited with the time to wait."""
        excess = self._level(host_of(peer)) - self._max + 1.0
        if excess > 1e-9:
            raise RateLimited("too many failed authentications", retry_after_s=max(1.0, excess * 60.0 / self._max))

    def note_failure(self, peer: str) -> bool:
        """Count one; False when this peer has had its fill, so that its failures are not worth a line in the log."""
        host = host_of(peer)
        level = self._level(host)
        self._failures[host] = (min(level + 1.0, float(self._max)), self._clock.monotonic())
        self._failures.move_to_end(host)
        if len(self._failures) > MAX_REMEMBERED:
            self._failures.popitem(last=False)
        return level < self._max

    def _level(self, host: str) -> float:
        """Failures that still count: they leak away at the allowed rate."""
        level, at = self._failures.get(host, (0.0, 0.0))
        return max(0.0, level - (self._clock.monotonic() - at) * self._max / 60.0)


@dataclass(slots=True, eq=False)
class Authenticator:
    """Turns the facts of a call into an identity."""

    tokens: TokenAuthority
    grants: AuthConfig
    limiter: FailureLimiter
    clock: Clock
    local_role: Literal["device", "admin"] = "device"
    """What an uncredentialed local caller of this listener is taken for."""
    tokens_only: bool = False
    """It asks for no certificate."""
    allow_remote: bool = False
    _identities: OrderedDict[CallFacts, Identity] = field(default_factory=OrderedDict)

    def authenticate(self, facts: CallFacts) -> Identity:
        """The caller's identity. Raises Unauthenticated, PermissionDenied, RateLimited, InvalidRequest, CoordinatorUnavailable.

        Who showed the very same before is only held to time, keys and epochs again.
        """
        known = self._identities.get(facts)
        if known is not None:
            try:
                self.require_current(known)
            except Unauthenticated as error:
                self._note_failure(facts, error)
                raise
            return known
        identity = self._identities[facts] = self._identified(facts)
        if len(self._identities) > MAX_REMEMBERED:
            self._identities.popitem(last=False)
        return identity

    def _identified(self, facts: CallFacts) -> Identity:
        token = _token_of(facts)
        self._refuse_what_was_shown_to_the_network(facts, token)
        if not token and facts.certificate_pem is None:
            return self._uncredentialed(facts)
        if token and not self.tokens.is_known(token):
            self.limiter.require_patience(facts.peer)
        try:
            return self._credentialed(facts, token)
        except Unauthenticated as error:
            self._note_failure(facts, error)
            raise

    def _note_failure(self, facts: CallFacts, error: Unauthenticated) -> None:
        if self.limiter.note_failure(facts.peer):
            log.warning("refused a credential from %s: %s", facts.peer, error.with_hint)

    def require_current(self, identity: Identity) -> None:
        """Hold what an identity showed to time and epoch again, as an open stream needs it; no signature is checked.

        Raises Unauthenticated (cause EXPIRED or REVOKED), CoordinatorUnavailable when epochs cannot be read.
        """
        if identity.certificate is not None:
            self._require_current_certificate(identity.certificate)
        if identity.claims is not None:
            self.tokens.require_current(identity.claims)

    def renewed_token(self, identity: Identity) -> str:
        """A fresh token for who showed a valid credential. Raises PermissionDenied for a caller that is only local, Unauthenticated.

        What it is signed by is read later than what let the caller in, and with it perhaps a revocation: so that is asked once more.
        """
        if identity.shown == "local":
            raise PermissionDenied(
                "a token is renewed by who shows a valid token or certificate",
                hint="a first one comes from: edge-coordinator token issue",
            )
        tasks, begun = (identity.claims.tasks, identity.claims.begun) if identity.claims else ((), None)
        token = self.tokens.renew(identity.role, identity.device, tasks, begun)
        self.require_current(identity)
        return token

    def _refuse_what_was_shown_to_the_network(self, facts: CallFacts, token: str) -> None:
        if token and not facts.encrypted and not facts.peer.startswith(LOCAL_PEERS):
            raise Unauthenticated(
                "a token was sent unencrypted over the network, so it is refused; revoke it",
                hint="set coordinator.tls on the device",
            )

    def _uncredentialed(self, facts: CallFacts) -> Identity:
        if facts.encrypted:
            raise self._nothing_shown()
        if self.local_role == "admin":
            if not facts.peer.startswith("unix:"):
                raise Unauthenticated("no credential was shown", hint="use the Unix socket, or show an admin token")
            return Identity("admin", "local")
        return Identity("device", identify(facts.peer, facts.claimed_device, allow_remote=self.allow_remote))

    def _nothing_shown(self) -> Unauthenticated:
        """Over TLS: what the caller has to show, and where it is set."""
        caller, section = ("administrator", "admin") if self.local_role == "admin" else ("device", "coordinator")
        if not self.tokens_only:
            return Unauthenticated("no credential was shown", hint=f"give the {caller} a certificate or a token file")
        return Unauthenticated(
            f"no credential was shown: this coordinator takes only tokens of {caller}s, and no certificates",
            hint=f"set {section}.token_file (edge-coordinator token issue NAME --role {self.local_role} --out FILE)",
        )

    def _credentialed(self, facts: CallFacts, token: str) -> Identity:
        certificate = holder = None
        if facts.certificate_pem is not None:  # TLS has verified its chain when the connection began
            certificate = shown_certificate(facts.certificate_pem)
            holder = certificate.holder
            self._require_current_certificate(certificate)
        claims = self.tokens.check(token) if token else None
        if holder and claims and (holder.role, holder.name) != (claims.role, claims.name):
            raise Unauthenticated("the token is for another holder than the certificate", metadata={"cause": "OTHER_HOLDER"})
        if claims is not None:
            return replace(self._identity_of_claims(claims), certificate=certificate)
        assert holder is not None
        tasks = self.grants.tasks_of(holder.name) if holder.role == "device" else None
        return Identity("device" if holder.role == "device" else "admin", holder.name, tasks, "certificate", None, certificate)

    def _identity_of_claims(self, claims: Claims) -> Identity:
        tasks = frozenset(claims.tasks) if claims.tasks else None
        if claims.role in ("device", "client"):
            granted = self.grants.tasks_of(claims.name)
            tasks = granted if tasks is None else tasks if granted is None else tasks & granted
        role: Role = claims.role  # type: ignore[assignment]
        return Identity(role, claims.name, tasks, "token", claims)

    def _require_current_certificate(self, shown: ShownCertificate) -> None:
        if not shown.not_before <= self.clock.now() < shown.not_after:
            raise Unauthenticated("the certificate has expired", metadata={"cause": "EXPIRED"})
        self.tokens.require_epoch(shown.holder.role, shown.holder.name, shown.holder.epoch)


def authorize(identity: Identity, service: str) -> None:
    """Raises PermissionDenied unless this role may use this service; what is not listed is refused."""
    shared = service in SHARED_SERVICES and identity.role != "client"
    allowed = service in SERVICES_OF_ROLE[identity.role] or shared
    if not allowed:
        raise PermissionDenied(
            f"role {identity.role} may not use {service.rpartition('.')[2]}",
            hint="show a credential of another role (edge-coordinator token issue NAME --role ROLE)",
        )


def host_of(peer: str) -> str:
    """The peer without its port, in gRPC's notation."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer[:64]


def _token_of(facts: CallFacts) -> str:
    if not facts.authorization:
        return ""
    if facts.authorization[: len(BEARER)].lower() != BEARER or not facts.authorization.isascii():
        raise Unauthenticated("the authorization is no bearer token", metadata={"cause": "MALFORMED"})
    return facts.authorization[len(BEARER) :].strip()
