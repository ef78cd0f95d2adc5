"""A span around every RPC of a listener. Knows gRPC's handlers; knows nothing of what an RPC does.

The tracer stands before meter and guard, so that what they refuse is seen, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from coordinator.service.handlers import Wrapping
from coordinator.service.tracing import Tracing, end_rpc

UNTRACED = ("grpc.health.", "grpc.reflection.")
_NAMES_OF_TRACE_CONTEXT = ("traceparent", "tracestate")


class RpcTracer(Wrapping):
    """Wraps handlers in spans. `outcome_of` tells code and reason of an RPC that ended without a reply, by its context."""

    def __init__(self, tracing: Tracing, outcome_of: Callable[[Any], tuple[str, str]]) -> None:
        self._tracing = tracing
        self._outcome_of = outcome_of

    def passes(self, method: str, handler: Any) -> bool:
        """Health checks and reflection are not traced."""
        return method.startswith(UNTRACED, 1)

    def replying(self, inner: Any, method: str, *, reads_stream: bool) -> Any:
        """One reply."""

        async def traced(request: Any, context: Any) -> Any:
            with self._rpc(method, context):
                return await inner(request, context)

        return traced

    def streaming(self, inner: Any, method: str, *, reads_stream: bool) -> Any:
        """A stream of replies."""

        async def traced(request: Any, context: Any) -> AsyncIterator[Any]:
            with self._rpc(method, context):
                async with aclosing(inner(request, context)) as replies:
                    async for reply in replies:
                        yield reply

        return traced

    @contextmanager
    def _rpc(self, method: str, context: Any) -> Iterator[None]:
        span = self._tracing.begin_rpc(method, _trace_context(context.invocation_metadata()))
        code, reason = "OK", ""
        try:
            yield
        except BaseException:
            code, reason = self._outcome_of(context)
            raise
        finally:
            end_rpc(span, code, reason)


def _trace_context(metadata: Any) -> dict[str, str]:
    """Nothing else of the metadata is looked at."""
    return {key: value for key, value in metadata or () if key in _NAMES_OF_TRACE_CONTEXT and isinstance(value, str)}
