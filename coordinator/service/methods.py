"""The RPCs of a service bound to its handlers.

`bind` finds the handler of each RPC by its name (OpenStep: `open_step`), so that an RPC without one is noticed at the start. Everything
that goes wrong leaves as a status with google.rpc details, also a request that cannot be read, is too large, or names no RPC.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, Self, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from coordinator.calls.admission import Turnstile
from coordinator.service.access import ListenerAccess, require_tasks
from coordinator.service.authentication import Identity
from edge.core.errors import CoordinatorError, InvalidRequest, NotImplementedThere
from edge.rpc.errors import row_for, to_status, trailing_metadata

log = logging.getLogger(__name__)
C = TypeVar("C")
Deserializer = Callable[[bytes], "Message | CoordinatorError"]


class RunningRpc:
    """`with`: one RPC from its arrival to its end. This one measures nothing."""

    __slots__ = ("who",)

    def __init__(self, context: Any) -> None:
        self.who = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ending: Any) -> None:
        """It is over."""


Measure = Callable[[MethodDescriptor, bool], Callable[[Any], RunningRpc]]
"""Of a method, and whether its streams last: what makes a RunningRpc of a context."""


@dataclass(frozen=True, slots=True)
class Boundary(Generic[C]):
    """What every RPC of a service passes: it is measured from its arrival on, its caller is let in, its messages are held to the
    caller's tasks, it finds a place, and its error leaves as a status."""

    access: ListenerAccess
    caller_of: Callable[[Identity, Any], C]
    """What the handler gets of who calls."""
    requests: Turnstile
    """Counts RPCs that work towards an answer."""
    streams: Turnstile
    """Counts those that stay open by their nature."""
    max_message_bytes: int
    measure: Measure = lambda method, lasting: RunningRpc

    def replying(self, method: MethodDescriptor, handler: Callable[[Any, C], Awaitable[Any]]) -> Callable[[Any, Any], Any]:
        """One request, one reply."""
        service, running = method.containing_service.full_name, self.measure(method, False)
        access, caller_of, requests = self.access, self.caller_of, self.requests

        async def reply(request: Any, context: Any) -> Any:
            with running(context) as rpc:
                try:
                    identity = access.admit(service, context)
                    rpc.who = identity.device
                    require_tasks(identity, request)
                    with requests.passage(identity.device):
                        return await handler(_readable(request), caller_of(identity, context))
                except Exception as error:  # the boundary: everything leaves as a status
                    await abort(context, error)

        return reply

    def streaming(
        self, method: MethodDescriptor, handler: Callable[[Any, C], AsyncGenerator[Any, None]], *, lasting: bool
    ) -> Callable[[Any, Any], AsyncIterator[Any]]:
        """A stream of replies. One that lasts may do so beyond the end of its credential, which is checked again at each message sent."""
        service, running = method.containing_service.full_name, self.measure(method, lasting)

        async def replies(request: Any, context: Any) -> AsyncIterator[Any]:
            with running(context) as rpc:
                try:
                    identity = self.access.admit(service, context)
                    rpc.who = identity.device
                    require_tasks(identity, request)
                    with (self.streams if lasting else self.requests).passage(identity.device):
                        if lasting:  # whoever opened it knows now that it is open
                            await context.send_initial_metadata(())
                        async with aclosing(handler(_readable(request), self.caller_of(identity, context))) as each:
                            async for reply in each:
                                if lasting:
                                    self.access.require_current(identity)
                                yield reply
                except Exception as error:  # the boundary: everything leaves as a status
                    await abort(context, error)

        return replies


def bind(service: ServiceDescriptor, api: object, boundary: Boundary[C], lasting: frozenset[str]) -> grpc.GenericRpcHandler:
    """A gRPC handler for every method of the service. `lasting` names the streams that stay open by their nature.

    Raises AttributeError when `api` lacks a method's handler.
    """
    handlers = {method.name: _handler(method, api, boundary, method.name in lasting) for method in service.methods}
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def handler_name(method: str) -> str:
    """`OpenStep` -> `open_step`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()


class UnknownMethods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers whatever no other handler knows with UNIMPLEMENTED; register it last."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """One handler for all of a service, whatever the kind of RPC."""
        service = handler_call_details.method.rpartition("/")[0].removeprefix("/")
        return _ELSEWHERE.get(service, _UNKNOWN)


def _unserved(message: str, hint: str) -> grpc.RpcMethodHandler:
    async def refuse(requests: Any, context: Any) -> AsyncIterator[bytes]:
        await abort(context, NotImplementedThere(message, hint=hint))
        yield b""

    return grpc.stream_stream_rpc_method_handler(refuse)


_UNKNOWN = _unserved("this coordinator does not know the RPC", "update the older of the two")
_OLDER = "; if it is, update the older of the two"
_ELSEWHERE = {  # a listener knows every RPC of its own service, unless the caller is newer
    "edge.rpc.v1.DeviceService": _unserved(
        "this address does not serve devices with that RPC", f"devices connect to an address of `listen`{_OLDER}"
    ),
    "edge.rpc.v1.AdminService": _unserved(
        "this address does not serve administrators with that RPC",
        f"administrators connect to an address of `admin_listen`{_OLDER}",
    ),
}


async def abort(context: Any, error: Exception) -> NoReturn:
    """End the RPC with the error's status; what is not a typed error is logged here and reveals nothing to the caller."""
    if not isinstance(error, CoordinatorError):
        error = internal(error)
    status = to_status(error)
    await context.abort(row_for(error).code, status.message, trailing_metadata(status))
    raise AssertionError("abort raises")


def internal(error: BaseException) -> CoordinatorError:
    """What the caller gets for a failure that no handler foresaw; the log gets the rest."""
    log.error("a handler failed", exc_info=error)
    return CoordinatorError("internal error; the coordinator's log has the details")


def _readable(request: Any) -> Any:
    if isinstance(request, CoordinatorError):
        raise request
    return request


def _handler(method: MethodDescriptor, api: object, boundary: Boundary[C], lasting: bool) -> grpc.RpcMethodHandler:
    handle = getattr(api, handler_name(method.name))
    wire = {
        "request_deserializer": _deserializer(GetMessageClass(method.input_type), boundary.max_message_bytes),
        "response_serializer": GetMessageClass(method.output_type).SerializeToString,
    }
    if not method.server_streaming:
        return grpc.unary_unary_rpc_method_handler(boundary.replying(method, handle), **wire)
    return grpc.unary_stream_rpc_method_handler(boundary.streaming(method, handle, lasting=lasting), **wire)


def _deserializer(message: type[Message], most: int) -> Deserializer:
    """Bytes to a message, or to the error that is why there is none: raised here, it would reach nobody as more than UNKNOWN."""

    def deserialize(data: bytes) -> Message | CoordinatorError:
        if len(data) > most:
            return InvalidRequest(f"a message of {len(data)} bytes is larger than the {most} allowed")
        try:
            return message.FromString(data)
        except DecodeError:
            return InvalidRequest(f"the message cannot be read as {message.DESCRIPTOR.full_name}")

    return deserialize
