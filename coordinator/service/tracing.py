"""Spans of a call's life (RPC -> reserve -> upstream -> settle) for an OpenTelemetry collector. Knows names, outcomes and amounts of money;
knows no prompts, answers, tokens or keys, and tells no error messages, which might quote one.

Made only where `telemetry.otlp_endpoint` says so: without it nothing here is imported, wrapped or counted. A trace that a device began goes
on in its RPC's span, and through the upstream's HTTP headers (W3C trace context). A flight's spans belong to the RPC that launched it; the
items of a batch to the RPC of the batch. What cannot be sent to the collector in time is dropped; calls never wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from coordinator.ledger.accounts import ReserveRequest, Resolution, Settlement
from coordinator.ledger.stores.store import LedgerStore, Operation, WrappedStore
from coordinator.providers.provider import CloudProvider, ProviderDelta, ProviderError, ProviderRequest, ProviderResult
from edge.core.errors import ConfigError, CoordinatorError
from edge.core.install import install_extra

if TYPE_CHECKING:
    from coordinator.config import TelemetryConfig

T = TypeVar("T")
P = ParamSpec("P")
_OF_A_CALL = frozenset({"reserve", "settle", "refund", "fail", "doubt"})
SERVICE_NAME = "edge-coordinator"
EXPORT_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Tracing:
    """A tracer of its own (nothing global is touched), its propagator, and the end of both."""

    tracer: Any
    propagator: Any
    shut_down: Callable[[], None]

    async def aclose(self) -> None:
        """Send what is left and stop."""
        await asyncio.to_thread(self.shut_down)

    def store(self, inner: LedgerStore) -> LedgerStore:
        """The store, traced."""
        return TracedStore(inner, self)

    def provider(self, inner: CloudProvider, alias: str) -> CloudProvider:
        """The provider, traced; what it asks carries the trace on."""
        return cast(CloudProvider, TracedProvider(inner, alias, self))

    @contextmanager
    def span(self, name: str, kind: str = "INTERNAL", **attributes: Any) -> Iterator[Any]:
        """A span beneath the current one. An exception is told by its class and short reason alone."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        span = self.tracer.start_span(
            name,
            kind=SpanKind[kind],
            attributes={f"edge.{name}": value for name, value in attributes.items()},
            record_exception=False,
            set_status_on_exception=False,
        )
        try:
            yield span
        except BaseException as error:
            span.set_attribute("error.type", _short_reason(error))
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            span.end()

    def headers_of(self, span: Any) -> tuple[tuple[str, str], ...]:
        """The HTTP headers that carry a span on."""
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self.propagator.inject(carrier, context=set_span_in_context(span))
        return tuple(carrier.items())

    def begin_rpc(self, method: str, metadata: Mapping[str, str]) -> Any:
        """The span of an RPC, current for everything that its task does from now on; to be ended by `end_rpc`."""
        from opentelemetry.context import attach
        from opentelemetry.trace import SpanKind, set_span_in_context

        service, _, name = method.removeprefix("/").rpartition("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
        parent = self.propagator.extract(dict(metadata))
        span = self.tracer.start_span(method.removeprefix("/"), context=parent, kind=SpanKind.SERVER, attributes=attributes)
        attach(set_span_in_context(span, parent))
        return span


def end_rpc(span: Any, code: str, reason: str) -> None:
    """End an RPC's span by what its caller was told."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("rpc.response.status_code", code)
    if reason:
        span.set_attribute("error.type", reason)
        span.set_status(Status(StatusCode.ERROR))
    span.end()


def open_tracing(config: TelemetryConfig | None) -> Tracing | None:
    """Spans to the configured collector, None where none is. Raises ConfigError where OpenTelemetry is not installed.

    Credentials for the collector come from OTEL_EXPORTER_OTLP_HEADERS in the environment, as OpenTelemetry has it.
    """
    if config is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError as error:
        raise ConfigError(
            f"telemetry needs OpenTelemetry: {error}", hint=f"install it: {install_extra('otel')}, or remove `telemetry`"
        ) from error
    from edge import __version__

    resource = Resource.create({"service.name": SERVICE_NAME, "service.version": __version__})
    sampler = ParentBased(TraceIdRatioBased(config.sample_rate))
    provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=config.traces_url, timeout=EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider.get_tracer(SERVICE_NAME, __version__), TraceContextTextMapPropagator(), provider.shutdown)


class TracedStore(WrappedStore):
    """A LedgerStore whose operations of a call are spans."""

    def __init__(self, inner: LedgerStore, tracing: Tracing) -> None:
        super().__init__(inner)
        self._tracing = tracing

    async def perform(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run one operation."""
        if operation.name not in _OF_A_CALL:
            return await self._inner.perform(operation, *args, **kwargs)
        with self._tracing.span(operation.name, **_asked(args)) as span:
            outcome = await self._inner.perform(operation, *args, **kwargs)
            if isinstance(outcome, Resolution):
                span.set_attribute("edge.state", str(outcome.call.state))
                span.set_attribute("edge.charged_uusd", outcome.call.charged.uusd)
            else:
                span.set_attribute("edge.outcome", type(outcome).__name__.lower())
            return outcome


def _asked(args: tuple[Any, ...]) -> dict[str, Any]:
    """What a span says of an operation: of a hold its task, model and amount, of a resolution the attempt's number."""
    match args:
        case (ReserveRequest() as request,):
            return {"task": request.task, "model": request.model, "hold_uusd": request.hold.uusd}
        case (Settlement() as settlement,):
            return {"attempt": settlement.attempt}
    return {"attempt": args[2]}


class TracedProvider:
    """A CloudProvider whose completions are spans; everything else is the inner provider's."""

    def __init__(self, inner: CloudProvider, alias: str, tracing: Tracing) -> None:
        self._inner = inner
        self._alias = alias
        self._tracing = tracing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Complete once."""
        with self._asking(request) as span:
            result = await self._inner.complete(self._carrying(request, span))
            _tell_result(span, result)
            return result

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """Complete once, piece by piece."""
        with self._asking(request) as span:
            async with aclosing(self._inner.stream(self._carrying(request, span))) as deltas:
                async for delta in deltas:
                    if delta.result is not None:
                        _tell_result(span, delta.result)
                    yield delta

    def _asking(self, request: ProviderRequest) -> Any:
        return self._tracing.span("upstream", "CLIENT", alias=self._alias, model=request.model, deadline_s=request.deadline_s)

    def _carrying(self, request: ProviderRequest, span: Any) -> ProviderRequest:
        return replace(request, trace_headers=self._tracing.headers_of(span))


def _tell_result(span: Any, result: ProviderResult) -> None:
    if result.usage is not None:
        span.set_attribute("gen_ai.usage.input_tokens", result.usage.input_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", result.usage.output_tokens)


def _short_reason(error: BaseException) -> str:
    match error:
        case ProviderError():
            return error.kind
        case CoordinatorError():
            return error.reason
    return type(error).__name__
