"""GET /metrics for Prometheus: requests and answers as they are counted here, the rest as the agent reports it when it is asked.

Labels are routes, states, sources and task labels; never a prompt, a key or an address.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from starlette.responses import Response

from edge.serve.ports import AgentControl, AnswerNote

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from edge.serve.agent_schemas import BudgetsView, LedgerUsageView, StatusView, TaskBudgetView, UsageView

METRICS = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "edge_agent_"
_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_UNITS = {"calls": "Calls of", "tokens": "Tokens billed by", "spend_uusd": "Micro-USD charged by"}
_METHODS = frozenset({"GET", "POST", "DELETE", "HEAD", "OPTIONS"})
_MOST_TASKS = 64
_DESCRIPTION: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus's text format."}
}


class _Seconds:
    """A histogram of seconds."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_S) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self.counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound."""
        return list(zip((*map(str, _BOUNDS_S), "+Inf"), accumulate(map(float, self.counts)), strict=True))


class Meters:
    """What is counted since the agent began: plain numbers, since every request counts; Prometheus's classes are made at a scrape."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._request_seconds: defaultdict[str, _Seconds] = defaultdict(_Seconds)
        self._answers: Counter[tuple[str, ...]] = Counter()
        self._answer_seconds: defaultdict[str, _Seconds] = defaultdict(_Seconds)
        self._tokens: Counter[tuple[str, ...]] = Counter()

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request; `route` is its template, "" where there is none."""
        labelled = route or "other"
        self._requests[method if method in _METHODS else "other", labelled, str(status)] += 1
        self._request_seconds[labelled].observe(seconds)

    def answer(self, note: AnswerNote) -> None:
        """Count an answer."""
        self._answers[note.source, note.finish] += 1
        self._answer_seconds[note.source].observe(note.latency_s)
        self._tokens[note.source, "input"] += note.prompt_tokens
        self._tokens[note.source, "output"] += note.completion_tokens
        self._tokens[note.source, "cached"] += note.prompt_cached

    def collect(self) -> Iterator[Metric]:
        """All families, as prometheus_client collects them."""
        yield _counters("http_requests", "HTTP requests.", ("method", "route", "status"), self._requests)
        yield _histograms("http_request_seconds", "Seconds from a request to its whole answer.", "route", self._request_seconds)
        yield _counters("answers", "Answers to people, by who gave them and how they ended.", ("source", "finish"), self._answers)
        yield _histograms("answer_seconds", "Seconds that an answer took.", "source", self._answer_seconds)
        yield _counters(
            "answer_tokens",
            "Tokens of answers, of who gave them; cached: of those of input, what was not read again.",
            ("source", "direction"),
            self._tokens,
        )


def add_metrics_route(app: FastAPI, meters: Meters, control: AgentControl) -> None:
    """The route."""

    @app.get(METRICS, responses=_DESCRIPTION, response_class=Response)
    async def metrics() -> Response:
        """What is counted, for Prometheus."""
        status, usage, budgets = await asyncio.gather(control.status(), control.usage(), control.budget())
        registry = CollectorRegistry(auto_describe=False)
        registry.register(meters)  # type: ignore[arg-type]
        registry.register(_Reported(status, usage, budgets))  # type: ignore[arg-type]
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE})


class _Reported:
    """What the agent reports of itself, as prometheus_client collects it."""

    def __init__(self, status: StatusView, usage: UsageView, budgets: BudgetsView) -> None:
        self._status, self._usage, self._budgets = status, usage, budgets

    def collect(self) -> Iterator[Metric]:
        """All families; those of which nothing is known are left out."""
        status, usage = self._status, self._usage
        yield _counter("learning_steps", "Learning steps that were finished.", status.steps_done)
        yield _gauge("learning", "1 while it learns.", int(status.learning == "learning"))
        yield _gauge("adapter_version", "The adapter that answers.", status.adapter_version)
        yield _gauge("coordinator_reached", "1 while the coordinator can be reached.", int(usage.online))
        for unit, what in _UNITS.items():
            family = CounterMetricFamily(
                f"{_PREFIX}cloud_{_unit(unit)}", f"{what} the cloud LLM since the first day.", labels=("purpose",)
            )
            for purpose, used in (("serving", usage.all.serving), ("learning", usage.all.learning)):
                family.add_metric((purpose,), getattr(used, unit))
            yield family
        yield from _budget_families(usage.ledger)
        yield from _task_families(self._budgets.tasks)


def _unit(unit: str) -> str:
    return unit.replace("uusd", "micro_usd")


def _budget_families(ledger: LedgerUsageView | None) -> Iterator[Metric]:
    for part, name, what in (
        ("used", "budget_used", "What is used of the budget."),
        ("limits", "budget_limit", "What the budget allows, where it has a limit."),
        ("left", "budget_left", "What is left of it."),
    ):
        family = GaugeMetricFamily(_PREFIX + name, what, labels=("unit",))
        for unit in _UNITS if ledger else ():
            if (value := getattr(getattr(ledger, part), unit)) is not None:
                family.add_metric((_unit(unit),), value)
        yield family


def _task_families(tasks: Sequence[TaskBudgetView]) -> Iterator[Metric]:
    rows = sorted(tasks, key=lambda row: row.task)[:_MOST_TASKS]
    for field, name, what in (
        ("dual", "dual", "λ, the cost of asking."),
        ("target_rate", "target_rate", "τ, the share of answers that may ask."),
        ("realised_rate", "assist_rate", "The share of the latest answers that asked."),
    ):
        family = GaugeMetricFamily(_PREFIX + name, what, labels=("task",))
        for row in rows:
            if (value := getattr(row, field)) is not None:
                family.add_metric((row.task,), value)
        yield family


def _counters(name: str, what: str, labels: tuple[str, ...], counted: Mapping[tuple[str, ...], int]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, what, labels=labels)
    for values, count in counted.items():
        family.add_metric(values, count)
    return family


def _histograms(name: str, what: str, label: str, measured: Mapping[str, _Seconds]) -> Metric:
    family = HistogramMetricFamily(_PREFIX + name, what, labels=(label,))
    for value, seconds in measured.items():
        family.add_metric((value,), buckets=seconds.buckets(), sum_value=seconds.total)
    return family


def _counter(name: str, what: str, value: float | None) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, what)
    if value is not None:
        family.add_metric((), value)
    return family


def _gauge(name: str, what: str, value: float | None) -> Metric:
    family = GaugeMetricFamily(_PREFIX + name, what)
    if value is not None:
        family.add_metric((), value)
    return family
