"""The metrics and traces of one coordinator: what measures, what is looked up at each scrape, and the side ports that show it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from coordinator.calls.breaker import BreakerState
from coordinator.config import ServerConfig
from coordinator.ledger.accounts import UNITS, BudgetRow, BudgetTerms, scope_of
from coordinator.service.instruments import MeasuredProvider, MeasuredRpcs, MeasuredStore
from coordinator.service.metrics import (
    CONTENT_TYPE,
    BudgetGauge,
    CoordinatorMeters,
    Refusals,
    counter,
    exposition,
    gauge,
)
from coordinator.service.tracing import open_tracing
from edge.core.clock import Clock
from edge.core.errors import CoordinatorError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from coordinator.calls.broker import Broker
    from coordinator.calls.upstreams import Upstream, UpstreamTable
    from coordinator.ledger.budgets import BudgetBook
    from coordinator.ledger.stores.store import LedgerStore
    from coordinator.service.admin_api import AdminApi
    from coordinator.service.http_listener import HttpListener
    from coordinator.service.security import Security
    from coordinator.service.sideport import Route
    from coordinator.service.tls import Handshakes

LAG_EVERY_S = 0.5
METRICS_ROLES = frozenset({"metrics", "admin"})


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts of a running coordinator that gauges are read from."""

    store: LedgerStore
    broker: Broker
    book: BudgetBook
    upstreams: UpstreamTable
    admin: AdminApi
    handshakes: Handshakes | None = None
    """Where it speaks TLS."""

    def families(self, budgets: Sequence[BudgetGauge]) -> Iterator[Metric]:
        """What is looked up at each scrape instead of counted."""
        now_s, upstreams, store = asyncio.get_running_loop().time(), self.upstreams.all(), self.store
        yield gauge("admitting", "1 while new work is taken, 0 from the beginning of a drain.", {(): self.broker.admitting})
        yield gauge("calls_in_flight", "Calls that run or wait for a slot.", {(): self.broker.in_flight})
        yield gauge("event_loop_tasks", "Tasks of the event loop.", {(): len(asyncio.all_tasks())})
        waiting = {each.alias: each.gate.waiting for each in upstreams}
        yield gauge("upstream_waiting_calls", "Calls that wait for an upstream's slot.", waiting, "upstream")
        states = {(each.alias, state): each.breaker.state(now_s) == state for each in upstreams for state in BreakerState}
        yield gauge("upstream_breaker_state", "1 for the state an upstream's breaker is in.", states, "upstream", "state")
        for name, what in _OF_THE_STORE.items():
            if (count := getattr(store, name, None)) is not None:
                yield counter(f"ledger_{name}", what, {(): count})
        if self.handshakes is not None:
            what = "TLS connections, by whether they made a call; one that made none (failed) was turned away in its handshake, or a probe."
            yield counter(
                "tls_connections", what, dict(zip(("served", "failed"), self.handshakes.counts(), strict=True)), "outcome"
            )
        labels = ("scope", "device", "task", "unit")
        used = {(row.scope, row.device, row.task, row.unit): row for row in budgets}
        limited = {key: row for key, row in used.items() if row.limit is not None}
        remaining = {key: row.remaining for key, row in limited.items()}
        yield gauge("budget_remaining", "What is left of a limited budget in its present window.", remaining, *labels)
        limits = {key: row.limit or 0 for key, row in limited.items()}
        yield gauge("budget_limit", "The limit of a budget in its present window.", limits, *labels)
        amounts = {key: row.used for key, row in used.items()}
        yield gauge("budget_used", "Committed and reserved in the present window.", amounts, *labels)


_OF_THE_STORE = {
    "commits": "Commits of the ledger.",
    "operations": "Operations in those commits; over the commits it is the mean size of a batch.",
    "conflicts": "Batches that ran again because another replica had written first.",
}


