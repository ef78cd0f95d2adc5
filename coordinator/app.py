"""Puts a coordinator together and runs it. The only place that names concrete providers."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from coordinator.calls.admission import Gate, Turnstile
from coordinator.calls.breaker import Breaker
from coordinator.calls.broker import Broker
from coordinator.calls.prices import NO_PRICE, DatedPrices, Price, Tariff, published_prices
from coordinator.calls.rates import RateLimiter
from coordinator.calls.upstreams import Upstream, UpstreamTable
from coordinator.config import ServerConfig, UpstreamConfig
from coordinator.control.devices import Fleet
from coordinator.control.steps import StepController
from coordinator.control.upkeep import Upkeep
from coordinator.ledger.accounts import amount_text
from coordinator.ledger.budgets import BudgetBook
from coordinator.ledger.opening import open_store, verify_store
from coordinator.ledger.stores.store import LedgerStore
from coordinator.ledger.verify import VerifyReport
from coordinator.service.admin_api import AdminApi
from coordinator.service.budget_watch import BudgetNotifier, notify_changes
from coordinator.service.device_api import DeviceApi
from coordinator.service.reload import Changeable, Changes, apply_config, changes_of, same_upstreams
from coordinator.service.security import Security
from coordinator.service.server import AdminSide, CoordinatorServer
from coordinator.service.supervision import ServiceManager, parent_gone
from coordinator.service.telemetry import Sources, Telemetry
from coordinator.service.tls import ServerCertificates
from coordinator.service.tokens import TokenAuthority
from edge.core.clock import Clock, SystemClock
from edge.core.errors import ConfigError, EdgeError
from edge.core.plugins import Registry
from edge.rpc.v1 import device_pb2

if TYPE_CHECKING:
    from coordinator.providers.provider import CloudProvider

log = logging.getLogger(__name__)
YOUNG_VALUES = 20_000
ORPHAN_GRACE_S = 5.0
PROVIDERS = Registry(
    "provider",
    {
        "bundled": "coordinator.providers.bundled:BundledProvider",
        "openai_compatible": "coordinator.providers.openai_compatible:OpenAICompatibleProvider",
        "anthropic": "coordinator.providers.anthropic:AnthropicProvider",
        "recorded": "coordinator.providers.recorded:RecordedProvider",
    },
)


@dataclass(frozen=True, slots=True)
class Serving:
    """A started coordinator: where it listens."""

    addresses: tuple[str, ...]
    state_dir: Path
    upstreams: tuple[str, ...]
    """The aliases that a call may name."""
    admin_addresses: tuple[str, ...] = ()
    """Where administrators connect."""
    metrics_url: str = ""
    """Empty where there are none."""
    console_url: str = ""
    openai_url: str = ""


@dataclass(frozen=True, slots=True)
class Parts(Changeable):
    """All of a coordinator between its store and its listeners, the same where it serves and where it is simulated."""

    store: LedgerStore
    fleet: Fleet
    broker: Broker
    device_api: DeviceApi
    admin_api: AdminApi

    async def load(self) -> None:
        """Read what the ledger knows before anything is served: who is disabled, and limits that were set at run time."""
        await self.fleet.refresh()
        self.book.take_limits(await self.store.list_set_limits())

    async def follow(self) -> None:
        """Notify of what any replica changes, until the store is closed. Begins before `load`, so that nothing between them is missed."""
        await notify_changes(self.notifier, self.store.changes(), self.fleet.heard)


def assemble(
    config: ServerConfig,
    store: LedgerStore,
    upstreams: UpstreamTable,
    clock: Clock,
    *,
    tokens: TokenAuthority,
    verify: Callable[[], Awaitable[VerifyReport]],
    begin_drain: Callable[[float | None], None],
    openai_url: Callable[[], str] = lambda: "",
    notifier: BudgetNotifier | None = None,
) -> Parts:
    """Put the parts together; nothing is read and nothing runs yet."""
    service, notifier = config.service, notifier or BudgetNotifier()
    fleet = Fleet(store, clock)
    book = BudgetBook(config.budgets, config.fleet.fairness_floor)
    controller = StepController(store, config.effective_tasks, clock)
    limiter = RateLimiter(config.rates, clock)
    broker = Broker(store, upstreams, controller, book, clock, service, limiter)
    most_tokens = max(upstream.max_output_tokens for upstream in config.effective_upstreams.values())
    device_api = DeviceApi(
        broker,
        controller,
        fleet,
        device_pb2.ServiceLimits(max_message_bytes=service.max_message_bytes, max_output_tokens=most_tokens),
        notifier=notifier,
        front_ends=frozenset(config.auth.user_headers),
        heartbeat_s=service.watch_heartbeat_s,
    )
    admin_api = AdminApi(store, broker, fleet, upstreams, book, tokens, clock, verify, begin_drain, openai_url)
    upkeep = Upkeep(store, book, config, clock, fleet)
    return Parts(book, controller, limiter, upstreams, upkeep, notifier, store, fleet, broker, device_api, admin_api)


def build_upstreams(config: ServerConfig) -> dict[str, Upstream]:
    """The upstreams by name. Raises ConfigError."""

    def build(alias: str, upstream: UpstreamConfig) -> Upstream:
        return Upstream(
            alias=alias,
            provider=_build_provider(upstream, alias),
            model=upstream.model,
            price=tariff_of(upstream),
            gate=Gate(alias, upstream.max_concurrency, config.service.max_queue),
            deadline_s=upstream.deadline_s,
            max_output_tokens=upstream.max_output_tokens,
            breaker=Breaker(upstream.breaker, alias),
        )

    return {alias: build(alias, upstream) for alias, upstream in config.effective_upstreams.items()}


def tariff_of(upstream: UpstreamConfig) -> Tariff:
    """What an upstream's calls cost: as configured, else as published for its model at its host, else unknown (NO_PRICE)."""
    if upstream.prices:
        return DatedPrices.of(upstream.prices)
    if upstream.constant_price is not None:
        return Price(*upstream.constant_price)
    from coordinator.providers.anthropic import DEFAULT_BASE_URL

    asked = upstream.base_url or (DEFAULT_BASE_URL if upstream.provider == "anthropic" else "")
    return published_prices().get((urlsplit(asked).hostname or "", upstream.model), NO_PRICE)


