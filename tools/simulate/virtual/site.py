"""A coordinator in the simulated world: real broker, controller, handlers and services over simulated disk, upstream and network."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

from coordinator.app import Parts, assemble
from coordinator.calls.admission import Gate, Turnstile
from coordinator.calls.prices import Price
from coordinator.calls.upstreams import Upstream, UpstreamTable
from coordinator.config import AuthConfig, ServerConfig
from coordinator.endpoint.api import ChatApi
from coordinator.ledger.stores.store import LedgerStore
from coordinator.ledger.verify import verify
from coordinator.providers.provider import CloudProvider
from coordinator.service.access import ListenerAccess
from coordinator.service.admin_api import AdminApi
from coordinator.service.authentication import Authenticator, FailureLimiter, Identity
from coordinator.service.budget_watch import SHARED_PAUSE_S, BudgetNotifier
from coordinator.service.device_api import DeviceApi
from coordinator.service.methods import Boundary, bind
from coordinator.service.reload import apply_config
from coordinator.service.server import ADMIN_SERVICE, DEVICE_SERVICE, LASTING, device_caller, the_identity
from coordinator.service.tokens import TokenAuthority, TokenStore
from edge.core.errors import CoordinatorUnavailable, NotFound
from tools.simulate.virtual.chat import ChatHandler
from tools.simulate.virtual.disk import Disk, DiskError, DiskStore
from tools.simulate.virtual.loop import Host, SeededLoop, VirtualClock
from tools.simulate.virtual.network import Network, ServiceEndpoint

DRAIN_GRACE_S = 1.0
RESTART_S = 0.5
NOWHERE = Path("/nonexistent")
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Site:
    """The coordinator's place. `endpoint` and `admin_endpoint` are those that serve now, `host` the process that runs or is starting
    and `parts` what it is made of, or None while it is down."""

    loop: SeededLoop
    disk: Disk
    network: Network
    upstream: CloudProvider
    clock: VirtualClock
    config: ServerConfig
    slots: int
    max_queue: int
    max_output_tokens: int = 64
    max_streams: int = 64
    shared_pause_s: float = SHARED_PAUSE_S
    host: Host | None = None
    endpoint: ServiceEndpoint | None = None
    admin_endpoint: ServiceEndpoint | None = None
    parts: Parts | None = None
    gate: Gate | None = None
    starts: int = 0
    kills: int = 0
    taken: dict[str, set[str]] = field(default_factory=dict)
    """Tasks that were taken away from a device, by its name."""

    def start(self) -> None:
        """Begin another process run."""
        self.starts += 1
        self.host = Host(f"coordinator {self.starts}", self.loop)
        self.host.spawn(self._run(self.host), "start")

    def kill(self) -> None:
        """As kill -9 does, in the middle of anything; what is not on the disk is gone."""
        host, endpoint = self.host, self.endpoint
        if host is None:
            return
        self.kills += 1
        self.host = self.endpoint = self.parts = None
        admin, self.admin_endpoint = self.admin_endpoint, None
        host.die()
        self.loop.call_soon(self.disk.crash)
        for broken in (endpoint, admin):
            if broken is not None:
                self.loop.call_soon(broken.connections_break)

    def stop(self, grace_s: float) -> asyncio.Task[None] | None:
        """As SIGTERM does: admit nothing, settle, and cut what does not end within the grace. None while it is down."""
        return None if self.host is None else self.host.spawn(self._drain(grace_s), "drain")

    async def _drain(self, grace_s: float) -> None:
        if self.parts is not None:
            self.parts.device_api.stop_admitting()
            await self.parts.broker.drain(grace_s)

    def reload(self, config: ServerConfig) -> bool:
        """As SIGHUP does: hold later calls and steps to this configuration. False when only the next process run will."""
        self.config = config
        if self.parts is not None:
            apply_config(config, _tariffs(config), self.parts)
        return self.parts is not None

    def elsewhere(self, write: Callable[[LedgerStore], Awaitable[object]]) -> None:
        """As another replica on the same ledger writes: this one learns of it only by reading. Nothing while it is down."""
        if self.host is not None and self.parts is not None:
            self.host.spawn(_unless_unwritable(write(self.parts.store)), "another replica's write")

    def _drain_and_restart(self, grace_s: float | None) -> None:
        """What an administrator's word does, with a service manager that starts the process again."""
        host, draining = self.host, self.stop(DRAIN_GRACE_S if grace_s is None else grace_s)

        def ended() -> None:
            if self.host is host:
                self.kill()
                self.network.later(RESTART_S, lambda: None if self.host is not None else self.start())

        if draining is not None:
            draining.add_done_callback(lambda _: self.network.later(0.0, ended), context=contextvars.Context())

    async def _run(self, host: Host) -> None:
        store = await _insist(lambda: DiskStore.open(self.disk, self.clock.now()))
        config = self.config
        upstream = Upstream(
            alias="default",
            provider=self.upstream,
            model="m",
            price=_tariffs(config)["default"],
            gate=Gate("default", self.slots, self.max_queue),
            deadline_s=config.effective_upstreams["default"].deadline_s,
            max_output_tokens=self.max_output_tokens,
        )
        self.gate = upstream.gate
        self.parts = parts = assemble(
            config,
            store,
            UpstreamTable({"default": upstream}),
            self.clock,
            tokens=TokenAuthority(TokenStore(NOWHERE), AuthConfig(), self.clock),
            verify=lambda: store.transact(lambda ledger: verify(ledger.tables)),  # type: ignore[arg-type]
            begin_drain=self._drain_and_restart,
            notifier=BudgetNotifier(self.shared_pause_s),
        )
        host.spawn(parts.follow(), "budget notifier")
        await _insist(parts.load)
        self.endpoint = self._serve(
            host, parts.device_api, "device", Turnstile("requests run", config.service.max_rpcs), self.max_streams
        )
        self.endpoint.add_generic_rpc_handlers((self._chats(parts),))
        self.admin_endpoint = self._serve(host, parts.admin_api, "admin", Turnstile("requests run", 64), 64)
        await parts.upkeep.run()

    def _serve(
        self, host: Host, api: DeviceApi | AdminApi, role: Literal["device", "admin"], requests: Turnstile, max_streams: int
    ) -> ServiceEndpoint:
        """An endpoint of this host. Whoever connects is on this machine, and a device is the one that it says it is."""
        service, caller = (DEVICE_SERVICE, device_caller) if role == "device" else (ADMIN_SERVICE, the_identity)
        tokens, limiter = TokenAuthority(TokenStore(NOWHERE), AuthConfig(), self.clock), FailureLimiter(self.clock, 20)
        access = _Access(Authenticator(tokens, AuthConfig(), limiter, self.clock, local_role=role), self)
        streams = Turnstile("streams are open", max_streams)
        boundary = Boundary(access, caller, requests, streams, self.config.service.max_message_bytes)
        endpoint = ServiceEndpoint(host, self.network, "unix:")
        endpoint.add_generic_rpc_handlers((bind(service, api, boundary, LASTING),))
        return endpoint

    def _chats(self, parts: Parts) -> ChatHandler:
        """The chat endpoint. It is reached by the same connections; a device has the rights to all tasks that are configured."""
        run, numbers = self.starts, count(1)
        api = ChatApi(parts.broker, parts.fleet, parts.upstreams, self.clock, lambda: f"http-{run}-{next(numbers)}")
        return ChatHandler(api, Turnstile("requests run", self.config.service.max_rpcs), self.clock, self.tasks_of)

    def tasks_of(self, device: str) -> frozenset[str]:
        """The tasks that were not taken away from a device."""
        return frozenset(self.config.tasks) - self.taken.get(device, set())


class _Access(ListenerAccess):
    """Also holds each device to the tasks that were not taken away from it."""

    def __init__(self, authenticator: Authenticator, site: Site) -> None:
        super().__init__(authenticator)
        self._site = site

    def admit(self, service: str, context: Any) -> Identity:
        """See `ListenerAccess`."""
        identity = super().admit(service, context)
        taken = self._site.taken.get(identity.device)
        return replace(identity, tasks=self._site.tasks_of(identity.device)) if taken else identity


async def _unless_unwritable(writing: Awaitable[object]) -> None:
    """An unwritten `disable` of a device that nobody knows yet leaves nothing to `enable` either."""
    with suppress(CoordinatorUnavailable, NotFound):
        await writing


async def _insist(read: Callable[[], Awaitable[T]]) -> T:
    """What the ledger says, asked again and again while the disk does not let it."""
    while True:
        try:
            return await read()
        except (CoordinatorUnavailable, DiskError):
            await asyncio.sleep(0.5)


def _tariffs(config: ServerConfig) -> dict[str, Price]:
    price = config.effective_upstreams["default"].constant_price
    assert price is not None
    return {"default": Price(*price)}
