"""Real processes under faults: a coordinator over SQLite, an HTTP upstream that misbehaves and keeps a log, and devices under load.
The three logs go at the end to the same independent checker as in the simulation.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from coordinator.failpoints import VARIABLE
from edge.rpc.grpc_client import ClientPolicy, GrpcCoordinatorClient
from tests.simulate.summary import note
from tests.worlds.coordinator_process import CoordinatorProcess, command
from tests.worlds.loopback import answering
from tests.worlds.upstream_server import completion, delta, event
from tools.simulate.faults.checker import check
from tools.simulate.faults.device import Notebook, SimulatedDevice, last_questions
from tools.simulate.faults.fold import Rules
from tools.simulate.faults.log import DeviceEvent, DeviceLog
from tools.simulate.faults.terms import DrawnTaskTerms, DrawnTerms, History
from tools.simulate.faults.upstream import UpstreamEvent
from tools.simulate.faults.verdict import WorldVerdict

DUAL_LR = 0.05
FLEET_CAPS = (5_000, 2_000_000, 3_000_000)
DEVICE_CAPS = (2_000, 1_000_000, 1_500_000)
POLICY = ClientPolicy(connect_timeout_s=1.0, control_deadline_s=3.0, max_retries=4)
PATIENT = ClientPolicy(connect_timeout_s=20.0, control_deadline_s=30.0, max_retries=20)
DEADLINE_S, LEASE_MARGIN_S, SWEEP_S = 1.5, 1.0, 0.2
START_S = 60.0


class MisbehavingUpstream:
    """An OpenAI-compatible server. It misbehaves at `share` of the requests, in the ways of `mood` by turns; `on_request` receives the
    number of each request.
    """

    def __init__(self, rng: random.Random) -> None:
        self.log: list[UpstreamEvent] = []
        self.mood: tuple[str, ...] = ()
        self.share = 0.4
        self.on_request: Callable[[int], None] = lambda _: None
        self.base_url = ""
        self.acts: Counter[str] = Counter()
        self._rng = rng
        self._asked = 0
        self._turn = 0
        self._answered: dict[str, tuple[int, int]] = {}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Note it and behave."""
        body = await request.json()
        key = request.headers.get("Idempotency-Key", "")
        act = self._choose()
        self.acts[act] += 1
        if act == "busy":
            return web.json_response({"error": {"message": "later"}}, status=429, headers={"Retry-After": "0"})
        self._note(key, "received")
        self._asked += 1
        self.on_request(self._asked)
        if act == "reject":
            return web.json_response({"error": {"message": "no"}}, status=400)
        await asyncio.sleep(self._rng.uniform(0.0, 0.03))
        text = f"answer {len(self._answered)} to {body['messages'][-1]['content']} for {key.split('|')[0]}"
        usage = self._answered.setdefault(key, (self._rng.randint(5, 40), self._rng.randint(1, body["max_tokens"])))
        self._note(key, "executed", usage, text)
        return await self._respond(request, act, key, text, usage)

    async def _respond(self, request: web.Request, act: str, key: str, text: str, usage: tuple[int, int]) -> web.StreamResponse:
        if act == "hang":
            await asyncio.sleep(60.0)
        if act == "break":
            assert request.transport is not None
            request.transport.abort()
        if act == "garbage":
            return web.Response(body=b"{" * 50, content_type="application/json")
        if act == "error":
            return web.json_response({"error": {"message": "oh"}}, status=500)
        reported = {"overstate": (usage[0] * 50, usage[1] * 50), "understate": (1, 1)}.get(act, usage)
        usage_sent = None if act == "no_usage" else reported
        self._note(key, "answered", usage_sent)
        if (await request.json()).get("stream"):
            return web.Response(body=_events(text, usage_sent), content_type="text/event-stream")
        return web.json_response(_completion(text, usage_sent))

    def _choose(self) -> str:
        if not self.mood or self._rng.random() >= self.share:
            return "answer"
        self._turn += 1
        return self.mood[self._turn % len(self.mood)]

    def _note(self, key: str, what: str, usage: tuple[int, int] | None = None, text: str = "") -> None:
        self.log.append(UpstreamEvent(asyncio.get_running_loop().time(), key, what, False, usage, text))


def _completion(text: str, usage: tuple[int, int] | None) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return completion(choices=[choice], usage=_counted(usage))


def _events(text: str, usage: tuple[int, int] | None) -> bytes:
    """The answer as server-sent events, in two pieces."""
    middle = len(text) // 2
    events = [delta(text[:middle]), delta(text[middle:], "stop"), event(id="up", choices=[], usage=_counted(usage))]
    return b"".join([*events, b"data: [DONE]\n\n"])


def _counted(usage: tuple[int, int] | None) -> dict[str, int] | None:
    return usage and {"prompt_tokens": usage[0], "completion_tokens": usage[1]}


