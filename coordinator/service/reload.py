"""A changed configuration for a coordinator that runs: limits, tasks, rates and prices.

What is under way keeps the terms it began with: an open step its τ, η and credit, a call its hold and its price.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.calls.prices import Tariff
from coordinator.calls.rates import RateLimiter
from coordinator.calls.upstreams import UpstreamTable
from coordinator.config import ServerConfig, UpstreamConfig
from coordinator.control.steps import StepController
from coordinator.control.upkeep import Upkeep
from coordinator.ledger.accounts import SetLimits
from coordinator.ledger.budgets import BudgetBook, settings_set
from coordinator.service.budget_watch import BudgetNotifier


@dataclass(frozen=True, slots=True)
class Changeable:
    """The parts that take new terms, and the notifier of those who watch budgets."""

    book: BudgetBook
    controller: StepController
    limiter: RateLimiter
    upstreams: UpstreamTable
    upkeep: Upkeep
    notifier: BudgetNotifier


@dataclass(frozen=True, slots=True)
class Changes:
    """What another configuration changed."""

    taken: tuple[str, ...] = ()
    """Settings that hold now, with both values."""
    restart: tuple[str, ...] = ()
    """Names of those that need a restart."""
    overruled: tuple[str, ...] = ()
    """Names of those that something set at run time wins over."""

    def __str__(self) -> str:
        overruled = f"; `budget set` wins over: {', '.join(self.overruled)}" if self.overruled else ""
        waiting = f"; needs a restart: {', '.join(self.restart)}" if self.restart else ""
        return (", ".join(self.taken) or "nothing changed") + overruled + waiting


def apply_config(config: ServerConfig, tariffs: Mapping[str, Tariff], parts: Changeable) -> None:
    """Hold later calls and steps to this configuration; limits that were set at run time win over its own. `tariffs` are what the calls of
    the upstreams named there cost from now on.
    """
    parts.book.replace_configured(config.budgets, config.fleet.fairness_floor)
    parts.controller.replace_tasks(config.effective_tasks)
    parts.limiter.replace_rates(config.rates)
    parts.upstreams.replace_prices(tariffs)
    parts.upkeep.replace_config(config)
    parts.notifier.notify_all()


def same_upstreams(started: ServerConfig, config: ServerConfig) -> frozenset[str]:
    """Upstreams that differ in nothing but their prices from those that run: only theirs can change."""
    running, wished = started.effective_upstreams, config.effective_upstreams
    return frozenset(name for name in running.keys() & wished.keys() if _unpriced(running[name]) == _unpriced(wished[name]))


def changes_of(started: ServerConfig, before: ServerConfig, after: ServerConfig, set_limits: Sequence[SetLimits] = ()) -> Changes:
    """What `after` changes: `started` is what the coordinator was started with, `before` what it read last."""
    stronger = {f"budgets.{scope}.{name}" for scope, names in settings_set(set_limits).items() for name in names}
    prices = {f"upstreams.{name}.{price}" for name in same_upstreams(started, after) for price in _PRICES}
    running, last, wished = _settings(started), _settings(before), _settings(after)

    def is_taken(key: str) -> bool:
        return key.startswith(_TAKEN) or key in prices

    keys = sorted(running.keys() | last.keys() | wished.keys())
    changed = [key for key in keys if is_taken(key) and last.get(key) != wished.get(key)]
    taken = tuple(f"{key} {last.get(key)} -> {wished.get(key)}" for key in changed if key not in stronger)
    overruled = tuple(key for key in changed if key in stronger)
    others = (
        key for key in keys if not is_taken(key) and not key.startswith(_OF_COMMANDS) and running.get(key) != wished.get(key)
    )
    return Changes(taken, tuple(dict.fromkeys(".".join(key.split(".")[:2]) for key in others)), overruled)


_PRICES = ("prices", "price_in_uusd_per_mtok", "price_out_uusd_per_mtok")
_TAKEN = ("budgets.", "fleet.", "tasks.", "rates.", "service.sweep_interval_s", "service.answers_kept_s", "service.drain_grace_s")
_OF_COMMANDS = ("admin.",)


def _unpriced(upstream: UpstreamConfig) -> dict[str, Any]:
    return upstream.model_dump(exclude=set(_PRICES))


def _settings(config: ServerConfig) -> dict[str, Any]:
    """Every setting under its dotted name."""
    upstreams = {name: upstream.model_dump(mode="json") for name, upstream in config.effective_upstreams.items()}
    return dict(_leaves({**config.model_dump(mode="json"), "upstreams": upstreams}))


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, part in value.items():
        if isinstance(part, dict):
            yield from _leaves(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part
