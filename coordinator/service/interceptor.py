"""Interceptors that wrap every handler of a server, each method's once.

Knows gRPC's four kinds of handlers; knows nothing of what a wrapping is for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

MAX_REMEMBERED = 256


class WrappingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps handlers by `replying` and `streaming`. A method's full name is `/package.Service/Method`."""

    def __init__(self) -> None:
        self._wrapped: dict[str, Any] = {}

    @abstractmethod
    def passes(self, method: str, handler: Any) -> bool:
        """Whether this handler stays as it is."""

    @abstractmethod
    def replying(self, inner: Any, method: str, *, reads_stream: bool) -> Any:
        """The wrapped behaviour of a method with one reply. `reads_stream`: its request is an iterator of messages."""

    @abstractmethod
    def streaming(self, inner: Any, method: str, *, reads_stream: bool) -> Any:
        """The same for a stream of replies."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """The wrapped handler of a method, None for an unknown one."""
        method: str = details.method
        known = self._wrapped.get(method)
        if known is not None:
            return known
        handler = await continuation(details)
        if handler is None or self.passes(method, handler):
            return handler
        wrapped = self._rebuilt(handler, method)
        if len(self._wrapped) < MAX_REMEMBERED:
            self._wrapped[method] = wrapped
        return wrapped

    def _rebuilt(self, handler: Any, method: str) -> Any:
        kind = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
        wrap = self.streaming if handler.response_streaming else self.replying
        behaviour = wrap(getattr(handler, kind), method, reads_stream=handler.request_streaming)
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(behaviour, handler.request_deserializer, handler.response_serializer)
