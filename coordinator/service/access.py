"""What stands before every handler: it authenticates and authorizes the caller.

Every method of every service passes here, also those registered later; only the health check and what does not exist are open. A message
of a stream is held to the caller's tasks like a single request. A credential shown at the beginning of a stream is checked against its end
and epoch again at each message read and, where a stream stays open, at each message sent; the answer of one call is given whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from functools import cache
from typing import Any

from google.protobuf.message import Message

from coordinator.service.authentication import Authenticator, CallFacts, Identity, authorize, needs_identity
from coordinator.service.handlers import Wrapping
from coordinator.service.methods import abort, is_unknown
from coordinator.service.tls import Handshakes
from coordinator.service.tokens import Tokens
from edge.core.errors import CoordinatorError
from edge.rpc.v1 import credential_pb2, credential_pb2_grpc

AUTHORIZATION_KEY = "authorization"
DEVICE_ID_KEY = "device-id"
STAYING_OPEN = frozenset({"WatchBudget", "ReadJournal"})
Held = Callable[["Identity | None", Any], Any]
_IDENTITY: ContextVar[Identity] = ContextVar("identity")


def identity_of_call() -> Identity:
    """Who makes the call that runs now. Raises LookupError outside an authenticated call, so that a forgotten check lets nobody in."""
    return _IDENTITY.get()


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


class AuthenticatedRpcs(Wrapping):
    """Wraps every handler of a server."""

    def __init__(self, authenticator: Authenticator, handshakes: Handshakes | None = None, *, tls: bool = True) -> None:
        self._authenticator = authenticator
        self._handshakes = handshakes
        self._tls = tls

    def passes(self, method: str, handler: Any) -> bool:
        """What does not exist is open."""
        return is_unknown(handler)

    def admit(self, service: str, context: Any) -> Identity | None:
        """Authenticate and authorize a call before its first message; None for what is open to everybody. Raises CoordinatorError."""
        facts = facts_of(context, tls=self._tls)
        if self._handshakes is not None and facts.encrypted:
            self._handshakes.served(facts.peer)
        if not needs_identity(service):
            return None
        identity = self._authenticator.authenticate(facts)
        authorize(identity, service)
        _IDENTITY.set(identity)
        return identity

    def replying(self, inner: Any, method: str, *, reads_stream: bool) -> Any:
        """One reply."""
        service, held = _service_of(method), self._held(reads_stream)

        async def authenticated(request: Any, context: Any) -> Any:
            try:
                request = held(self.admit(service, context), request)
            except CoordinatorError as error:
                await abort(context, error)
            return await inner(request, context)

        return authenticated

    def streaming(self, inner: Any, method: str, *, reads_stream: bool) -> Any:
        """A stream of replies."""
        service, held = _service_of(method), self._held(reads_stream)
        stays_open = method.rpartition("/")[2] in STAYING_OPEN

        async def authenticated(request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                identity = self.admit(service, context)
                request = held(identity, request)
            except CoordinatorError as error:
                await abort(context, error)
            replies = inner(request, context)
            if not hasattr(replies, "__aiter__"):
                await replies
                return
            async with aclosing(replies):
                async for reply in replies:
                    if stays_open:
                        await self._refuse_unless_current(identity, context)
                    yield reply

        return authenticated

    def _held(self, reads_stream: bool) -> Held:
        return self._stream_held if reads_stream else _held_to_tasks

    async def _refuse_unless_current(self, identity: Identity | None, context: Any) -> None:
        try:
            self._require_current(identity)
        except CoordinatorError as error:
            await abort(context, error)

    def _require_current(self, identity: Identity | None) -> None:
        if identity is not None:
            self._authenticator.require_current(identity)

    async def _stream_held(self, identity: Identity | None, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Each message of a stream, as it is read, held to the caller's tasks; a refused one becomes the error that its handler answers it
        with. Raises CoordinatorError at the first one that is read when the credential is over: what was read before is still answered.
        """
        async for request in requests:
            self._require_current(identity)
            try:
                held = _held_to_tasks(identity, request)
            except CoordinatorError as error:
                error.metadata["call_key"] = request.call.call_key
                held = error
            yield held


def _service_of(method: str) -> str:
    return method.rpartition("/")[0].removeprefix("/")


def _held_to_tasks(identity: Identity | None, request: Any) -> Any:
    """The request, once its tasks are the caller's. What could not be read as a message is for the handler to refuse."""
    if identity is not None and identity.tasks is not None and isinstance(request, Message):
        identity.require_tasks(tasks_in(request))
    return request


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


class CredentialServicer(credential_pb2_grpc.CredentialServiceServicer):
    """Renews the credential that the call shows."""

    def __init__(self, authenticator: Authenticator, tokens: Tokens) -> None:
        self._authenticator = authenticator
        self._life_s = tokens.life_s

    async def RefreshToken(self, request: Any, context: Any) -> Any:
        """See credential.proto."""
        try:
            token = self._authenticator.renewed_token(identity_of_call())
        except CoordinatorError as error:
            await abort(context, error)
        return credential_pb2.RefreshTokenResponse(token=token, life_s=self._life_s)
