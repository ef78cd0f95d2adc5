"""Error handling of the gRPC client, with a scripted service."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from edge.core.errors import (
    BudgetExhausted,
    CallInProgress,
    CoordinatorUnavailable,
    NotFound,
    NotImplementedThere,
    OutcomeUnknown,
    PermissionDenied,
    RateLimited,
    Unauthenticated,
)
from edge.rpc.errors import row_for, to_status, trailing_metadata
from edge.rpc.v1 import budget_pb2, call_pb2, device_pb2_grpc
from tests.worlds.coordinator import call, connected

ANSWER = call_pb2.CompleteResponse(completion=call_pb2.Completion(call_key="k1", text="four"))
STORED = call_pb2.GetCallResponse(completion=ANSWER.completion)
BARE_CUT = grpc.StatusCode.UNAVAILABLE


class ScriptedService(device_pb2_grpc.DeviceServiceServicer):
    """Answers each RPC with the next thing in `script`: a message, a typed error, or a bare status code. `asked` lists the RPCs."""

    def __init__(self, *script) -> None:
        self.script = list(script)
        self.asked: list[str] = []

    async def Complete(self, request, context):
        return await self._next("Complete", context)

    async def StreamComplete(self, request, context):
        await self._next("StreamComplete", context)
        yield call_pb2.StreamCompleteResponse(finished=ANSWER.completion)

    async def GetCall(self, request, context):
        return await self._next("GetCall", context)

    async def GetBudget(self, request, context):
        return await self._next("GetBudget", context)

    async def _next(self, name, context):
        self.asked.append(name)
        reply = self.script.pop(0)
        if isinstance(reply, grpc.StatusCode):
            await context.abort(reply, "cut")
        if isinstance(reply, Exception):
            status = to_status(reply)
            await context.abort(row_for(reply).code, status.message, trailing_metadata(status))
        return reply


@asynccontextmanager
async def serving(folder, service: ScriptedService):
    server = grpc.aio.server()
    device_pb2_grpc.add_DeviceServiceServicer_to_server(service, server)
    server.add_insecure_port(f"unix:{folder}/c.sock")
    await server.start()
    try:
        async with connected(folder, first_backoff_s=0.001, max_backoff_s=0.002, max_retries=4) as client:
            yield client
    finally:
        await server.stop(None)


def unavailable(reason: str, retry_after_s: float | None = 0.0) -> CoordinatorUnavailable:
    return CoordinatorUnavailable("later", reason=reason, retry_after_s=retry_after_s)


async def test_lost_reply_is_looked_up_before_a_retry(tmp_path) -> None:
    service = ScriptedService(BARE_CUT, STORED)
    async with serving(tmp_path, service) as client:
        assert (await client.complete(call(), 5.0)).text == "four"
    assert service.asked == ["Complete", "GetCall"]


@pytest.mark.parametrize("unknown", [NotFound("no"), CallInProgress("runs"), unavailable("UPSTREAM_FAILED")], ids=type)
async def test_lost_call_without_a_result_is_retried_with_its_key(tmp_path, unknown) -> None:
    service = ScriptedService(BARE_CUT, unknown, ANSWER)
    async with serving(tmp_path, service) as client:
        assert (await client.complete(call(), 5.0)).text == "four"
    assert service.asked == ["Complete", "GetCall", "Complete"]


async def test_lost_call_that_was_cut_is_not_retried(tmp_path) -> None:
    service = ScriptedService(BARE_CUT, OutcomeUnknown("charged"))
    async with serving(tmp_path, service) as client:
        with pytest.raises(OutcomeUnknown):
            await client.complete(call(), 5.0)


@pytest.mark.parametrize(
    "refusal", [PermissionDenied("not this task"), Unauthenticated("revoked")], ids=lambda error: error.reason
)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_refusal_after_a_lost_reply_says_nothing_of_the_call(tmp_path, refusal, streamed) -> None:
    service = ScriptedService(BARE_CUT, refusal, refusal)

    async def asked(client) -> object:
        return [delta async for delta in client.stream_complete(call(), 5.0)] if streamed else await client.complete(call(), 5.0)

    async with serving(tmp_path, service) as client:
        with pytest.raises(OutcomeUnknown) as caught:
            await asked(client)
    assert caught.value.reason == "REPLY_LOST" and str(refusal) in str(caught.value)


@pytest.mark.parametrize(
    "refusal", [PermissionDenied("not this task"), Unauthenticated("revoked")], ids=lambda error: error.reason
)
async def test_refusal_of_the_first_try_is_the_end_of_a_call(tmp_path, refusal) -> None:
    async with serving(tmp_path, ScriptedService(refusal)) as client:
        with pytest.raises(type(refusal)):
            await client.complete(call(), 5.0)


@pytest.mark.parametrize("reason", ["OVERLOADED", "DRAINING", "LEDGER_UNAVAILABLE", "UPSTREAM_OPEN"])
async def test_unavailable_is_retried(tmp_path, reason) -> None:
    service = ScriptedService(unavailable(reason), unavailable(reason), ANSWER)
    async with serving(tmp_path, service) as client:
        assert (await client.complete(call(), 5.0)).text == "four"
    assert service.asked == ["Complete"] * 3


@pytest.mark.parametrize(
    "error", [BudgetExhausted("gone"), OutcomeUnknown("cut"), unavailable("UPSTREAM_REJECTED")], ids=lambda error: error.reason
)
async def test_other_errors_are_not_retried(tmp_path, error) -> None:
    service = ScriptedService(error)
    async with serving(tmp_path, service) as client:
        with pytest.raises(type(error)) as caught:
            await client.complete(call(), 5.0)
    assert caught.value.reason == error.reason and service.asked == ["Complete"]


async def test_rate_limit_beyond_the_deadline_is_raised_immediately(tmp_path) -> None:
    service = ScriptedService(RateLimited("slowly", retry_after_s=6.0))
    async with serving(tmp_path, service) as client:
        with pytest.raises(RateLimited) as caught:
            await client.complete(call(), 5.0)
    assert caught.value.retry_after_s == 6.0 and service.asked == ["Complete"]


async def test_early_stream_is_answered_after_the_delay(tmp_path) -> None:
    service = ScriptedService(RateLimited("slowly", retry_after_s=0.01), ANSWER)
    async with serving(tmp_path, service) as client:
        deltas = [delta async for delta in client.stream_complete(call(), 5.0)]
    assert deltas[-1].completion.text == "four" and service.asked == ["StreamComplete", "Complete"]


@pytest.mark.parametrize(("reason", "tries"), [("UPSTREAM_FAILED", 2), ("OVERLOADED", 5)])
async def test_retries_end_and_a_failing_upstream_is_retried_once_only(tmp_path, reason, tries) -> None:
    service = ScriptedService(*[unavailable(reason)] * 9)
    async with serving(tmp_path, service) as client:
        with pytest.raises(CoordinatorUnavailable):
            await client.complete(call(), 5.0)
    assert service.asked == ["Complete"] * tries


async def test_a_failed_stream_counts_as_one_of_the_two_tries_and_its_delay_is_kept(tmp_path) -> None:
    service = ScriptedService(*[unavailable("UPSTREAM_FAILED", 0.2)] * 9)
    async with serving(tmp_path, service) as client:
        began = asyncio.get_running_loop().time()
        with pytest.raises(CoordinatorUnavailable):
            _ = [delta async for delta in client.stream_complete(call(), 5.0)]
        assert asyncio.get_running_loop().time() - began >= 0.2
    assert service.asked == ["StreamComplete", "Complete"]


async def test_delay_requested_by_the_coordinator_is_kept(tmp_path) -> None:
    service = ScriptedService(unavailable("OVERLOADED", 0.3), ANSWER)
    async with serving(tmp_path, service) as client:
        began = asyncio.get_running_loop().time()
        await client.complete(call(), 5.0)
        assert asyncio.get_running_loop().time() - began >= 0.3


async def test_call_running_elsewhere_is_looked_up_before_a_retry(tmp_path) -> None:
    service = ScriptedService(CallInProgress("runs", retry_after_s=0.0), STORED)
    async with serving(tmp_path, service) as client:
        assert (await client.complete(call(), 5.0)).text == "four"
    assert service.asked == ["Complete", "GetCall"]


async def test_unsupported_method_is_reported_as_such(tmp_path) -> None:
    service = ScriptedService(grpc.StatusCode.UNIMPLEMENTED)
    async with serving(tmp_path, service) as client:
        with pytest.raises(NotImplementedThere):
            await client.get_budget("math")
    assert service.asked == ["GetBudget"]


async def test_a_cut_control_call_is_repeated(tmp_path) -> None:
    service = ScriptedService(BARE_CUT, budget_pb2.GetBudgetResponse(budget=budget_pb2.BudgetSnapshot(calls=3)))
    async with serving(tmp_path, service) as client:
        assert (await client.get_budget("math")).calls == 3


async def test_deadline_is_reported_as_such(tmp_path) -> None:
    class Silent(device_pb2_grpc.DeviceServiceServicer):
        async def Complete(self, request, context):
            await asyncio.Event().wait()

    async with serving(tmp_path, Silent()) as client:
        with pytest.raises(CoordinatorUnavailable) as caught:
            await client.complete(call(), 0.2)
    assert caught.value.reason == "DEADLINE_EXCEEDED"
