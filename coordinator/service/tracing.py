"""Spans of a call's life (RPC or HTTP request -> reserve -> upstream -> settle) for an OpenTelemetry collector. No span holds a prompt, an
answer, a key or an error message, which might quote one.

Made only where `telemetry.otlp_endpoint` is set; without it OpenTelemetry is not imported. A trace that a caller began goes on in the span
of its RPC or request, and through the upstream's HTTP headers (W3C trace context). A flight's spans belong to whoever launched it. What
cannot be sent to the collector in time is dropped; calls never wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordinator.providers.provider import ProviderError, ProviderRequest
from edge.core.errors import ConfigError, CoordinatorError
from edge.core.install import install_extra

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor

    from coordinator.config import TelemetryConfig

TRACE_CONTEXT = ("traceparent", "tracestate")
SERVICE_NAME = "edge-coordinator"
EXPORT_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Tracing:
    """A tracer of its own; nothing global is touched."""

    tracer: Any
    propagator: Any
    """Carries a trace into and out of headers."""
    shut_down: Callable[[], None]

    async def aclose(self) -> None:
        """Send what is left and stop."""
        await asyncio.to_thread(self.shut_down)

    @contextmanager
    def span(self, name: str, kind: str = "INTERNAL", **attributes: Any) -> Iterator[Any]:
        """A span beneath the current one. Of an exception it holds the class or short reason alone."""
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

    @contextmanager
    def upstream(self, alias: str, request: ProviderRequest) -> Iterator[tuple[Any, tuple[tuple[str, str], ...]]]:
        """The span of a request to an upstream, and the HTTP headers that carry the trace on."""
        from opentelemetry.trace import set_span_in_context

        with self.span("upstream", "CLIENT", alias=alias, model=request.model, deadline_s=request.deadline_s) as span:
            headers: dict[str, str] = {}
            self.propagator.inject(headers, context=set_span_in_context(span))
            yield span, tuple(headers.items())

    def begin_rpc(self, method: MethodDescriptor, metadata: Any) -> Any:
        """The span of an RPC, to be ended by `end_served`."""
        service = method.containing_service.full_name
        about = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method.name}
        return self._begin(f"{service}/{method.name}", about, metadata or ())

    def begin_http(self, method: str, route: str, headers: Mapping[str, Sequence[str]]) -> Any:
        """The span of an HTTP request, to be ended by `end_served`."""
        about = {"http.request.method": method, "http.route": route}
        return self._begin(f"{method} {route}", about, ((name, values[0]) for name, values in headers.items()))

    def _begin(self, name: str, attributes: Mapping[str, str], carried: Iterable[tuple[str, Any]]) -> Any:
        """A span that is current for everything that its task does from now on. Of what is carried only the trace context is read."""
        from opentelemetry.context import attach
        from opentelemetry.trace import SpanKind, set_span_in_context

        parent = self.propagator.extract(
            {key: value for key, value in carried if key in TRACE_CONTEXT and isinstance(value, str)}
        )
        span = self.tracer.start_span(name, context=parent, kind=SpanKind.SERVER, attributes=attributes)
        attach(set_span_in_context(span, parent))
        return span


def end_served(span: Any, status: tuple[str, str | int], reason: str) -> None:
    """End the span of an RPC or request with the status that its caller got, an attribute by name and value, and the reason of an error."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute(*status)
    if reason:
        span.set_attribute("error.type", reason)
        span.set_status(Status(StatusCode.ERROR))
    span.end()


def open_tracing(config: TelemetryConfig | None) -> Tracing | None:
    """Spans to the configured collector, None where none is. Raises ConfigError where OpenTelemetry is not installed.

    Credentials for the collector (OTEL_EXPORTER_OTLP_HEADERS) and the sampler (OTEL_TRACES_SAMPLER; without one all traces that begin
    here are kept) come from the environment, as OpenTelemetry has it.
    """
    if config is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError as error:
        raise ConfigError(
            f"telemetry needs OpenTelemetry: {error}", hint=f"install it: {install_extra('otel')}, or remove `telemetry`"
        ) from error
    from edge import __version__

    resource = Resource.create({"service.name": SERVICE_NAME, "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=config.traces_url, timeout=EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider.get_tracer(SERVICE_NAME, __version__), TraceContextTextMapPropagator(), provider.shutdown)


def _short_reason(error: BaseException) -> str:
    match error:
        case ProviderError():
            return error.kind
        case CoordinatorError():
            return error.reason
    return type(error).__name__
