"""64 threads ask one coordinator process over gRPC and HTTP at once, while it is killed, its disk is full and its upstream fails. At the
end its books are compared with the upstream's own log.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import openai
import pytest

from coordinator.config import AuthConfig
from coordinator.service.access import DEVICE_ID_KEY
from coordinator.service.tokens import TokenAuthority, TokenStore
from edge.core.clock import SystemClock
from edge.core.errors import BudgetExhausted, OutcomeUnknown
from edge.rpc.errors import from_rpc_error
from edge.rpc.v1 import call_pb2, device_pb2_grpc
from tests.faults.rig import MisbehavingUpstream
from tests.until import until
from tests.worlds.coordinator_process import CoordinatorProcess, ledger_rows, verify
from tests.worlds.loopback import answering
from tools.bench.processes import free_port

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
THREADS, CALLS_OF_EACH, LIMIT = 64, 5, 250
MOST_TRIES, PAUSE_S, GIVE_UP_S = 3000, 0.05, 300.0


@dataclass
class Asked:
    """What one of the threads was told, by (device, key): a text, or why there is none."""

    texts: dict[tuple[str, str], str] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)


def tries() -> Iterator[int]:
    """Numbers of tries, with a pause between them."""
    for number in range(MOST_TRIES):
        yield number
        threading.Event().wait(PAUSE_S)


def ask_over_http(url: str, token: str, device: str, number: int, told: Asked) -> None:
    """Each call again under its key until it is answered, or may not be sent again."""
    with openai.OpenAI(base_url=url, api_key=token, max_retries=0, timeout=30.0) as client:
        for count in range(CALLS_OF_EACH):
            key = f"http-{number}-{count}"
            for _ in tries():
                try:
                    reply = client.chat.completions.create(
                        model="default",
                        messages=[{"role": "user", "content": f"question {key}"}],
                        max_tokens=20,
                        extra_headers={"Idempotency-Key": key},
                    )
                    told.texts[device, key] = reply.choices[0].message.content or ""
                    told.ended["answered over HTTP"] += 1
                    break
                except openai.APIStatusError as error:
                    if error.response.headers.get("x-should-retry") == "false":
                        told.ended[f"{error.code} over HTTP"] += 1
                        break
                except openai.APIConnectionError:
                    told.ended["connection lost over HTTP"] += 1
            else:
                raise AssertionError(f"{key} was never answered")


def ask_over_grpc(address: str, device: str, number: int, told: Asked) -> None:
    """The same over gRPC."""
    with grpc.insecure_channel(address) as channel:
        stub = device_pb2_grpc.DeviceServiceStub(channel)
        for count in range(CALLS_OF_EACH):
            key = f"grpc-{number}-{count}"
            turn = call_pb2.ChatMessage(role=call_pb2.ROLE_USER, content=f"question {key}")
            request = call_pb2.CompleteRequest(
                call_key=key, task="default", prompt_id=key, help_units=1, messages=[turn], max_output_tokens=20
            )
            for _ in tries():
                try:
                    reply = stub.Complete(request, timeout=30.0, metadata=((DEVICE_ID_KEY, device),))
                    told.texts[device, key] = reply.completion.text
                    told.ended["answered over gRPC"] += 1
                    break
                except grpc.RpcError as failed:
                    error = from_rpc_error(failed)
                    if isinstance(error, BudgetExhausted | OutcomeUnknown) or error.reason == "UPSTREAM_REJECTED":
                        told.ended[f"{error.reason.lower()} over gRPC"] += 1
                        break
                    told.ended["sent again over gRPC"] += 1
            else:
                raise AssertionError(f"{key} was never answered")


def stored_answers(address: str, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """What GetCall says of every answer, whichever protocol it was given over."""
    with grpc.insecure_channel(address) as channel:
        stub = device_pb2_grpc.DeviceServiceStub(channel)
        return {
            (device, key): stub.GetCall(
                call_pb2.GetCallRequest(call_key=key), timeout=30.0, metadata=((DEVICE_ID_KEY, device),)
            ).completion.text
            for device, key in keys
        }


async def test_books_equal_the_upstreams_log_under_both_protocols_kills_and_a_full_disk(tmp_path: Path) -> None:
    upstream, told, rng = MisbehavingUpstream(random.Random(5)), Asked(), random.Random(6)
    upstream.mood, upstream.share = ("break", "error", "busy", "reject"), 0.15
    async with answering("/v1/chat/completions", upstream.handle) as base:
        port = free_port()
        process = CoordinatorProcess(tmp_path, _settings(f"{base}/v1", f"127.0.0.1:{port}"))
        process.state.mkdir()
        authority = TokenAuthority(TokenStore(process.state), AuthConfig(), SystemClock())
        devices = [f"d{number}" for number in range(4)]
        tokens = {device: authority.issue("client", device) for device in devices}

        def work(number: int) -> None:
            device = devices[number // 2 % len(devices)]
            if number % 2:
                ask_over_http(f"http://127.0.0.1:{port}/v1", tokens[device], device, number, told)
            else:
                ask_over_grpc(process.address, device, number, told)

        await process.start()
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(THREADS) as pool:
            works = [loop.run_in_executor(pool, work, number) for number in range(THREADS)]
            for round_ in range(3):
                await until(lambda least=30 * (round_ + 1): len(told.texts) >= least)
                if round_ == 1:
                    await _full_disk_for(process, 0.5)
                await asyncio.sleep(rng.uniform(0.0, 0.2))
                await process.kill_9()
                await process.start()
            await asyncio.wait_for(asyncio.gather(*works), GIVE_UP_S)
        await asyncio.sleep(2.5)  # every lease is over, and swept
        stored = await asyncio.to_thread(stored_answers, process.address, list(told.texts))
        await process.stop()
    assert stored == told.texts
    await verify(process)
    _compare(process, upstream, told)


async def _full_disk_for(process: CoordinatorProcess, seconds: float) -> None:
    pid = process.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, before[1]))
    await asyncio.sleep(seconds)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def _compare(process: CoordinatorProcess, upstream: MisbehavingUpstream, told: Asked) -> None:
    """Ledger and upstream, attempt by attempt."""
    charged = {
        f"{row['device']}|{row['key']}|{row['number']}": (
            row["state"],
            row["charged_calls"],
            row["charged_tokens"],
            row["charged_uusd"],
        )
        for row in ledger_rows(process.state, "SELECT * FROM attempt")
    }
    received = Counter(event.key for event in upstream.log if event.what == "received")
    executed = {event.key: event.usage for event in upstream.log if event.what == "executed"}
    assert max(received.values()) == 1, "a billing key was sent twice"
    assert received.keys() <= charged.keys(), "the upstream knows a call that the ledger does not"
    for key, (state, calls, tokens, uusd) in charged.items():
        cost = executed.get(key)
        if state == "committed":
            assert cost is not None and (tokens, uusd) == (sum(cost), cost[0] + 2 * cost[1])
        if cost is not None:
            assert calls == 1 and uusd >= cost[0] + 2 * cost[1], f"{key} is {state} and was executed"
        if state == "refunded":
            assert calls == 0
        assert state != "dispatched"
    (fleet,) = ledger_rows(process.state, "SELECT * FROM budget WHERE key = 'fleet'")
    assert fleet["committed_calls"] == sum(calls for _, calls, _, _ in charged.values()) <= LIMIT
    assert fleet["committed_uusd"] == sum(uusd for _, _, _, uusd in charged.values())
    assert fleet["reserved_calls"] == 0
    ended = told.ended
    assert ended["answered over HTTP"] > 20 and ended["answered over gRPC"] > 20, ended
    assert ended["budget_exhausted over HTTP"] + ended["budget_exhausted over gRPC"] > 0, ended
    assert len(set(told.texts.values())) == len(told.texts), "one answer went to two calls"


def _settings(base_url: str, openai_listen: str) -> dict[str, object]:
    price = {"price_in_uusd_per_mtok": 1_000_000, "price_out_uusd_per_mtok": 2_000_000}
    alias = {
        "provider": "openai_compatible",
        "model": "m",
        "base_url": base_url,
        "deadline_s": 2.0,
        "max_concurrency": 32,
        **price,
    }
    return {
        "openai_listen": openai_listen,
        "upstreams": {"default": alias},
        "budgets": {"fleet": {"calls_limit": LIMIT}},
        "service": {"lease_margin_s": 1.0, "sweep_interval_s": 0.2},
    }
