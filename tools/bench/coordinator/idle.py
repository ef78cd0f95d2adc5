"""Many idle devices, each with its own connection that watches its budget. Measures the coordinator's memory and the effect on other
calls.

    python -m tools.bench.coordinator.idle JOB

This is one client process of several: it connects, reports when every device has its first budget, and stays until it is killed. The
latency of calls is measured by the load process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench.coordinator.measure import loaded
from tools.bench.coordinator.services import Started, coordinator, device_tokens
from tools.bench.processes import announce, cpu_s, memory_mib, own, running, scratch_folder

CLIENTS = 4
AT_ONCE = 64
SPARE_FILES = 512
WATCHED = "bench-idle"
REST_S = 10.0


async def watch_all(address: str, tokens: Sequence[str]) -> None:
    """One connection and one stream for each token; never returns."""
    import grpc

    from edge.rpc.v1 import budget_pb2, device_pb2_grpc

    request, gate = budget_pb2.WatchBudgetRequest(task=WATCHED), asyncio.Semaphore(AT_ONCE)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    kept: list[Any] = []

    async def connect(token: str) -> Any:
        async with gate:
            channel = grpc.aio.insecure_channel(address, options)
            watch = device_pb2_grpc.DeviceServiceStub(channel).WatchBudget(
                request, metadata=(("authorization", f"Bearer {token}"),)
            )
            kept.append((channel, watch))
            await watch.read()
            return watch

    watches = await asyncio.gather(*map(connect, tokens))
    announce({"connected": len(watches)})
    await asyncio.gather(*map(_read_on, watches))


async def _read_on(watch: Any) -> None:
    import grpc

    while await watch.read() is not grpc.aio.EOF:
        pass


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Latency without them, with them, and without them again; memory before and with them."""
    raise_file_limit(job["devices"] + SPARE_FILES)
    with scratch_folder(job) as scratch, coordinator(job, scratch) as service:
        pid = service.server.pid
        loaded(service, {**job["latency"], "phase": "warm"}, scratch)
        alone, before = _latency(service, job, scratch, "alone"), memory_mib(pid)
        with contextlib.ExitStack() as stack:
            began = time.monotonic()
            connected = _connect(service, job, scratch, stack)
            connect_s = time.monotonic() - began
            with_them = _latency(service, job, scratch, "beside")
            cpu_before = cpu_s(pid)
            time.sleep(REST_S)
            resting = (cpu_s(pid) - cpu_before) / REST_S
            memory = memory_mib(pid)
        time.sleep(1.0)
        after = _latency(service, job, scratch, "after")
    return {
        "devices": connected,
        "connect_s": connect_s,
        "memory_mib": memory,
        "memory_before_mib": before,
        "cpu_share_idle": resting,
        "ms": {"alone": alone, "beside": with_them, "after": after},
    }


def _latency(service: Started, job: Mapping[str, Any], scratch: Path, phase: str) -> dict[str, float]:
    found: dict[str, float] = loaded(service, {**job["latency"], "phase": phase}, scratch)["ms"]
    return found


def _connect(service: Started, job: Mapping[str, Any], scratch: Path, stack: contextlib.ExitStack) -> int:
    """Client processes with a share of the devices each, one after the other; how many devices are connected."""
    assert service.ledger is not None
    total = 0
    for number in range(CLIENTS):
        names = [f"idle-{number}-{each}" for each in range(job["devices"] // CLIENTS)]
        file = scratch / f"idle-{number}.job"
        file.write_text(json.dumps({"address": service.target, "tokens": device_tokens(service.ledger.parent, names)}))
        client = stack.enter_context(running(own("coordinator.idle", str(file)), scratch / f"idle-{number}.log"))
        total += client.ready["connected"]
    return total


def raise_file_limit(wanted: int) -> None:
    """Raise the limit of open files for this process and its children, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


if __name__ == "__main__":
    os.nice(5)
    watched = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    asyncio.run(watch_all(watched["address"], watched["tokens"]))
