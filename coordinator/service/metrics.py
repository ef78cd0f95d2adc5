"""What a coordinator counts, and its exposition for Prometheus.

Counting costs an addition or two: plain numbers, no locks (everything counts on the event loop), no label objects. Prometheus's own
classes are made when somebody scrapes. Labels are bounded: at most MAX_TASKS tasks, MAX_OUTCOMES outcomes of an upstream (it
may answer with any status) and a configured number of devices get names, the rest is summed up as "other" or only shown as mean and
maximum.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
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
OK = ("OK", "")
"""Code and reason of an RPC that was answered."""
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


class Counted(Counter[Any]):
    """A series that counts, by the text of its label or by a tuple of several."""

    def __init__(self, name: str, what: str, *labels: str) -> None:
        super().__init__()
        self._series = (name, what, labels)

    def family(self) -> Metric:
        """As it is scraped."""
        name, what, labels = self._series
        return counter(name, what, self, *labels)


class Timed(dict[Any, Histogram]):
    """A series of histograms, each made at its first use, by the text of its label or by a tuple of several."""

    def __init__(self, name: str, what: str, bounds: tuple[float, ...], *labels: str) -> None:
        super().__init__()
        self._series = (name, what, labels)
        self._bounds = bounds

    def __missing__(self, key: Any) -> Histogram:
        made = self[key] = Histogram(self._bounds)
        return made

    def family(self) -> Metric:
        """As it is scraped."""
        from prometheus_client.core import HistogramMetricFamily

        name, what, labels = self._series
        family = HistogramMetricFamily(PREFIX + name, what, labels=labels)
        for values, histogram in self.items():
            family.add_metric(_texts(values), buckets=histogram.buckets(), sum_value=histogram.total)
        return family


@dataclass(slots=True)
class TaskMeter:
    """One device's task: λ and τ as they hold now."""

    dual: float
    target_rate: float
    assist_rate: float | None = None
    """Ĵ_c of the last step that was closed; None before the first."""
    units: int = 0


@dataclass(frozen=True, slots=True)
class BudgetGauge:
    """A budget of the present window in one unit."""

    scope: str
    device: str
    """Empty where the scope has none, like `task`."""
    task: str
    unit: str
    used: int
    limit: int | None

    @property
    def remaining(self) -> int:
        """What is left; only where there is a limit."""
        return max(0, (self.limit or 0) - self.used)


