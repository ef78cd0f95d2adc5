"""All handlers of a server behind one lookup, each wrapped once in what stands around it. gRPC's own interceptors would be asked anew for
every call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import grpc

MAX_REMEMBERED = 256


class Wrapping(ABC):
    """Wraps handlers by `replying` and `streaming`. A method's full name is `/package.Service/Method`."""

    @abstractmethod
    def passes(self, method: str, handler: Any) -> bool:
        """Whether this handler stays as it is."""

    @abstractmethod
    def replying(self, inner: Any, method: str, *, reads_stream: bool) -> Any:
        """The wrapped behaviour of a method with one reply. `reads_stream`: its request is an iterator of messages."""

    @abstractmethod
    def streaming(self, inner: Any, method: str, *, reads_stream: bool) -> Any:
        """The same for a stream of replies."""

    def wrapped(self, handler: Any, method: str) -> Any:
        """A handler with this around it."""
        if self.passes(method, handler):
            return handler
        kind = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
        wrap = self.streaming if handler.response_streaming else self.replying
        behaviour = wrap(getattr(handler, kind), method, reads_stream=handler.request_streaming)
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(behaviour, handler.request_deserializer, handler.response_serializer)


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Takes services as a server does, so that none of them is reached but through the wrappings; the first wrapping is the outermost."""

    def __init__(self, wrappings: Sequence[Wrapping]) -> None:
        self._wrappings = tuple(wrappings)
        self._services: list[grpc.GenericRpcHandler] = []
        self._known: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, services: Sequence[grpc.GenericRpcHandler]) -> None:
        """Ask these, too, after those that were added before."""
        self._services.extend(services)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """The same handlers once more, in a form that gRPC's synchronous server knows."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The wrapped handler of a method, None for an unknown one."""
        method: str = handler_call_details.method
        known = self._known.get(method)
        if known is not None:
            return known
        found = (service.service(handler_call_details) for service in self._services)
        handler = next((each for each in found if each is not None), None)
        if handler is None:
            return None
        for wrapping in reversed(self._wrappings):
            handler = wrapping.wrapped(handler, method)
        if len(self._known) < MAX_REMEMBERED:
            self._known[method] = handler
        return handler