class Telemetry:
    """Counts from the start; what `side_ports` makes shows it."""

    def __init__(self, config: ServerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self.tracing = open_tracing(config.telemetry)
        self.meters = CoordinatorMeters()
        self.refusals = Refusals(clock)
        self.rpcs = MeasuredRpcs(self.meters, self.refusals, self.tracing)

    def store(self, inner: LedgerStore) -> LedgerStore:
        """The store, measured."""
        return MeasuredStore(inner, self.meters, self._clock.monotonic, self.tracing)

    def upstreams(self, upstreams: Mapping[str, Upstream]) -> dict[str, Upstream]:
        """The upstreams, their providers measured."""

        def measured(alias: str, upstream: Upstream) -> Upstream:
            provider: Any = MeasuredProvider(upstream.provider, alias, self.meters, self._clock.monotonic, self.tracing)
            return replace(upstream, provider=provider)

        return {alias: measured(alias, upstream) for alias, upstream in upstreams.items()}

    async def aclose(self) -> None:
        """Send the traces that are left."""
        if self.tracing is not None:
            await self.tracing.aclose()

    async def run(self, store: LedgerStore, beat: Callable[[], None]) -> None:
        """Read λ and τ of the tasks that the ledger knows already, then note how late the event loop comes, until cancelled; `beat` is
        called each time.
        """
        with suppress(CoordinatorError):  # a ledger that cannot be read now must not stop the beat
            for row in await store.list_tasks():
                self.meters.task_now(row.device, row.task, row.dual, row.target_rate)
        time = asyncio.get_running_loop().time
        while True:
            due = time() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self.meters.lagged(max(0.0, time() - due))
            beat()

    def side_ports(self, sources: Sources, security: Security) -> dict[str, HttpListener]:
        """The configured ports by where they listen, not started. Metrics and console may share one. Raises ConfigError."""
        routes: dict[str, list[Route]] = {}
        settings: dict[str, list[str]] = {}
        for setting, make in (("metrics_listen", self._metrics_routes), ("console_listen", self._console_routes)):
            if listen := getattr(self._config, setting):
                settings.setdefault(listen, []).append(setting)
                routes.setdefault(listen, []).extend(make(sources))
        if not routes:
            return {}  # no coordinator waits for the HTTP server's import for nothing: an agent's own has no side port
        from coordinator.service.sideport import side_port

        authenticator = security.authenticator()
        return {
            listen: side_port(listen, each, authenticator, self._config.tls, setting=" and ".join(settings[listen]))
            for listen, each in routes.items()
        }

    def _metrics_routes(self, sources: Sources) -> list[Route]:
        from coordinator.service.http_server import Reply, Request
        from coordinator.service.sideport import Route

        async def metrics(request: Request) -> Reply:
            return Reply(await self.exposition(sources), media_type=CONTENT_TYPE)

        return [Route("/metrics", metrics, METRICS_ROLES)]

    def _console_routes(self, sources: Sources) -> list[Route]:
        from coordinator.console.api import WebConsole, console_routes
        from coordinator.console.curves import Curves
        from edge import __version__

        async def budgets(pairs: Any) -> Any:
            return await budgets_now(sources.store, sources.book, pairs, self._clock.now())

        curves = Curves(sources.store.read_journal, sources.store.last_entry)
        return console_routes(WebConsole(sources.admin, budgets, curves, self.refusals, self._clock, __version__))

    async def exposition(self, sources: Sources) -> bytes:
        """The metrics as text. A ledger that does not answer costs the budgets' series, not the rest."""
        from edge import __version__

        budgets: Sequence[BudgetGauge] = ()
        try:
            budgets = await budgets_now(sources.store, sources.book, self.meters.named_pairs(), self._clock.now())
        except CoordinatorError:
            self.meters.ledger_failures["scrape"] += 1
        build = gauge("build_info", "What runs.", {__version__: 1}, "version")
        return exposition([build, *self.meters.families(), *sources.families(budgets)])


async def budgets_now(
    store: LedgerStore, book: BudgetBook, pairs: Sequence[tuple[str, str]], now: float
) -> tuple[BudgetGauge, ...]:
    """The budgets of the present windows that these (device, task) pairs and the fleet are held to; one transaction. Changes nothing."""
    terms = {each.key: (each, device, task) for device, task in pairs for each in book.terms(device, task, now)}
    terms |= {each.key: (each, "", "") for each in book.terms("", "", now) if scope_of(each.key) == "fleet"}
    wanted = list(terms.values())
    view = await store.get_budget("", "", [each for each, _, _ in wanted])
    if book.take_limits(view.limits):
        return await budgets_now(store, book, pairs, now)
    rows = zip(view.budgets, wanted, strict=True)
    return tuple(gauge for row, (each, device, task) in rows for gauge in _gauges(row, each, device, task))


def _gauges(row: BudgetRow, terms: BudgetTerms, device: str, task: str) -> list[BudgetGauge]:
    scope, limits = scope_of(row.key), terms.limits
    owner = (device if scope.startswith("device") else "", task if scope.endswith("task") else "")
    return [BudgetGauge(scope, *owner, unit, getattr(row.used, unit), getattr(limits, unit)) for unit in UNITS]
