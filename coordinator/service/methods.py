"""The RPCs of a service bound to its handlers.

`bind` finds the handler of each RPC by its name (OpenStep: `open_step`), so that an RPC without one is noticed at the start. Everything
that goes wrong leaves as a status with google.rpc details, also a request that cannot be read, is too large, or names no RPC.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from coordinator.calls.admission import Turnstile
from edge.core.errors import CoordinatorError, InvalidRequest, NotImplementedThere
from edge.rpc.errors import row_for, to_status, trailing_metadata

log = logging.getLogger(__name__)


class Client(Protocol):
    """Who calls, as the handlers see it."""

    @property
    def who(self) -> str:
        """The name by which places are shared out."""
        ...


C = TypeVar("C", bound=Client)
Deserializer = Callable[[bytes], "Message | CoordinatorError"]


class Boundary(Generic[C]):
    """What every RPC of a service passes: who calls (`identify(context, method)`), how many run at once, and the translation of errors.

    `requests` counts RPCs that work towards an answer, `streams` those that stay open by their nature.
    """

    def __init__(
        self, identify: Callable[[Any, str], C], requests: Turnstile, streams: Turnstile, max_message_bytes: int
    ) -> None:
        self._identify = identify
        self._requests = requests
        self._streams = streams
        self.max_message_bytes = max_message_bytes

    def replying(self, method: str, handler: Callable[[Any, C], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        """One request, one reply."""

        async def reply(request: Any, context: Any) -> Any:
            try:
                caller = self._identify(context, method)
                with self._requests.passage(caller.who):
                    return await handler(_readable(request), caller)
            except Exception as error:  # the boundary: everything leaves as a status
                await abort(context, error)

        return reply

    async def replies(
        self, method: str, handler: Callable[[Any, C], AsyncIterator[Any]], request: Any, context: Any, *, lasting: bool
    ) -> AsyncIterator[Any]:
        """A stream of replies; `request` is a message or, when the caller streams too, the iterator of its messages."""
        try:
            caller = self._identify(context, method)
            with (self._streams if lasting else self._requests).passage(caller.who):
                if lasting:  # whoever opened it knows now that it is open
                    await context.send_initial_metadata(())
                async for reply in handler(_readable(request), caller):
                    yield reply
        except Exception as error:  # the boundary: everything leaves as a status
            await abort(context, error)


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


def is_unknown(handler: Any) -> bool:
    """Whether it is one of those that answer what this listener does not serve."""
    return any(handler is each for each in (_UNKNOWN, *_ELSEWHERE.values()))


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

    async def replies(request: Any, context: Any) -> AsyncIterator[Any]:
        async for each in boundary.replies(method.name, handle, request, context, lasting=lasting):
            yield each

    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(replies, **wire)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(replies, **wire)
    return grpc.unary_unary_rpc_method_handler(boundary.replying(method.name, handle), **wire)


def _deserializer(message: type[Message], most: int) -> Deserializer:
    """Bytes to a message, or to the error that says why there is none: raised here, it would reach nobody as more than UNKNOWN."""

    def deserialize(data: bytes) -> Message | CoordinatorError:
        if len(data) > most:
            return InvalidRequest(f"a message of {len(data)} bytes is larger than the {most} allowed")
        try:
            return message.FromString(data)
        except DecodeError:
            return InvalidRequest(f"the message cannot be read as {message.DESCRIPTOR.full_name}")

    return deserialize
