"""Spans of a real coordinator at a small OTLP receiver: their content, continued traces, and none unless enabled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pydantic import ValidationError

from coordinator.app import Coordinator
from coordinator.config import ServerConfig, TelemetryConfig
from edge.rpc import codec
from edge.rpc.v1 import device_pb2_grpc
from tests.worlds.coordinator import call, connected
from tests.worlds.coordinator_process import settings_for
from tests.worlds.loopback import answering
from tests.worlds.upstream_server import Upstream, good_reply, running_upstream

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "what only the device and the cloud may know"


@dataclass
class Collector:
    """What it received."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.bodies.append(body)
        sent = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
        self.spans += [span for each in sent.resource_spans for scope in each.scope_spans for span in scope.spans]
        return web.Response(body=trace_service_pb2.ExportTraceServiceResponse().SerializeToString())

    def named(self, name: str) -> Span:
        (span,) = [span for span in self.spans if span.name == name]
        return span


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    it = Collector()
    async with answering("/v1/traces", it.take) as it.url:
        yield it


@asynccontextmanager
async def coordinator(folder: Path, upstream: Upstream, endpoint: str | None) -> AsyncIterator[str]:
    """Where OpenAI's clients reach it."""
    telemetry = {"telemetry": {"otlp_endpoint": endpoint}} if endpoint else {}
    settings = {**settings_for(upstream, **telemetry), "listen": [f"unix:{folder}/c.sock"], "state_dir": str(folder / "state")}
    async with Coordinator(ServerConfig.model_validate({**settings, "openai_listen": "127.0.0.1:0"})) as serving:
        yield serving.openai_url


def attributes(span: Span) -> dict[str, object]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


async def ask_in_a_trace(folder: Path, flags: str = "01") -> None:
    request = codec.encode_call(call("k1", SECRET))
    metadata = (("device-id", "d1"), ("traceparent", f"00-{TRACE}-{PARENT}-{flags}"))
    async with grpc.aio.insecure_channel(f"unix:{folder}/c.sock") as channel:
        await device_pb2_grpc.DeviceServiceStub(channel).Complete(request, metadata=metadata, timeout=10.0)


async def test_device_trace_continues_through_reserve_upstream_and_settle_to_the_cloud(tmp_path) -> None:
    headers: dict[str, str] = {}

    async def reply(request: web.Request) -> web.StreamResponse:
        headers.update(request.headers)
        return await good_reply(request)

    async with collector() as sink, running_upstream() as upstream:
        upstream.reply = reply
        async with coordinator(tmp_path, upstream, sink.url):
            await ask_in_a_trace(tmp_path)
        rpc, asked = sink.named("edge.rpc.v1.DeviceService/Complete"), sink.named("upstream")
        assert {span.trace_id.hex() for span in sink.spans} == {TRACE}
        assert rpc.parent_span_id.hex() == PARENT
        children = [sink.named(name) for name in ("reserve", "upstream", "settle")]
        assert {span.parent_span_id for span in children} == {rpc.span_id} and len(sink.spans) == 4
        times = [time for span in children for time in (span.start_time_unix_nano, span.end_time_unix_nano)]
        assert times == sorted(times)
        assert headers["traceparent"] == f"00-{TRACE}-{asked.span_id.hex()}-01"
        assert attributes(rpc)["rpc.response.status_code"] == "OK"
        assert attributes(sink.named("reserve"))["edge.outcome"] == "reserved"
        assert attributes(asked)["gen_ai.usage.input_tokens"] == 10
        assert attributes(sink.named("settle"))["edge.state"] == "completed"


async def test_spans_contain_no_prompts_answers_or_caller_names(tmp_path) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": SECRET}}, status=400)

    async with collector() as sink, running_upstream() as upstream:
        async with coordinator(tmp_path, upstream, sink.url):
            await ask_in_a_trace(tmp_path)
            upstream.reply = refuse
            async with connected(tmp_path, "d1", max_retries=0) as client:
                with pytest.raises(Exception, match="did not take the call"):
                    await client.complete(call("k2", f"{SECRET}?"), 5.0)
                async for _ in client.stream_complete(call("k1", SECRET), 5.0):
                    pass
        sent = b"".join(sink.bodies)
        assert len(sink.spans) >= 8
        assert SECRET.encode() not in sent and SECRET.upper().encode() not in sent
        failed = [span for span in sink.spans if span.status.code == 2]
        assert {attributes(span)["error.type"] for span in failed} == {"http_400", "UPSTREAM_REJECTED"}
        assert all(not span.events and not span.status.message for span in sink.spans)


@pytest.mark.parametrize("streamed", [False, True])
async def test_chat_request_continues_its_clients_trace_and_its_span_lasts_as_long_as_its_answer(tmp_path, streamed) -> None:
    async with collector() as sink, running_upstream() as upstream:
        async with coordinator(tmp_path, upstream, sink.url) as url, aiohttp.ClientSession() as session:
            body = {"model": "default", "messages": [{"role": "user", "content": SECRET}], "stream": streamed}
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            async with session.post(f"{url}/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 200 and await answer.read()
            async with session.post(f"{url}/chat/completions", json={"model": SECRET}) as refused:
                assert refused.status == 400
            async with session.get(f"{url}/models/{SECRET}") as unknown:
                assert unknown.status == 404
        spans = [span for span in sink.spans if span.trace_id.hex() == TRACE]
        served = next(span for span in spans if span.name == "POST /v1/chat/completions")
        children = [span for span in spans if span is not served]
        assert served.parent_span_id.hex() == PARENT
        assert sorted(span.name for span in children) == ["reserve", "settle", "upstream"]
        assert all(
            span.parent_span_id == served.span_id and span.end_time_unix_nano <= served.end_time_unix_nano for span in children
        )
        known = {"http.request.method": "POST", "http.route": "/v1/chat/completions"}
        assert attributes(served) == {**known, "http.response.status_code": 200}
        failed = {span.name: attributes(span) for span in sink.spans if span.trace_id.hex() != TRACE}
        assert failed["POST /v1/chat/completions"] == {**known, "http.response.status_code": 400, "error.type": "INVALID_REQUEST"}
        assert failed["GET /v1/models/"]["http.response.status_code"] == 404
        assert SECRET.encode() not in b"".join(sink.bodies)


async def test_without_telemetry_no_trace_header_is_sent_upstream(tmp_path, upstream) -> None:
    headers: dict[str, str] = {}

    async def reply(request: web.Request) -> web.StreamResponse:
        headers.update(request.headers)
        return await good_reply(request)

    upstream.reply = reply
    async with coordinator(tmp_path, upstream, None):
        await ask_in_a_trace(tmp_path)
    assert headers and not {"traceparent", "tracestate"} & {name.lower() for name in headers}


async def test_unreachable_collector_fails_no_call(tmp_path) -> None:
    async with running_upstream() as upstream, coordinator(tmp_path, upstream, "http://127.0.0.1:9"):
        await ask_in_a_trace(tmp_path)
        assert len(upstream.keys) == 1


@pytest.mark.parametrize(
    "endpoint", ["collector:4318", "http://user:pass@c:4318", "https://c/?key=1", "http://c:port", "ftp://c"]
)
def test_invalid_endpoint_or_one_with_a_secret_is_refused(endpoint) -> None:
    with pytest.raises(ValidationError, match="otlp_endpoint"):
        TelemetryConfig(otlp_endpoint=endpoint)