def _build_provider(upstream: UpstreamConfig, alias: str) -> CloudProvider:
    key = "provider"
    try:
        build = PROVIDERS.load(upstream.provider)
        key = "base_url" if upstream.base_url else key
        provider: CloudProvider = build(upstream, alias)
    except EdgeError as error:
        at = f"{alias}.{key}" if key == "provider" or str(error).startswith(key) else alias
        raise ConfigError(f"upstreams.{at}: {str(error).removeprefix(f'{key} ')}", hint=error.hint) from error
    return provider


class Coordinator:
    """A whole coordinator: `async with Coordinator(config) as it:` serves until `await it.drain()` or the block ends."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        clock: Clock | None = None,
        store: LedgerStore | None = None,
        upstreams: Mapping[str, Upstream] | None = None,
    ) -> None:
        if not config.listen:
            raise ConfigError("nowhere to listen", hint="`listen` is empty: take it out, or name addresses")
        self.config = self._started = config
        self.state_dir = config.state_folder
        self._clock = clock or SystemClock()
        self._store = store
        self._upstreams = upstreams
        self._resources = AsyncExitStack()
        self._server: CoordinatorServer | None = None
        self._draining: asyncio.Task[None] | None = None
        self._manager = ServiceManager()
        self._openai_url = ""
        self.drain_begun = asyncio.Event()

    async def __aenter__(self) -> Serving:
        """Open the ledger, start the providers, listen."""
        try:
            return await self._start()
        except BaseException:
            await self._resources.aclose()
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        """Drain and close everything."""
        await self.drain(self.config.service.drain_grace_s)
        await self._resources.aclose()

    def reload(self, config: ServerConfig) -> Changes:
        """Take limits, tasks, rates and prices of a changed configuration; returns what was taken and what needs a restart. Nothing changes
        when it raises StateError or ConfigError. TLS files and tokens are followed without this; here they are only tried.
        """
        check_security(config)
        same = same_upstreams(self._started, config)
        apply_config(config, {name: tariff_of(config.effective_upstreams[name]) for name in same}, self._parts)
        changes = changes_of(self._started, self.config, config, self._parts.book.rows)
        waiting = {name: was for name, was in self.config.effective_upstreams.items() if name not in same}
        self.config = config.model_copy(update={"upstreams": {**config.effective_upstreams, **waiting}})
        return changes

    def read_again(self, read: Callable[[], ServerConfig]) -> None:
        """Reload what `read` gives, and report in one line what changed; what cannot be read changes nothing and is reported, too."""
        try:
            changes = self.reload(read())
        except EdgeError as error:
            log.error("the configuration stays as it was: %s", error.with_hint)
        else:
            log.warning("configuration read again: %s", changes)

    @property
    def in_flight(self) -> int:
        """How many calls run or wait."""
        return self._parts.broker.in_flight

    async def hurry(self) -> None:
        """Cut what still runs; it is charged as in doubt. Ends a drain that is under way."""
        await self._parts.broker.drain(0.0)

    async def drain(self, grace_s: float) -> None:
        """NOT_SERVING, stop admitting, settle, stop listening. Called again, it waits for the end of the first one."""
        self.begin_drain(grace_s)
        if self._draining is not None:
            await asyncio.shield(self._draining)

    def begin_drain(self, grace_s: float | None = None) -> None:
        """Start to drain (None: with the configured grace) unless that has begun or nothing is served."""
        if self._server is not None and self._draining is None:
            grace_s = self.config.service.drain_grace_s if grace_s is None else grace_s
            self._draining = asyncio.create_task(self._server.drain(self._parts.broker.drain, grace_s), name="drain")
            self.drain_begun.set()

    async def _start(self) -> Serving:
        config = self.config
        self._telemetry = telemetry = Telemetry(config, self._clock)
        self._resources.push_async_callback(telemetry.aclose)
        if config.tls is not None and config.tls.note:
            log.warning("%s", config.tls.note)
        security = Security(config, self.state_dir, self._clock)
        opened = self._store or await open_store(config, self._clock)
        self._resources.push_async_callback(opened.aclose)
        upstreams = telemetry.upstreams(self._upstreams if self._upstreams is not None else build_upstreams(config))
        table = UpstreamTable(upstreams, config.aliases)
        self._resources.push_async_callback(table.aclose)
        self._parts = parts = assemble(
            config,
            telemetry.store(opened),
            table,
            self._clock,
            tokens=security.tokens,
            verify=partial(verify_store, opened, config),
            begin_drain=self.begin_drain,
            openai_url=lambda: self._openai_url,
        )
        self._in_background(parts.follow(), "budget-notifier")
        await parts.load()
        await table.start()
        self._in_background(parts.upkeep.run(), "upkeep")
        admin = None
        if config.admin_addresses:
            admin = AdminSide(parts.admin_api, security.listener("admin"), config.admin_addresses)
        sources = Sources(opened, parts.broker, parts.book, table, parts.admin_api, security.handshakes)
        urls = await self._start_sides(sources, security)
        places = Turnstile("requests run", config.service.max_rpcs)
        self._openai_url = await self._start_endpoint(parts, table, security, places)
        server = CoordinatorServer(
            parts.device_api, config.listen, config.service, security.listener(), admin, telemetry.rpcs, places
        )
        addresses = await server.start()
        self._server = server
        self.serving = Serving(addresses, self.state_dir, table.aliases, server.admin_addresses, *urls, self._openai_url)
        return self.serving

    async def _start_endpoint(self, parts: Parts, table: UpstreamTable, security: Security, places: Turnstile) -> str:
        """Listen for OpenAI's clients; the base URL, "" for nowhere. It is closed after a drain has settled what ran."""
        config = self.config
        if config.openai_listen is None:
            return ""
        from coordinator.endpoint.api import ChatApi
        from coordinator.endpoint.listener import ChatEndpoint

        api = ChatApi(parts.broker, parts.fleet, table, self._clock)
        endpoint = ChatEndpoint(api, security.authenticator(), config, places, self._clock, self._telemetry.rpcs)
        listener = endpoint.listener(config.openai_listen)
        url = await listener.start()
        self._resources.push_async_callback(listener.aclose)
        return f"{url}/v1"

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run it until everything is closed."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_log_failure)
        self._resources.push_async_callback(_cancelled, task)

    async def _start_sides(self, sources: Sources, security: Security) -> tuple[str, str]:
        """Measure, and listen on the side ports; where metrics and console are, "" for nowhere."""
        self._in_background(self._telemetry.run(sources.store, self._manager.alive), "telemetry")
        if sources.handshakes is not None:
            self._in_background(sources.handshakes.run(), "tls-handshakes")
        urls: dict[str, str] = {}
        for listen, port in self._telemetry.side_ports(sources, security).items():
            urls[listen] = await port.start()
            self._resources.push_async_callback(port.aclose)
        metrics = urls.get(self.config.metrics_listen or "", "")
        return f"{metrics}/metrics" if metrics else "", urls.get(self.config.console_listen or "", "")