class CoordinatorMeters:
    """Everything that is counted. Belongs to one event loop; `devices` is how many devices get series of their own."""

    def __init__(self, devices: int = 20) -> None:
        self.rpcs = Counted("rpcs", "RPCs that ended, by gRPC code and reason.", "method", "code", "reason")
        what = "Seconds from an RPC's arrival to its end; streams that last are left out."
        self.rpc_seconds = Timed("rpc_seconds", what, RPC_BOUNDS_S, "method")
        what = "Seconds an upstream took, by how it ended."
        self.upstream_seconds = Timed("upstream_seconds", what, RPC_BOUNDS_S, "upstream", "outcome")
        what = "Seconds from asking for a ledger transaction to its durable end."
        self.ledger_seconds = Timed("ledger_operation_seconds", what, LEDGER_BOUNDS_S, "operation")
        self.ledger_failures = Counted("ledger_failures", "Transactions that the ledger could not write.", "operation")
        self.attempts = Counted("attempts", "Attempts that were resolved, by state.", "task", "state")
        self.charged_uusd = Counted("charged_micro_usd", "Micro-USD charged.", "task", "model")
        self.tokens = Counted("tokens", "Tokens that upstreams billed.", "task", "model", "direction")
        self.exhausted = Counted("budget_refusals", "Calls refused because a budget was used up.", "scope", "unit")
        self.total_units = Counted("responses", "Responses reported by closed steps.", "task")
        self.help_units = Counted("responses_asking", "Responses of closed steps that asked for help.", "task")
        self.loop_lag = Timed("event_loop_lateness_seconds", "How late the event loop came.", LAG_BOUNDS_S)
        self.last_lag_s = 0.0
        self.doubt_uusd = 0
        self.holds_uusd: dict[tuple[str, str, int], int] = {}
        """What each attempt (device, key, number) that this process has open holds."""
        self.pairs: OrderedDict[tuple[str, str], TaskMeter] = OrderedDict()
        self._tasks: set[str] = set()
        self._devices: dict[str, None] = {}
        self._max_devices = devices

    def rpc(self, method: str) -> Histogram:
        """The seconds of a method, whose answers are shown from the start."""
        self.rpcs.setdefault((method, *OK), 0)
        return self.rpc_seconds[method]

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
        if (alias, outcome) not in self.upstream_seconds and sum(
            each == alias for each, _ in self.upstream_seconds
        ) >= MAX_OUTCOMES:
            outcome = OTHER
        self.upstream_seconds[alias, outcome].observe(seconds)

    def ledger(self, operation: str) -> Histogram:
        """The seconds of a ledger operation, whose failures are shown from the start, so that the first one is an increase."""
        self.ledger_failures.setdefault(operation, 0)
        return self.ledger_seconds[operation]

    def lagged(self, seconds: float) -> None:
        """The event loop came late by so much."""
        self.last_lag_s = seconds
        self.loop_lag[()].observe(seconds)

    def named_pairs(self) -> list[tuple[str, str]]:
        """(device, task) of the devices and tasks that have series of their own."""
        return [(device, task) for device, task in self.pairs if device in self._devices and self.task_label(task) in self._tasks]

    def families(self) -> Iterator[Metric]:
        """All of it as it is scraped."""
        yield from (each.family() for each in vars(self).values() if isinstance(each, Counted | Timed))
        yield counter("in_doubt_micro_usd", "Micro-USD charged for attempts whose outcome is unknown.", {(): self.doubt_uusd})
        yield gauge("holds_open", "Attempts that hold a part of a budget.", {(): len(self.holds_uusd)})
        yield gauge("holds_micro_usd", "Micro-USD held by them.", {(): sum(self.holds_uusd.values())})
        yield gauge("event_loop_lag_seconds", "How late the event loop came at the last look.", {(): self.last_lag_s})
        yield from self._task_families()

    def _task_families(self) -> Iterator[Metric]:
        folds: dict[str, _TaskFold] = {}
        for (_, task), meter in self.pairs.items():
            folds.setdefault(self.task_label(task), _TaskFold()).take(meter)
        rates = {task: fold.helped / fold.units for task, fold in folds.items() if fold.units}
        yield gauge("assist_rate", "Ĵ_c of the last closed steps, over all devices of a task.", rates, "task")
        duals = {(task, kind): of(fold.duals) for task, fold in folds.items() for kind, of in _KINDS.items()}
        yield gauge("dual", "λ over all devices of a task.", duals, "task", "kind")
        targets = {task: fmean(fold.targets) for task, fold in folds.items()}
        yield gauge("target_rate", "τ, mean over the devices of a task.", targets, "task")
        named = {(task, device): self.pairs[device, task] for device, task in self.named_pairs()}
        duals_of_devices = {key: meter.dual for key, meter in named.items()}
        yield gauge("device_dual", "λ of each of the first devices.", duals_of_devices, "task", "device")
        known = {key: meter.assist_rate for key, meter in named.items() if meter.assist_rate is not None}
        what = "Ĵ_c of the last closed step of each of the first devices."
        yield gauge("device_assist_rate", what, known, "task", "device")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that ended with an error."""

    at: float
    """Seconds since the epoch."""
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


@dataclass(slots=True)
class _TaskFold:
    """The devices of one task taken together."""

    duals: list[float] = field(default_factory=list)
    targets: list[float] = field(default_factory=list)
    helped: float = 0.0
    units: int = 0

    def take(self, meter: TaskMeter) -> None:
        """One more device."""
        self.duals.append(meter.dual)
        self.targets.append(meter.target_rate)
        if meter.assist_rate is not None:
            self.helped += meter.assist_rate * meter.units
            self.units += meter.units


_KINDS: dict[str, Callable[[Sequence[float]], float]] = {"mean": fmean, "max": max}


def exposition(families: Iterable[Metric]) -> bytes:
    """Metrics as text, those of the process among them."""
    from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    PlatformCollector(registry=registry)
    ProcessCollector(registry=registry)
    registry.register(_Families(lambda: families))
    return generate_latest(registry)


class _Families:
    """What prometheus_client calls a collector."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect


def counter(name: str, what: str, rows: Mapping[Any, float], *labels: str) -> Metric:
    """A metric that grows, by the text of its label or a tuple of several."""
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(PREFIX + name, what, labels=labels), rows)


def gauge(name: str, what: str, rows: Mapping[Any, float], *labels: str) -> Metric:
    """A metric that rises and falls, by the text of its label or a tuple of several."""
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(PREFIX + name, what, labels=labels), rows)


def _filled(family: Any, rows: Mapping[Any, float]) -> Metric:
    for values, value in rows.items():
        family.add_metric(_texts(values), value)
    return family  # type: ignore[no-any-return]


def _texts(values: str | tuple[str, ...]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else values
