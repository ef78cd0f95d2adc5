"""Spans of a call's life (RPC -> reserve -> upstream -> settle) for an OpenTelemetry collector. No span holds a prompt, an answer, a key or
an error message, which might quote one.

Made only where `telemetry.otlp_endpoint` is set; without it OpenTelemetry is not imported. A trace that a device began goes
on in its RPC's span, and through the upstream's HTTP headers (W3C trace context). A flight's spans belong to the RPC that launched it.
What cannot be sent to the collector in time is dropped; calls never wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
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
        """The span of an RPC, current for everything that its task does from now on; to be ended by `end_rpc`. Of the metadata only the
        trace context is read."""
        from opentelemetry.context import attach
        from opentelemetry.trace import SpanKind, set_span_in_context

        service = method.containing_service.full_name
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method.name}
        known = {key: value for key, value in metadata or () if key in TRACE_CONTEXT and isinstance(value, str)}
        parent = self.propagator.extract(known)
        span = self.tracer.start_span(f"{service}/{method.name}", context=parent, kind=SpanKind.SERVER, attributes=attributes)
        attach(set_span_in_context(span, parent))
        return span


def end_rpc(span: Any, code: str, reason: str) -> None:
    """End an RPC's span with the status that its caller got."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("rpc.response.status_code", code)
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