def check_security(config: ServerConfig) -> None:
    """Try the TLS files, as every listener will use them. Raises ConfigError."""
    if config.tls is not None:
        ServerCertificates(config.tls, SystemClock(), role="device").credentials()
        ServerCertificates(config.tls, SystemClock(), role="admin").credentials()


def notes_on(config: ServerConfig) -> list[str]:
    """What is allowed and may still surprise: who may not show a certificate, and variables that are not set here."""
    notes = [config.tls.note] if config.tls is not None and config.tls.note else []
    named = {f"upstreams.{alias}": upstream.key_name for alias, upstream in config.effective_upstreams.items()}
    named["storage.dsn_env"] = config.storage.dsn_env
    unset = [(where, name) for where, name in named.items() if name and not name.startswith("file:") and not os.environ.get(name)]
    return [*notes, *(f"{where}: the environment variable {name} is not set here; `serve` needs it" for where, name in unset)]


async def serve(
    read: Callable[[], ServerConfig], on_serving: Callable[[Serving], None], *, parent_pid: int | None = None
) -> None:
    """Serve what `read` gives, which SIGHUP has read again. Raises ConfigError, StateError.

    Ends with SIGTERM, SIGINT, or (with `parent_pid`) the death of the parent: then it drains, and a second signal cuts what still runs.
    """
    coordinator = Coordinator(read())
    async with coordinator as serving:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, coordinator.read_again, read)
        signals: asyncio.Queue[int] = asyncio.Queue()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signals.put_nowait, number)
        _collect_rarely()
        on_serving(serving)
        manager = ServiceManager()
        manager.ready(f"serving on {' '.join(serving.addresses)}")
        orphaned = await _stop_requested(signals, coordinator.drain_begun, parent_pid)
        running = coordinator.in_flight
        awaited = f": waiting for {amount_text('calls', running)}" if running else ""
        log.warning("stopping%s%s", ", the parent is gone" if orphaned else "", awaited)
        manager.stopping()

        async def hurry_at_the_next_signal() -> None:
            await signals.get()
            await coordinator.hurry()

        hurrying = asyncio.create_task(hurry_at_the_next_signal())
        grace_s = coordinator.config.service.drain_grace_s
        await coordinator.drain(min(grace_s, ORPHAN_GRACE_S) if orphaned else grace_s)
        await _cancelled(hurrying)
    log.warning("stopped")


def _collect_rarely() -> None:
    """What is there now stays: leave it out of garbage collections, and make those rarer; every call makes many short-lived values."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_VALUES, 20, 20)


async def _stop_requested(signals: asyncio.Queue[int], drain_begun: asyncio.Event, parent_pid: int | None) -> bool:
    """Wait for a signal, an administrator's request or the parent's death; True for the last."""
    waits: list[asyncio.Task[Any]] = [asyncio.create_task(signals.get()), asyncio.create_task(drain_begun.wait())]
    if parent_pid is not None:
        waits.append(asyncio.create_task(parent_gone(parent_pid)))
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in waits:
        await _cancelled(task)
    return parent_pid is not None and os.getppid() != parent_pid


def _log_failure(task: asyncio.Task[Any]) -> None:
    """Work in the background ends by being cancelled. One that broke is reported now, not when everything is closed."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s broke and is not running any more; restart the coordinator", task.get_name(), exc_info=error)


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
