"""A coordinator under mixed load with faults for minutes: whether descriptors, threads, tasks or memory grow, and the audit of its ledger
afterwards.

Faults: clients that leave in the middle of a call, reconnects, an upstream that refuses, breaks off, is slow, and goes away and comes
back. The coordinator is sampled between periods of load, when nothing runs.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from coordinator.ledger.opening import LEDGER_FILE
from tools.bench.coordinator import services
from tools.bench.mock_cloud import HttpServer, MockAnswer, MockConnection, MockRequest, completion
from tools.bench.processes import Server, free_port, scratch_folder

WORKERS = 12
DEVICES = 4
REST_TIMEOUT_S = 60.0
AWAY_S = 0.3
CALL_S = 10.0
_METRIC = r"^edge_coordinator_{name} ([0-9.e+]+)$"


class FaultyCloud:
    """A mock cloud LLM that misbehaves by request number, and can go away."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server = HttpServer(self._handle)
        self.asked = 0

    async def come(self) -> None:
        """Listen."""
        await self._server.listen(self._port)

    def go(self) -> None:
        """Stop listening and cut every connection."""
        self._server.close()

    def _handle(self, _request: MockRequest, connection: MockConnection) -> MockAnswer:
        """Mostly the completion."""
        self.asked += 1
        if self.asked % 41 == 0:
            connection.cut()
        if self.asked % 37 == 0:
            return MockAnswer(b"{}", status=503)
        if self.asked % 31 == 0:
            return MockAnswer(b"not what was asked for")
        return MockAnswer(completion(), after_s=0.25 if self.asked % 29 == 0 else 0.005)


@dataclass(slots=True)
class Crowd:
    """Devices that work, cancel and reconnect. `outcomes` counts their results."""

    address: str
    tokens: Sequence[str]
    rng: random.Random
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    outcomes: Counter[str] = field(default_factory=Counter)

    async def work(self, seconds: float) -> None:
        """For so long."""
        end = asyncio.get_running_loop().time() + seconds
        await asyncio.gather(*(self._device(worker, end) for worker in range(WORKERS)))

    async def _device(self, worker: int, end: float) -> None:
        while asyncio.get_running_loop().time() < end:
            async with self._client(worker % len(self.tokens)) as client:
                for _ in range(self.rng.randint(5, 40)):
                    await self._once(client)
                    if asyncio.get_running_loop().time() >= end:
                        break

    @asynccontextmanager
    async def _client(self, at: int) -> AsyncIterator[Any]:
        from edge.core.clock import SystemClock
        from edge.rpc.credentials import ClientCredentials, TokenFile
        from edge.rpc.grpc_client import ClientPolicy, GrpcCoordinatorClient

        token = TokenFile(Path(self.tokens[at]), SystemClock())
        client = GrpcCoordinatorClient(
            self.address, policy=ClientPolicy(max_retries=1), seed=at, credentials=ClientCredentials(None, token)
        )
        try:
            yield client
        finally:
            await client.aclose()

    async def _once(self, client: Any) -> None:
        """One action of a device; one in five cancels before its answer."""
        from edge.core.errors import CoordinatorError

        does = self.rng.choice((self._complete, self._complete, self._stream, self._budget, self._watch, self._step))
        patience_s = self.rng.uniform(0.0, 0.02) if self.rng.random() < 0.2 else CALL_S
        try:
            async with asyncio.timeout(patience_s):
                await does(client, next(self.numbers))
            self.outcomes["answered"] += 1
        except TimeoutError:
            self.outcomes["left"] += 1
        except CoordinatorError as error:
            self.outcomes[error.reason] += 1

    def _call(self, number: int) -> Any:
        from edge.core.types import Message
        from edge.rpc.client import CloudCall

        message = Message("user", f"{number}? " * 50)
        return CloudCall(f"soak:{number}", "soak", -1, f"p{number}", 1, (message,), 64, temperature=1.0)

    async def _complete(self, client: Any, number: int) -> None:
        await client.complete(self._call(number), CALL_S)

    async def _stream(self, client: Any, number: int) -> None:
        async for _ in client.stream_complete(self._call(number), CALL_S):
            pass

    async def _budget(self, client: Any, number: int) -> None:
        await client.get_budget("soak")

    async def _watch(self, client: Any, number: int) -> None:
        async for _ in client.watch_budget("soak"):
            return

    async def _step(self, client: Any, number: int) -> None:
        await client.open_step(f"soak-{number % 16}", 0, 8, 8, 0.3)


