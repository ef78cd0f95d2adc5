"""What a coordinator counts, and its exposition for Prometheus.

Counting costs an addition or two: plain numbers, no locks (everything counts on the event loop), no label objects. Prometheus's own
classes are made when somebody scrapes. Labels are bounded: at most MAX_TASKS tasks, MAX_OUTCOMES outcomes of an upstream (it
may answer with any status) and a configured number of devices get names, the rest is summed up as "other" or only shown as mean and
maximum.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coordinator.ledger.accounts import AttemptRow, CallRow, CallState
from edge.core.clock import Clock

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "edge_coordinator_"
RPC_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LEDGER_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
MAX_TASKS = 64
MAX_PAIRS = 10_000
MAX_OUTCOMES = 32
OTHER = "other"
MAX_REFUSALS = 50
MAX_REFUSAL_CHARS = 200
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Counts of values between bounds, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus wants them."""
        rows, below = [], 0
        for bound, count in zip((*map(repr, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            rows.append((bound, float(below)))
        return rows


class RpcMeter:
    """One RPC method: how many answered, how long, and how many ended otherwise by (code, reason)."""

    __slots__ = ("answered", "refused", "seconds")

    def __init__(self) -> None:
        self.answered = 0
        self.refused: Counter[tuple[str, str]] = Counter()
        self.seconds = Histogram(RPC_BOUNDS_S)


@dataclass(slots=True)
class TaskMeter:
    """One device's task: λ and τ as they hold now, and Ĵ_c of the last step that was closed (None before the first)."""

    dual: float
    target_rate: float
    assist_rate: float | None = None
    units: int = 0


@dataclass(frozen=True, slots=True)
class UpstreamGauge:
    """An upstream now: calls that wait for its slot, and where its breaker stands."""

    alias: str
    waiting: int
    breaker: str


@dataclass(frozen=True, slots=True)
class BudgetGauge:
    """A budget of the present window in one unit. `device` and `task` are "" where the scope has none."""

    scope: str
    device: str
    task: str
    unit: str
    used: int
    limit: int | None

    @property
    def remaining(self) -> int:
        """What is left; only where there is a limit."""
        return max(0, (self.limit or 0) - self.used)


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is looked up at each scrape instead of counted. `tls_connections`: those that made a call, and those that came to none."""

    upstreams: Sequence[UpstreamGauge] = ()
    budgets: Sequence[BudgetGauge] = ()
    in_flight: int = 0
    admitting: bool = True
    commits: int | None = None
    operations: int | None = None
    conflicts: int | None = None
    tls_connections: tuple[int, int] | None = None
    tasks: int = 0


class Meters:
    """Everything that is counted. Belongs to one event loop; `devices` is how many devices get series of their own."""

    def __init__(self, devices: int = 20) -> None:
        self.rpcs: dict[str, RpcMeter] = {}
        self.upstream_seconds: dict[tuple[str, str], Histogram] = {}
        self.ledger_seconds: dict[str, Histogram] = {}
        self.ledger_failures: Counter[str] = Counter()
        self.attempts: Counter[tuple[str, str]] = Counter()
        self.charged_uusd: Counter[tuple[str, str]] = Counter()
        self.tokens: Counter[tuple[str, str, str]] = Counter()
        self.doubt_uusd = 0
        self.exhausted: Counter[tuple[str, str]] = Counter()
        self.holds_uusd: dict[tuple[str, str, int], int] = {}
        """What each attempt (device, key, number) that this process has open holds."""
        self.help_units: Counter[str] = Counter()
        self.total_units: Counter[str] = Counter()
        self.loop_lag = Histogram(LAG_BOUNDS_S)
        self.last_lag_s = 0.0
        self.pairs: OrderedDict[tuple[str, str], TaskMeter] = OrderedDict()
        self._tasks: set[str] = set()
        self._devices: dict[str, None] = {}
        self._max_devices = devices

    def rpc(self, method: str) -> RpcMeter:
        """The meter of a method, made at its first use."""
        return self.rpcs.setdefault(method, RpcMeter())

    def task_label(self, task: str) -> str:
        """The task, or "other" once there are too many."""
        if task in self._tasks:
            return task
        if len(self._tasks) >= MAX_TASKS:
            return OTHER
        self._tasks.add(task)
        return task

    def named_device(self, device: str) -> bool:
        """Whether this device has series of its own: the first ones that were seen have."""
        if device not in self._devices and len(self._devices) < self._max_devices:
            self._devices[device] = None
        return device in self._devices

    def task_now(self, device: str, task: str, dual: float, target_rate: float) -> TaskMeter:
        """Note λ and τ of a device's task."""
        meter = self.pairs.get((device, task))
        if meter is None:
            self.named_device(device)
            meter = self.pairs[device, task] = TaskMeter(dual, target_rate)
            if len(self.pairs) > MAX_PAIRS:
                self.pairs.popitem(last=False)
        meter.dual, meter.target_rate = dual, target_rate
        return meter

    def charged(self, task: str, attempt: AttemptRow, call: CallRow) -> None:
        """An attempt was resolved, and with it its call; `task` as it is labelled."""
        self.attempts[task, attempt.state] += 1
        if attempt.charged.uusd:
            self.charged_uusd[task, call.model] += attempt.charged.uusd
        if attempt.state is CallState.IN_DOUBT:
            self.doubt_uusd += attempt.charged.uusd
        elif attempt.state is CallState.COMPLETED:
            self.tokens[task, call.model, "input"] += call.input_tokens
            self.tokens[task, call.model, "output"] += call.output_tokens

    def upstream_took(self, alias: str, outcome: str, seconds: float) -> None:
        """An upstream was asked; `outcome` is "ok" or the kind of its failure, "other" once there are too many."""
        histogram = self.upstream_seconds.get((alias, outcome)) or self._new_outcome(alias, outcome)
        histogram.observe(seconds)

    def _new_outcome(self, alias: str, outcome: str) -> Histogram:
        known = sum(each == alias for each, _ in self.upstream_seconds)
        return self.upstream_seconds.setdefault((alias, outcome if known < MAX_OUTCOMES else OTHER), Histogram(RPC_BOUNDS_S))

    def ledger(self, operation: str) -> Histogram:
        """The histogram of a ledger operation, made at its first use."""
        self.ledger_failures.setdefault(operation, 0)  # shown from the start, so that the first failure is an increase
        return self.ledger_seconds.setdefault(operation, Histogram(LEDGER_BOUNDS_S))

    def lagged(self, seconds: float) -> None:
        """The event loop came late by so much."""
        self.last_lag_s = seconds
        self.loop_lag.observe(seconds)

    def named_pairs(self) -> list[tuple[str, str]]:
        """(device, task) of the devices and tasks that have series of their own."""
        return [(device, task) for device, task in self.pairs if device in self._devices and self.task_label(task) in self._tasks]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that ended with an error: when (seconds since the epoch), of whom, and why."""

    at: float
    method: str
    who: str
    code: str
    reason: str
    message: str


class Refusals:
    """The last refusals, newest last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: deque[Refusal] = deque(maxlen=MAX_REFUSALS)

    def note(self, method: str, who: str, code: str, reason: str, message: str) -> None:
        """Remember one."""
        self._rows.append(Refusal(self._clock.now(), method, who, code, reason, message[:MAX_REFUSAL_CHARS]))

    def latest(self) -> tuple[Refusal, ...]:
        """Newest first."""
        return tuple(reversed(self._rows))


class ItemMeter:
    """Counts the items of batches as if each were an RPC of its own."""

    METHOD = "CompleteBatch.item"

    def __init__(self, meters: Meters, refusals: Refusals) -> None:
        self._meter = meters.rpc(self.METHOD)
        self._refusals = refusals

    def ended(self, device: str, seconds: float, reply: Any) -> None:
        """An item got its reply (a CompleteBatchResponse): an answer, or an error."""
        self._meter.seconds.observe(seconds)
        if reply.WhichOneof("outcome") == "finished":
            self._meter.answered += 1
            return
        from edge.rpc.errors import from_status, row_for

        error = from_status(reply.error)
        code = row_for(error).code.name
        self._meter.refused[code, error.reason] += 1
        self._refusals.note(self.METHOD, device, code, error.reason, str(error))


@dataclass(slots=True)
class _TaskFold:
    """The devices of one task taken together."""

    duals: list[float] = field(default_factory=list)
    targets: list[float] = field(default_factory=list)
    helped: float = 0.0
    units: int = 0


def exposition(meters: Meters, gauges: Gauges, build: dict[str, str]) -> bytes:
    """The metrics as text. `build` are the labels of the build info."""
    from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    PlatformCollector(registry=registry)
    ProcessCollector(registry=registry)
    registry.register(_Families(lambda: _families(meters, gauges, build)))
    return generate_latest(registry)


class _Families:
    """What prometheus_client calls a collector."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect


def _families(meters: Meters, gauges: Gauges, build: dict[str, str]) -> Iterator[Metric]:
    yield _gauge("build_info", "What runs.", tuple(build), [(tuple(build.values()), 1)])
    yield from _rpc_families(meters)
    yield from _tls_families(gauges)
    yield from _upstream_families(meters, gauges)
    yield from _money_families(meters)
    yield from _ledger_families(meters, gauges)
    yield from _budget_families(meters, gauges)
    yield from _task_families(meters)
    yield _gauge("admitting", "1 while new work is taken, 0 from the beginning of a drain.", (), [((), int(gauges.admitting))])
    yield _gauge("calls_in_flight", "Calls that run or wait for a slot.", (), [((), gauges.in_flight)])
    yield _gauge("event_loop_tasks", "Tasks of the event loop.", (), [((), gauges.tasks)])
    yield _gauge("event_loop_lag_seconds", "How late the event loop came at the last look.", (), [((), meters.last_lag_s)])
    yield _histogram("event_loop_lateness_seconds", "How late the event loop came.", (), [((), meters.loop_lag)])


def _rpc_families(meters: Meters) -> Iterator[Metric]:
    ended = [((name, "OK", ""), meter.answered) for name, meter in meters.rpcs.items()]
    ended += [((name, *why), count) for name, meter in meters.rpcs.items() for why, count in meter.refused.items()]
    yield _counter("rpcs", "RPCs that ended, by gRPC code and reason.", ("method", "code", "reason"), ended)
    seconds = [((name,), meter.seconds) for name, meter in meters.rpcs.items()]
    yield _histogram(
        "rpc_seconds", "Seconds from an RPC's arrival to its end; streams that last are left out.", ("method",), seconds
    )


def _tls_families(gauges: Gauges) -> Iterator[Metric]:
    if gauges.tls_connections is not None:
        served, failed = gauges.tls_connections
        what = "TLS connections, by whether they made a call; one that made none (failed) was turned away in its handshake, or a probe."
        yield _counter("tls_connections", what, ("outcome",), [(("served",), served), (("failed",), failed)])


def _upstream_families(meters: Meters, gauges: Gauges) -> Iterator[Metric]:
    labels = ("upstream", "outcome")
    yield _histogram(
        "upstream_seconds", "Seconds an upstream took, by how it ended.", labels, list(meters.upstream_seconds.items())
    )
    waiting = [((row.alias,), row.waiting) for row in gauges.upstreams]
    yield _gauge("upstream_waiting_calls", "Calls that wait for an upstream's slot.", ("upstream",), waiting)
    states = [((row.alias, state), int(row.breaker == state)) for row in gauges.upstreams for state in BREAKER_STATES]
    yield _gauge("upstream_breaker_state", "1 for the state an upstream's breaker is in.", ("upstream", "state"), states)


def _money_families(meters: Meters) -> Iterator[Metric]:
    yield _counter("attempts", "Attempts that were resolved, by state.", ("task", "state"), list(meters.attempts.items()))
    charged = list(meters.charged_uusd.items())
    yield _counter("charged_micro_usd", "Micro-USD charged.", ("task", "model"), charged)
    yield _counter("tokens", "Tokens that upstreams billed.", ("task", "model", "direction"), list(meters.tokens.items()))
    yield _counter(
        "in_doubt_micro_usd", "Micro-USD charged for attempts whose outcome is unknown.", (), [((), meters.doubt_uusd)]
    )
    yield _gauge("holds_open", "Attempts that hold a part of a budget.", (), [((), len(meters.holds_uusd))])
    yield _gauge("holds_micro_usd", "Micro-USD held by them.", (), [((), sum(meters.holds_uusd.values()))])


def _ledger_families(meters: Meters, gauges: Gauges) -> Iterator[Metric]:
    seconds = [((name,), histogram) for name, histogram in meters.ledger_seconds.items()]
    what = "Seconds from asking for a ledger transaction to its durable end."
    yield _histogram("ledger_operation_seconds", what, ("operation",), seconds)
    failures = [((name,), count) for name, count in meters.ledger_failures.items()]
    yield _counter("ledger_failures", "Transactions that the ledger could not write.", ("operation",), failures)
    if gauges.commits is not None and gauges.operations is not None:
        yield _counter("ledger_commits", "Commits of the ledger.", (), [((), gauges.commits)])
        what = "Operations in those commits; over the commits it is the mean size of a batch."
        yield _counter("ledger_operations", what, (), [((), gauges.operations)])
    if gauges.conflicts is not None:
        what = "Batches that ran again because another replica had written first."
        yield _counter("ledger_conflicts", what, (), [((), gauges.conflicts)])


def _budget_families(meters: Meters, gauges: Gauges) -> Iterator[Metric]:
    exhausted = list(meters.exhausted.items())
    yield _counter("budget_refusals", "Calls refused because a budget was used up.", ("scope", "unit"), exhausted)
    limited = [row for row in gauges.budgets if row.limit is not None]
    labels = ("scope", "device", "task", "unit")
    remaining = [((row.scope, row.device, row.task, row.unit), row.remaining) for row in limited]
    yield _gauge("budget_remaining", "What is left of a limited budget in its present window.", labels, remaining)
    limits = [((row.scope, row.device, row.task, row.unit), row.limit or 0) for row in limited]
    yield _gauge("budget_limit", "The limit of a budget in its present window.", labels, limits)
    used = [((row.scope, row.device, row.task, row.unit), row.used) for row in gauges.budgets]
    yield _gauge("budget_used", "Committed and reserved in the present window.", labels, used)


def _task_families(meters: Meters) -> Iterator[Metric]:
    units = [((task,), count) for task, count in meters.total_units.items()]
    yield _counter("responses", "Responses reported by closed steps.", ("task",), units)
    helped = [((task,), meters.help_units[task]) for task in meters.total_units]
    yield _counter("responses_asking", "Responses of closed steps that asked for help.", ("task",), helped)
    folds = _folded(meters)
    rates = [((task,), fold.helped / fold.units) for task, fold in folds.items() if fold.units]
    yield _gauge("assist_rate", "Ĵ_c of the last closed steps, over all devices of a task.", ("task",), rates)
    duals = [((task, kind), of(fold.duals)) for task, fold in folds.items() for kind, of in _KINDS.items()]
    yield _gauge("dual", "λ over all devices of a task.", ("task", "kind"), duals)
    targets = [((task,), _mean(fold.targets)) for task, fold in folds.items()]
    yield _gauge("target_rate", "τ, mean over the devices of a task.", ("task",), targets)
    named = meters.named_pairs()
    of_devices = [((task, device), meters.pairs[device, task].dual) for device, task in named]
    yield _gauge("device_dual", "λ of each of the first devices.", ("task", "device"), of_devices)
    known = [((task, device), meters.pairs[device, task].assist_rate) for device, task in named]
    what = "Ĵ_c of the last closed step of each of the first devices."
    yield _gauge("device_assist_rate", what, ("task", "device"), [(key, rate) for key, rate in known if rate is not None])


def _folded(meters: Meters) -> dict[str, _TaskFold]:
    folds: dict[str, _TaskFold] = {}
    for (_, task), meter in meters.pairs.items():
        fold = folds.setdefault(meters.task_label(task), _TaskFold())
        fold.duals.append(meter.dual)
        fold.targets.append(meter.target_rate)
        if meter.assist_rate is not None:
            fold.helped += meter.assist_rate * meter.units
            fold.units += meter.units
    return folds


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_KINDS: dict[str, Callable[[Sequence[float]], float]] = {"mean": _mean, "max": max}
BREAKER_STATES = ("closed", "open", "half_open")
Rows = Sequence[tuple[tuple[str, ...], Any]]


def _counter(name: str, what: str, labels: Sequence[str], rows: Rows) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(PREFIX + name, what, labels=labels)
    for values, count in rows:
        family.add_metric(values, count)
    return family


def _gauge(name: str, what: str, labels: Sequence[str], rows: Rows) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(PREFIX + name, what, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _histogram(name: str, what: str, labels: Sequence[str], rows: Sequence[tuple[tuple[str, ...], Histogram]]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(PREFIX + name, what, labels=labels)
    for values, histogram in rows:
        family.add_metric(values, buckets=histogram.buckets(), sum_value=histogram.total)
    return family
