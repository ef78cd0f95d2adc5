"""A coordinator in the simulated world: the real broker, controller, handlers and servicer over the simulated disk, upstream and network.
Knows how it starts, dies and starts again; knows nothing of devices.
"""

from __future__ import annotations

import asyncio
from typing import Any

from coordinator.admission import Gate, Turnstile
from coordinator.api import Caller, DeviceApi
from coordinator.binding import Boundary, bind
from coordinator.broker import Broker, BrokerTerms
from coordinator.budgets import BudgetBook
from coordinator.config import BudgetsConfig, CoordinatorConfig
from coordinator.controller import StepController
from coordinator.fleet import Fleet, identify
from coordinator.guard import DEVICE_ID_KEY
from coordinator.pricing import Price
from coordinator.server import DEVICE_SERVICE, LASTING
from coordinator.upkeep import Upkeep
from coordinator.upstreams import Upstream, UpstreamTable
from coordinator.watch import BudgetBell, ring_changes
from edge.rpc.v1 import device_pb2
from tools.simulate.clock import VirtualClock
from tools.simulate.disk import Disk, DiskError, DiskStore
from tools.simulate.loop import Host, SeededLoop
from tools.simulate.network import Network, ServiceEndpoint
from tools.simulate.upstream import SimulatedUpstream

PRICE = Price(1_000_000, 2_000_000)
MAX_OUTPUT_TOKENS = 64


class Site:
    """Where the coordinator stands. `endpoint` is the one that serves now, or None while it is down."""

    def __init__(
        self,
        loop: SeededLoop,
        disk: Disk,
        network: Network,
        upstream: SimulatedUpstream,
        clock: VirtualClock,
        config: CoordinatorConfig,
        slots: int,
        max_queue: int,
    ) -> None:
        self.endpoint: ServiceEndpoint | None = None
        self.broker: Broker | None = None
        self.budgets: BudgetsConfig = config.budgets
        self.starts = 0
        self.kills = 0
        self._loop = loop
        self._disk = disk
        self._network = network
        self._upstream = upstream
        self._clock = clock
        self._config = config
        self._slots = slots
        self._max_queue = max_queue
        self._host: Host | None = None
        self._api: DeviceApi | None = None

    @property
    def host(self) -> Host | None:
        """The process that runs or is starting; None while it is down."""
        return self._host

    def start(self) -> None:
        """Begin another process run."""
        self.starts += 1
        self._host = Host(f"coordinator {self.starts}", self._loop)
        self._host.spawn(self._run(self._host), "start")

    def kill(self) -> None:
        """As kill -9 does, in the middle of anything; what is not on the disk is gone."""
        host, endpoint = self._host, self.endpoint
        if host is None:
            return
        self.kills += 1
        self._host = self.endpoint = self.broker = None
        host.die()
        self._loop.call_soon(self._disk.crash)
        if endpoint is not None:
            self._loop.call_soon(endpoint.connections_break)

    def stop(self, grace_s: float) -> asyncio.Task[None] | None:
        """As SIGTERM does: admit nothing, settle, and cut what does not end within the grace. None while it is down."""
        return None if self._host is None else self._host.spawn(self._drain(grace_s), "drain")

    async def _drain(self, grace_s: float) -> None:
        if self.broker is not None and self._api is not None:
            self._api.stop_admitting()
            await self.broker.drain(grace_s)

    async def _run(self, host: Host) -> None:
        bell = BudgetBell()
        store = await self._open()
        fleet = Fleet(store, self._clock)
        host.spawn(ring_changes(bell, store.changes(), fleet.heard), "budget bell")
        config = self._config.model_copy(update={"budgets": self.budgets})
        service = config.service
        upstream = Upstream(
            alias="default",
            provider=self._upstream,
            model="m",
            price=PRICE,
            gate=Gate("default", self._slots, self._max_queue),
            deadline_s=config.effective_upstreams["default"].deadline_s,
            max_output_tokens=MAX_OUTPUT_TOKENS,
        )
        book = BudgetBook(config.budgets)
        controller = StepController(store, config.effective_tasks, self._clock)
        terms = BrokerTerms(service.max_queue_wait_s, service.lease_margin_s, service.answer_cache)
        broker = Broker(store, UpstreamTable({"default": upstream}), controller, book, self._clock, terms)
        api = DeviceApi(broker, controller, fleet, device_pb2.ServiceLimits(), bell=bell)
        boundary = Boundary(_caller, api.requests, Turnstile("streams are open", 64), service.max_message_bytes)
        endpoint = ServiceEndpoint(host, self._network, "unix:")
        endpoint.add_generic_rpc_handlers((bind(DEVICE_SERVICE, api, boundary, LASTING),))
        self.endpoint, self.broker, self._api = endpoint, broker, api
        await Upkeep(store, book, config, self._clock, fleet).run()

    async def _open(self) -> DiskStore:
        """Open the ledger, again and again while the disk does not let it."""
        while True:
            try:
                return await DiskStore.open(self._disk, self._clock.now())
            except DiskError:
                await asyncio.sleep(0.5)


def _caller(context: Any, method: str) -> Caller:
    """The device that a simulated connection says it is."""
    claimed = next((str(value) for key, value in context.invocation_metadata() if key == DEVICE_ID_KEY), "")
    return Caller(identify(context.peer(), claimed), context.time_remaining())
