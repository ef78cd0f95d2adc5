"""The observation of one coordinator put together: what it counts, and the side ports that tell it. Knows the parts; decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from coordinator.config import CoordinatorConfig
from coordinator.service.measuring import (
    ItemMeter,
    ObservedStore,
    Refusals,
    budgets_now,
    observed_provider,
    remember_tasks,
    watch_loop,
)
from coordinator.service.metrics import CONTENT_TYPE, Gauges, Meters, UpstreamGauge, exposition
from coordinator.service.tracing import open_tracing
from edge.core.clock import Clock

if TYPE_CHECKING:
    from coordinator.calls.broker import Broker
    from coordinator.calls.upstreams import Upstream, UpstreamTable
    from coordinator.ledger.budgets import BudgetBook
    from coordinator.ledger.stores.store import LedgerStore
    from coordinator.providers.provider import CloudProvider
    from coordinator.service.admin_api import AdminApi
    from coordinator.service.handlers import Wrapping
    from coordinator.service.handshakes import Handshakes
    from coordinator.service.security import Security
    from coordinator.service.sideport import Route, SidePort

METRICS_ROLES = frozenset({"metrics", "admin"})


@dataclass(frozen=True, slots=True)
class Observed:
    """What is looked at: the parts of a running coordinator; `handshakes` where it speaks TLS."""

    store: LedgerStore
    broker: Broker
    book: BudgetBook
    upstreams: UpstreamTable
    admin: AdminApi
    handshakes: Handshakes | None = None


class Observation:
    """Counts from the start; `side_ports` tell."""

    def __init__(self, config: CoordinatorConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self.tracing = open_tracing(config.telemetry)
        self.meters = Meters(config.metrics_devices)
        self.refusals = Refusals(clock)
        self.items = ItemMeter(self.meters, self.refusals)

    def store(self, inner: LedgerStore) -> LedgerStore:
        """The store, counted and traced."""
        traced = inner if self.tracing is None else self.tracing.store(inner)
        return ObservedStore(traced, self.meters, self._clock.monotonic)

    def upstreams(self, upstreams: Mapping[str, Upstream]) -> dict[str, Upstream]:
        """The upstreams, their providers timed and traced."""
        time = self._clock.monotonic
        return {
            alias: replace(upstream, provider=observed_provider(self._traced(upstream.provider, alias), alias, self.meters, time))
            for alias, upstream in upstreams.items()
        }

    def _traced(self, provider: CloudProvider, alias: str) -> CloudProvider:
        return provider if self.tracing is None else self.tracing.provider(provider, alias)

    def wrappings(self, lasting: frozenset[str]) -> tuple[Wrapping, ...]:
        """What counts a listener's RPCs, and before it what traces them."""
        from coordinator.service.rpc_meter import RpcCounter, outcome_of

        meter = RpcCounter(self.meters, self.refusals, lasting)
        if self.tracing is None:
            return (meter,)
        from coordinator.service.rpc_tracer import RpcTracer

        return RpcTracer(self.tracing, outcome_of), meter

    async def aclose(self) -> None:
        """Send the traces that are left."""
        if self.tracing is not None:
            await self.tracing.aclose()

    async def run(self, store: LedgerStore, beat: Callable[[], None]) -> None:
        """Learn the tasks of the ledger, then watch the event loop until cancelled."""
        await remember_tasks(store, self.meters)
        await watch_loop(self.meters, beat)

    def side_ports(self, observed: Observed, security: Security) -> dict[str, SidePort]:
        """The configured ports by where they listen, not started. Metrics and console may share one. Raises ConfigError."""
        from coordinator.service.sideport import SidePort

        routes: dict[str, list[Route]] = {}
        settings: dict[str, list[str]] = {}
        if listen := self._config.metrics_listen:
            settings.setdefault(listen, []).append("metrics_listen")
            routes.setdefault(listen, []).append(self._metrics_route(observed))
        if listen := self._config.console_listen:
            settings.setdefault(listen, []).append("console_listen")
            routes.setdefault(listen, []).extend(self._console_routes(observed))
        authenticator = security.authenticator()
        return {
            listen: SidePort(listen, each, authenticator, self._config.tls, setting=" and ".join(settings[listen]))
            for listen, each in routes.items()
        }

    def _metrics_route(self, observed: Observed) -> Route:
        from aiohttp import web

        from coordinator.service.sideport import Route

        async def metrics(request: web.Request) -> web.Response:
            return web.Response(body=await self.exposition(observed), headers={"content-type": CONTENT_TYPE})

        return Route("/metrics", metrics, METRICS_ROLES)

    def _console_routes(self, observed: Observed) -> list[Route]:
        from coordinator.console.curves import Curves
        from coordinator.console.routes import console_routes
        from coordinator.console.state import ConsoleState
        from edge import __version__

        async def budgets(pairs: Any) -> Any:
            return await budgets_now(observed.store, observed.book, pairs, self._clock.now())

        curves = Curves(observed.store.read_journal)
        state = ConsoleState(
            observed.admin, lambda: self.gauges(observed), budgets, curves, self.refusals, self._clock, __version__
        )
        return console_routes(state)

    async def exposition(self, observed: Observed) -> bytes:
        """The metrics as text. A ledger that does not answer costs the budgets' series, not the rest."""
        from edge import __version__
        from edge.core.errors import CoordinatorError

        gauges = self.gauges(observed)
        try:
            pairs = self.meters.named_pairs()
            gauges = replace(gauges, budgets=await budgets_now(observed.store, observed.book, pairs, self._clock.now()))
        except CoordinatorError:
            self.meters.ledger_failures["scrape"] += 1
        return exposition(self.meters, gauges, {"version": __version__})

    def gauges(self, observed: Observed) -> Gauges:
        """What is looked up now, without the budgets."""
        now_s = asyncio.get_running_loop().time()
        return Gauges(
            upstreams=[_upstream_gauge(upstream, now_s) for upstream in observed.upstreams.all()],
            in_flight=observed.broker.in_flight,
            admitting=observed.broker.admitting,
            commits=getattr(observed.store, "commits", None),
            operations=getattr(observed.store, "operations", None),
            conflicts=getattr(observed.store, "conflicts", None),
            tasks=len(asyncio.all_tasks()),
            tls_connections=None if observed.handshakes is None else observed.handshakes.counts(),
        )


def _upstream_gauge(upstream: Upstream, now_s: float) -> UpstreamGauge:
    return UpstreamGauge(upstream.alias, upstream.gate.waiting, str(upstream.breaker.state(now_s)))
