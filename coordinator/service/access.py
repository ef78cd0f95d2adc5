"""Who may come in: before every handler of a listener the caller is authenticated and authorized.

A credential shown at the beginning of a stream that stays open is checked against its end and epoch again at each message sent; the
answer of one call is given whole. Only the health check is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from google.protobuf.message import Message

from coordinator.service.authentication import Authenticator, CallFacts, Identity, authorize
from coordinator.service.tls import Handshakes
from coordinator.service.tokens import TokenAuthority
from edge.rpc.v1 import credential_pb2

AUTHORIZATION_KEY = "authorization"
DEVICE_ID_KEY = "device-id"


def facts_of(context: Any, *, tls: bool = True) -> CallFacts:
    """What the transport knows of a call; not `tls`: the listener speaks none, so that there is no certificate to look for."""
    authorization = claimed_device = ""
    for key, value in reversed(context.invocation_metadata() or ()):
        if key == AUTHORIZATION_KEY and isinstance(value, str):
            authorization = value
        elif key == DEVICE_ID_KEY and isinstance(value, str):
            claimed_device = value
    peer = context.peer()
    if not tls or peer.startswith("unix:"):
        return CallFacts(peer, authorization=authorization, claimed_device=claimed_device)
    shown = context.auth_context()
    certificate = shown.get("x509_pem_cert")
    return CallFacts(
        peer=peer,
        encrypted=shown.get("transport_security_type", (b"",))[0] == b"ssl",
        certificate_pem=bytes(certificate[0]) if certificate else None,
        authorization=authorization,
        claimed_device=claimed_device,
    )


class ListenerAccess:
    """Lets callers of one listener in."""

    def __init__(self, authenticator: Authenticator, handshakes: Handshakes | None = None, *, tls: bool = False) -> None:
        self._authenticator = authenticator
        self._handshakes = handshakes
        self._tls = tls

    def admit(self, service: str, context: Any) -> Identity:
        """Authenticate and authorize a call before its first message. Raises CoordinatorError."""
        identity = self._authenticator.authenticate(self.facts(context))
        authorize(identity, service)
        return identity

    def facts(self, context: Any) -> CallFacts:
        """What is known of a call; its connection has served."""
        facts = facts_of(context, tls=self._tls)
        if self._handshakes is not None and facts.encrypted:
            self._handshakes.served(facts.peer)
        return facts

    def require_current(self, identity: Identity) -> None:
        """Hold what was shown to its end and epoch again. Raises CoordinatorError."""
        self._authenticator.require_current(identity)


def require_tasks(identity: Identity, request: Any) -> None:
    """Raises PermissionDenied unless a request's tasks are the caller's. What could not be read as a message is for the handler to
    refuse."""
    if identity.tasks is not None and isinstance(request, Message):
        identity.require_tasks(tasks_in(request))


def tasks_in(message: Any) -> set[str]:
    """Every task label that a request names, in itself or in a message inside it."""
    return set(_tasks(message))


def _tasks(message: Any) -> Iterator[str]:
    for field in _fields_with_tasks(message.DESCRIPTOR):
        value = getattr(message, field.name)
        if field.message_type is None:
            yield from [value] if isinstance(value, str) else value
        elif field.is_repeated:
            for each in value:
                yield from _tasks(each)
        elif message.HasField(field.name):
            yield from _tasks(value)


@cache
def _fields_with_tasks(descriptor: Any) -> tuple[Any, ...]:
    return tuple(field for field in descriptor.fields if _names_tasks(field))


def _names_tasks(field: Any) -> bool:
    if field.message_type is None:
        return field.name in ("task", "tasks") and field.type == field.TYPE_STRING
    inner = field.message_type
    return inner.full_name.startswith("edge.rpc.") and bool(_fields_with_tasks(inner))


class CredentialApi:
    """Renews the credential that the call shows."""

    def __init__(self, authenticator: Authenticator, tokens: TokenAuthority) -> None:
        self._authenticator = authenticator
        self._life_s = tokens.life_s

    async def refresh_token(self, request: Any, caller: Identity) -> credential_pb2.RefreshTokenResponse:
        """See credential.proto."""
        token = self._authenticator.renewed_token(caller)
        return credential_pb2.RefreshTokenResponse(token=token, life_s=self._life_s)