class Rig:
    """A coordinator process, its upstream and its devices, with the faults injected into them."""

    def __init__(self, folder: Path, upstream: MisbehavingUpstream, seed: int, devices: int) -> None:
        self.upstream = upstream
        self.process = CoordinatorProcess(folder, _settings(upstream))
        self.address = self.process.address
        self.kills = 0
        self.injected: Counter[str] = Counter()
        self.log: list[DeviceEvent] = []
        self._seed = seed
        self._notebooks = {f"d{number}": Notebook() for number in range(devices)}
        self._devices: list[SimulatedDevice] = []
        self._lives: list[asyncio.Task[None]] = []
        self._clients: list[GrpcCoordinatorClient] = []

    def load(self, steps: int = 10_000, prompts: int = 4) -> None:
        """Set the devices to work."""
        for number, (name, notebook) in enumerate(self._notebooks.items()):
            others = tuple(other for other in self._notebooks if other != name)
            client = self._client(name, POLICY)
            rng = random.Random(self._seed * 1000 + number)
            device = SimulatedDevice(
                others, notebook, DeviceLog(self.log, name), client, rng, steps=steps, prompts=prompts, pace=0.1
            )
            self._devices.append(device)
            self._lives.append(asyncio.create_task(device.live()))

    def _client(self, name: str, policy: ClientPolicy) -> GrpcCoordinatorClient:
        self._clients.append(GrpcCoordinatorClient(self.address, device_id=name, policy=policy))
        return self._clients[-1]

    async def start(self, failpoint: str = "") -> None:
        """Start the process, armed to die at a failpoint."""
        self.process.environment = {VARIABLE: failpoint} if failpoint else {}
        await self.process.start()

    async def dies_at(self, failpoint: str) -> None:
        """Start it armed, wait until it has killed itself there."""
        await self.start(failpoint)
        await self.is_killed(f"at {failpoint}")

    async def is_killed(self, how: str) -> None:
        """Wait until it was killed by a signal 9."""
        code = await asyncio.wait_for(self.process.process.wait(), START_S)
        assert code == -9, f"expected to be killed {how}, ended with {code}"
        self.kills += 1
        self.injected[f"killed {how}"] += 1

    async def settle_down(self) -> WorldVerdict:
        """End all faults: let the devices finish, let every lease expire, look up the outcome of every call, stop, and check everything."""
        self.upstream.mood, self.upstream.on_request = (), lambda _: None
        for device in self._devices:
            device.finish()
        await asyncio.wait_for(asyncio.gather(*self._lives), 120.0)
        await asyncio.sleep(DEADLINE_S + LEASE_MARGIN_S + 3 * SWEEP_S)
        for name, notebook in self._notebooks.items():
            await last_questions(notebook, DeviceLog(self.log, name), self._client(name, PATIENT))
        open_files = _open_files(self.process.process.pid)
        for client in self._clients:
            await client.aclose()
        await self.process.stop()
        return await self._judge(open_files)

    async def _judge(self, open_files: int) -> WorldVerdict:
        state = ("--state", str(self.process.state))
        code, stdout, stderr = await command("ledger", "verify", *state)
        assert code == 0, stdout + stderr
        code, stdout, stderr = await command("ledger", "export", *state)
        assert code == 0, stderr
        terms = DrawnTerms(tasks={"math": DrawnTaskTerms(dual_lr=DUAL_LR)}, caps={"fleet": FLEET_CAPS, "device": DEVICE_CAPS})
        rules = Rules(History(((float("-inf"), terms),)), hold_slack_ms=60_000)
        verdict = check([json.loads(line) for line in stdout.splitlines()], self.upstream.log, self.log, rules)
        verdict.check("I14", open_files < 100, f"{open_files} files are open at the end")
        self.injected.update({f"upstream {act}": count for act, count in self.upstream.acts.items() if act != "answer"})
        note("real processes", self.kills, sum(self.injected.values()), sum(verdict.checks.values()), len(verdict.violations))
        return verdict

    async def aclose(self) -> None:
        """Stop everything that still runs."""
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)
        for client in self._clients:
            await client.aclose()
        if hasattr(self.process, "process"):
            with contextlib.suppress(ProcessLookupError):
                self.process.process.kill()
            await self.process.process.communicate()


def _settings(upstream: MisbehavingUpstream) -> dict[str, Any]:
    alias = {
        "provider": "openai_compatible",
        "model": "m",
        "base_url": upstream.base_url,
        "price_in_uusd_per_mtok": 1_000_000,
        "price_out_uusd_per_mtok": 2_000_000,
        "deadline_s": DEADLINE_S,
    }
    budgets = {"fleet": _limits(FLEET_CAPS), "device": _limits(DEVICE_CAPS)}
    service = {"lease_margin_s": LEASE_MARGIN_S, "sweep_interval_s": SWEEP_S, "max_queue_wait_s": 2.0}
    return {"upstreams": {"default": alias}, "tasks": {"math": {"dual_lr": DUAL_LR}}, "budgets": budgets, "service": service}


def _limits(caps: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip(("calls_limit", "tokens_limit", "spend_limit_uusd"), caps, strict=True))


def _open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()) if Path("/proc").exists() else 0


@asynccontextmanager
async def rig(folder: Path, seed: int = 1, devices: int = 3) -> AsyncIterator[Rig]:
    """A rig whose upstream listens; its coordinator is not started yet."""
    upstream = MisbehavingUpstream(random.Random(seed))
    async with answering("/v1/chat/completions", upstream.handle) as url:
        upstream.base_url = f"{url}/v1"
        made = Rig(folder, upstream, seed, devices)
        try:
            yield made
        finally:
            await made.aclose()


@contextlib.contextmanager
def locked(ledger: Path) -> Any:
    """Another process's lock on the database, as seen from the coordinator."""
    with contextlib.closing(sqlite3.connect(ledger, isolation_level=None, timeout=10.0)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