def sample(server: Server, metrics_url: str) -> list[float]:
    """The coordinator's process as it is now: open descriptors, threads, asyncio tasks, and resident MiB."""
    import psutil

    process = psutil.Process(server.pid)
    tasks = metric(metrics_url, "event_loop_tasks")
    return [process.num_fds(), process.num_threads(), round(tasks), process.memory_info().rss / 2**20]


def metric(url: str, name: str) -> float:
    """The value of a metric without labels."""
    with urlopen(url, timeout=10.0) as page:
        found = re.search(_METRIC.format(name=name), page.read().decode(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"the coordinator serves no metric {name}")
    return float(found.group(1))


async def at_rest(url: str) -> bool:
    """Wait until nothing runs and no budget is held; False when that does not happen."""
    end = asyncio.get_running_loop().time() + REST_TIMEOUT_S
    while asyncio.get_running_loop().time() < end:
        busy = [await asyncio.to_thread(metric, url, name) for name in ("calls_in_flight", "holds_open")]
        if not any(busy):
            await asyncio.sleep(5.0)  # idle connections to the upstream are closed after 2 s, checked every 2 s
            return True
        await asyncio.sleep(0.1)
    return False


async def soak(job: Mapping[str, Any], server: Server, url: str, cloud: FaultyCloud, tokens: Sequence[str]) -> dict[str, Any]:
    """Periods of load with a sample after each."""
    crowd, samples, rested = Crowd(services.address_of(server), tokens, random.Random(job["seed"])), [], True
    stretch_s = max(1.0, 60.0 * job["minutes"] / job["looks"] - 5.0)
    for number in range(job["looks"]):
        goes = asyncio.create_task(_come_and_go(cloud, stretch_s))
        await crowd.work(stretch_s)
        await goes
        gc.collect()  # gRPC closes a channel's connection when the last of its calls is collected
        rested = await at_rest(url) and rested
        samples.append(await asyncio.to_thread(sample, server, url))
        print(f"sample {number + 1} of {job['looks']}: {samples[-1]}", flush=True)
    return {"looks": samples, "rested": rested, "outcomes": dict(crowd.outcomes), "asked": cloud.asked}


async def _come_and_go(cloud: FaultyCloud, seconds: float) -> None:
    """Twice in each stretch it is away for a moment; at the end it is there."""
    for _ in range(2):
        await asyncio.sleep(max(0.0, seconds / 3 - AWAY_S))
        cloud.go()
        await asyncio.sleep(AWAY_S)
        await cloud.come()


async def measured(job: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Run a cloud, a coordinator and a crowd of devices."""
    state, port, metrics = scratch / "state", free_port(), free_port()
    names = [f"soak-{number}" for number in range(DEVICES)]
    tokens = [_token_file(scratch, name, text) for name, text in zip(names, services.device_tokens(state, names), strict=True)]
    breaker = {"first_pause_s": 0.2, "longest_pause_s": 0.5}
    values = services.settings(state, port, metrics_port=metrics, breaker=breaker, max_concurrency=8, deadline_s=5.0)
    cloud = FaultyCloud(port)
    await cloud.come()
    with services.serving(values, scratch) as server:
        try:
            return await soak(job, server, f"http://127.0.0.1:{metrics}/metrics", cloud, tokens)
        finally:
            cloud.go()


def _token_file(folder: Path, name: str, token: str) -> str:
    path = folder / f"{name}.token"
    path.touch(mode=0o600)
    path.write_text(token, encoding="utf-8")
    return str(path)


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Soak, then read the books."""
    from coordinator.ledger.verify import verify_file

    began = time.monotonic()
    with scratch_folder(job) as scratch:
        result = asyncio.run(measured(job, scratch))
        report = verify_file(scratch / "state" / LEDGER_FILE)
    return result | {"seconds": time.monotonic() - began, "differences": report.difference_count, "open": report.open_attempts}
