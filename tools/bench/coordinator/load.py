"""The load on a service, in a process of its own whose processor time is not counted; that of the services is, over exactly the measured
seconds. Calls belong to a learning step that the device has opened, each with its own prompt, so that every one is really made, held and
settled.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.bench.mock_cloud import HEAD_END
from tools.bench.processes import cpu_s

PROMPT = (
    "Compare the numbers below, explain which is the greater, and say how you know it. Answer in at most three sentences. " * 5
)
MAX_OUTPUT_TOKENS = 128
PLANNED_PROMPTS = 10_000_000
MODEL = "default"
CALLS_PATH = "/v1/chat/completions"
Act = Callable[[int, int], Awaitable[None]]
"""One request: (worker, number)."""


class GrpcService:
    """DeviceService: one channel for each device; worker w is device w modulo devices. `acked` is `device|key` of each answered call.

    Not `in_step`: its calls belong to no learning step, as those of the HTTP endpoint.
    """

    def __init__(self, address: str, tokens: Sequence[str], devices: Sequence[str], phase: str, *, in_step: bool = True) -> None:
        import grpc

        from edge.rpc.v1 import device_pb2_grpc

        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(address, options) for _ in tokens]
        self.stubs = [device_pb2_grpc.DeviceServiceStub(channel) for channel in channels]
        self.metadata = [(("authorization", f"Bearer {token}"),) for token in tokens]
        self.task = f"bench-{phase}"
        self._devices = devices
        self._step = 0 if in_step else None
        self.acked: list[str] = []

    async def prepare(self) -> None:
        """Open a step on every device."""
        from edge.rpc.v1 import step_pb2

        request = step_pb2.OpenStepRequest(task=self.task, step=0, planned_prompts=PLANNED_PROMPTS, group_size=8)
        for stub, metadata in zip(self.stubs, self.metadata, strict=True):
            await stub.OpenStep(request, metadata=metadata)

    def request(self, number: int) -> Any:
        """The request of a call."""
        from edge.rpc.v1 import call_pb2

        message = call_pb2.ChatMessage(role=call_pb2.ROLE_USER, content=f"{name_of(self.task, number)}. {PROMPT}")
        return call_pb2.CompleteRequest(
            call_key=f"{self.task}:{number}",
            task=self.task,
            step=self._step,
            prompt_id=f"p{number}",
            help_units=1,
            messages=[message],
            max_output_tokens=MAX_OUTPUT_TOKENS,
            sampling=call_pb2.SamplingOptions(temperature=1.0),
        )

    async def call(self, worker: int, number: int) -> None:
        """Complete."""
        at = worker % len(self.stubs)
        reply = await self.stubs[at].Complete(self.request(number), metadata=self.metadata[at], timeout=60.0)
        if self._devices:
            self.acked.append(f"{self._devices[at]}|{reply.completion.call_key}")

    async def budget(self, worker: int, number: int) -> None:
        """GetBudget."""
        from edge.rpc.v1 import budget_pb2

        at = worker % len(self.stubs)
        await self.stubs[at].GetBudget(budget_pb2.GetBudgetRequest(task=self.task), metadata=self.metadata[at])

    async def open_numbered(self, worker: int, number: int) -> None:
        """OpenStep of a separate task, which `close_numbered` closes."""
        from edge.rpc.v1 import step_pb2

        at = number % len(self.stubs)
        request = step_pb2.OpenStepRequest(task=f"{self.task}-{number}", step=0, planned_prompts=64, group_size=8)
        await self.stubs[at].OpenStep(request, metadata=self.metadata[at])

    async def close_numbered(self, worker: int, number: int) -> None:
        """CloseStep."""
        from edge.rpc.v1 import step_pb2

        at = number % len(self.stubs)
        request = step_pb2.CloseStepRequest(
            task=f"{self.task}-{number}", step=0, total_units=512, help_units=100, uncalled_units=100
        )
        await self.stubs[at].CloseStep(request, metadata=self.metadata[at])


class BudgetRefused(Exception):
    """The service says that a budget is used up."""


class HttpService:
    """OpenAI's chat completions: one keep-alive connection for each worker; worker w is token w modulo tokens. `acked` is `device|key` of
    each answered call, where there are devices."""

    def __init__(self, port: int, tokens: Sequence[str], devices: Sequence[str], phase: str) -> None:
        self._port = port
        self._authorizations = [f"Authorization: Bearer {token}\r\n" if token else "" for token in tokens or ("",)]
        self._devices = devices
        self._phase = phase
        self._streams: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self.acked: list[str] = []

    async def call(self, worker: int, number: int) -> None:
        """One completion. Raises BudgetRefused, and RuntimeError on any other status but 200."""
        if worker not in self._streams:
            self._streams[worker] = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams[worker]
        at = worker % len(self._authorizations)
        message = {"role": "user", "content": f"{name_of(self._phase, number)}. {PROMPT}"}
        request = {"model": MODEL, "messages": [message], "max_tokens": MAX_OUTPUT_TOKENS, "temperature": 1.0}
        body = json.dumps(request).encode()
        head = f"POST {CALLS_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\n{self._authorizations[at]}Content-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode("ascii") + body)
        status, answer = await _answer(reader)
        if status != 200:
            refused = 400 <= status < 500 and b"budget" in answer.lower()
            raise (BudgetRefused if refused else RuntimeError)(f"HTTP status {status}: {answer[:200]!r}")
        reply = json.loads(answer)
        if self._devices:
            self.acked.append(f"{self._devices[at]}|{reply['edge']['call_key']}")


def name_of(phase: str, number: int) -> str:
    """How the prompt of a call begins: no two are equal."""
    return f"{phase} {number}"


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of a response."""
    head = await reader.readuntil(HEAD_END)
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value.strip().lower() for name, _, value in (line.partition(":") for line in lines)}
    status = int(first.split(" ")[1])
    if headers.get("transfer-encoding") != "chunked":
        return status, await reader.readexactly(int(headers.get("content-length", "0")))
    pieces = []
    while size := int((await reader.readline()).strip(), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return status, b"".join(pieces)


@dataclass(slots=True)
class LoadMeter:
    """Processor seconds of the watched processes and of this one, and the wall clock, since `begin`."""

    watch: Mapping[str, int]
    _before: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """The measured seconds begin."""
        self._before = self._now()

    def read(self) -> dict[str, float]:
        """Seconds since."""
        return {name: value - self._before[name] for name, value in self._now().items()}

    def _now(self) -> dict[str, float]:
        own = {"wall": time.perf_counter(), "load": time.process_time()}
        return own | {name: cpu_s(pid) for name, pid in self.watch.items()}


@dataclass(slots=True)
class CallTally:
    """Times of successful calls in the measured period, and errors at any time. `enough` is set by an error or at `wanted`
    times."""

    measuring: bool = False
    wanted: int = 0
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    seconds: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    async def one(self, act: Act, worker: int, number: int) -> None:
        """Do one and note it."""
        began = time.perf_counter()
        try:
            await act(worker, number)
        except Exception as error:  # anything but success is counted, and fails the part in the end
            self.errors[f"{type(error).__name__}: {str(error)[:200]}"] += 1
            self.enough.set()
            return
        if self.measuring:
            self.seconds.append(time.perf_counter() - began)
            if len(self.seconds) == self.wanted:
                self.enough.set()

    def summed(self, spent: Mapping[str, float]) -> dict[str, Any]:
        """As JSON."""
        return {"calls": len(self.seconds), "spent_s": dict(spent), "ms": summary(self.seconds), "errors": dict(self.errors)}


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in ms; empty without samples."""
    if len(seconds) < 2:
        return {}
    cuts = statistics.quantiles(seconds, n=1000, method="inclusive")
    return {name: 1e3 * cuts[at] for name, at in (("p50", 499), ("p90", 899), ("p99", 989))} | {
        "mean": 1e3 * statistics.fmean(seconds)
    }


async def for_a_while(
    work: Callable[[int, CallTally, asyncio.Event], Awaitable[None]], count: int, job: Mapping[str, Any]
) -> dict[str, Any]:
    """`count` workers for `warmup_s`, then measured for `seconds`, or for `calls` where that is given instead, until the event is set."""
    tally, meter, over = CallTally(wanted=job.get("calls", 0)), LoadMeter(job["watch"]), asyncio.Event()
    workers = [asyncio.ensure_future(work(number, tally, over)) for number in range(count)]
    await asyncio.sleep(job["warmup_s"])
    meter.begin()
    tally.measuring = True
    await (tally.enough.wait() if tally.wanted else asyncio.sleep(job["seconds"]))
    tally.measuring = False
    result = tally.summed(meter.read())
    over.set()
    await asyncio.gather(*workers)
    return result | {"errors": dict(tally.errors)}


async def unary(act: Act, job: Mapping[str, Any]) -> dict[str, Any]:
    """`concurrency` workers that do one after the other."""
    numbers = itertools.count()

    async def work(worker: int, tally: CallTally, over: asyncio.Event) -> None:
        while not over.is_set():
            await tally.one(act, worker, next(numbers))

    return await for_a_while(work, job["concurrency"], job)


async def exactly(act: Act, count: int, concurrency: int, watch: Mapping[str, int]) -> dict[str, Any]:
    """Numbers 0 to count - 1, once each."""
    tally, meter, numbers = CallTally(measuring=True), LoadMeter(watch), iter(range(count))

    async def work(worker: int) -> None:
        for number in numbers:
            await tally.one(act, worker, number)

    meter.begin()
    await asyncio.gather(*(work(worker) for worker in range(concurrency)))
    return tally.summed(meter.read())


@dataclass(slots=True)
class Outcomes:
    """What became of calls, by number: answered, refused for a budget, or neither."""

    answered: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    async def one(self, act: Act, worker: int, number: int) -> bool:
        """Do one and note it; whether it was answered."""
        try:
            await act(worker, number)
        except BudgetRefused:
            self.refused.append(number)
        except Exception as error:  # counted, and judged by the reader
            self.errors[f"{type(error).__name__}: {str(error)[:200]}"] += 1
        else:
            self.answered.append(number)
            return True
        return False


async def burst(service: HttpService, job: Mapping[str, Any]) -> dict[str, Any]:
    """`count` calls at once, each on a connection of its own, and when all are over as many one after the other as are answered."""
    outcomes, count, began = Outcomes(), job["count"], time.perf_counter()
    await asyncio.gather(*(outcomes.one(service.call, number, number) for number in range(count)))
    seconds, at_once = time.perf_counter() - began, len(outcomes.answered)
    await asyncio.sleep(job["rest_s"])
    number = count
    while await outcomes.one(service.call, 0, number) and number < 2 * count:
        number += 1
    told = {"answered": outcomes.answered, "refused": outcomes.refused, "errors": dict(outcomes.errors)}
    return {**told, "answered_at_once": at_once, "seconds": seconds}


async def latency(service: GrpcService | HttpService, job: Mapping[str, Any]) -> dict[str, Any]:
    """One request at a time, in slices that alternate between the service and the upstream itself."""
    direct = HttpService(job["direct_port"], (), (), "direct") if job.get("direct_port") else None
    through, upstream, numbers = CallTally(measuring=True), CallTally(measuring=True), itertools.count()
    meter = LoadMeter(job["watch"])
    for _ in range(job["warmup_calls"]):
        await service.call(0, next(numbers))
    meter.begin()
    for _ in range(job["slices"]):
        for _ in range(job["slice_calls"]):
            await through.one(service.call, 0, next(numbers))
        for _ in range(job["slice_calls"] if direct else 0):
            assert direct is not None
            await upstream.one(direct.call, 0, next(numbers))
    return through.summed(meter.read()) | {"direct_ms": summary(upstream.seconds)}


async def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the measurement of the job."""
    phase = job["phase"]
    service: Any = (
        GrpcService(job["target"], job["tokens"], job["devices"], phase, in_step=job["kind"] != "serving")
        if job["protocol"] == "grpc"
        else HttpService(job["target"], job["tokens"], job["devices"], phase)
    )
    if job["steps"]:
        await service.prepare()
    gc.collect()
    gc.freeze()
    match job["kind"]:
        case "latency":
            result = await latency(service, job)
        case "calls" | "serving":
            result = await unary(service.call, job)
        case "budget":
            result = await unary(service.budget, job)
        case "close":
            await exactly(service.open_numbered, job["count"], job["concurrency"], {})
            result = await exactly(service.close_numbered, job["count"], job["concurrency"], job["watch"])
        case "burst":
            result = await burst(service, job)
        case other:
            raise ValueError(f"unknown load {other!r}")
    return result | {"acked": getattr(service, "acked", [])}
