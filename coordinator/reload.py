"""A changed configuration for a coordinator that runs: limits, tasks, rates and prices. Knows what may change under way; knows nothing of
signals or files.

What is under way keeps the terms it began with: an open step its τ, η and credit, a call its hold and its price.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.budgets import BudgetBook
from coordinator.config import BudgetsConfig, CoordinatorConfig, UpstreamConfig
from coordinator.controller import StepController
from coordinator.pricing import Tariff
from coordinator.ratelimit import RateLimiter
from coordinator.upkeep import Upkeep
from coordinator.upstreams import UpstreamTable
from coordinator.watch import BudgetBell


@dataclass(frozen=True, slots=True)
class Changeable:
    """The parts that take new terms, and the bell that tells watchers of them."""

    book: BudgetBook
    controller: StepController
    limiter: RateLimiter
    upstreams: UpstreamTable
    upkeep: Upkeep
    bell: BudgetBell


@dataclass(frozen=True, slots=True)
class Changes:
    """What another configuration changed: settings that hold now, told with both values, and names of those that need a restart."""

    taken: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()

    def __str__(self) -> str:
        waiting = f"; needs a restart: {', '.join(self.restart)}" if self.restart else ""
        return (", ".join(self.taken) or "nothing changed") + waiting


def apply_config(
    config: CoordinatorConfig, limits: BudgetsConfig, tariffs: Mapping[str, Tariff | None], parts: Changeable
) -> None:
    """Hold later calls and steps to this configuration. `limits` are the configured budgets with what was set at run time, `tariffs` what
    the calls of the upstreams named there cost from now on.
    """
    parts.book.replace_limits(limits)
    parts.book.replace_floor(config.fleet.fairness_floor)
    parts.controller.replace_tasks(config.effective_tasks)
    parts.limiter.replace_rates(config.rates)
    parts.upstreams.replace_prices(tariffs)
    parts.upkeep.replace_config(config)
    parts.bell.ring_all()


def same_upstreams(started: CoordinatorConfig, config: CoordinatorConfig) -> frozenset[str]:
    """Upstreams that differ in nothing but their prices from those that run: only theirs can change."""
    running, wished = started.effective_upstreams, config.effective_upstreams
    return frozenset(name for name in running.keys() & wished.keys() if _unpriced(running[name]) == _unpriced(wished[name]))


def changes_of(started: CoordinatorConfig, before: CoordinatorConfig, after: CoordinatorConfig) -> Changes:
    """What `after` changes: `started` is what the coordinator was started with, `before` what it was told last."""
    prices = {f"upstreams.{name}.{price}" for name in same_upstreams(started, after) for price in _PRICES}
    running, last, wished = _settings(started), _settings(before), _settings(after)

    def is_taken(key: str) -> bool:
        return key.startswith(_TAKEN) or key in prices

    keys = sorted(running.keys() | last.keys() | wished.keys())
    taken = (f"{key} {last.get(key)} -> {wished.get(key)}" for key in keys if is_taken(key) and last.get(key) != wished.get(key))
    others = (key for key in keys if not is_taken(key) and running.get(key) != wished.get(key))
    return Changes(tuple(taken), tuple(dict.fromkeys(".".join(key.split(".")[:2]) for key in others)))


_PRICES = ("prices", "price_in_uusd_per_mtok", "price_out_uusd_per_mtok")
_TAKEN = ("budgets.", "fleet.", "tasks.", "rates.", "service.sweep_interval_s", "service.answers_kept_s", "service.drain_grace_s")


def _unpriced(upstream: UpstreamConfig) -> dict[str, Any]:
    return upstream.model_dump(exclude=set(_PRICES))


def _settings(config: CoordinatorConfig) -> dict[str, Any]:
    """Every setting under its dotted name."""
    upstreams = {name: upstream.model_dump(mode="json") for name, upstream in config.effective_upstreams.items()}
    return dict(_leaves({**config.model_dump(mode="json"), "upstreams": upstreams}))


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, part in value.items():
        if isinstance(part, dict):
            yield from _leaves(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part
