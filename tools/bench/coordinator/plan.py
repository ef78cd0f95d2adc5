"""How much is measured: sizes, rounds and phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ROWS = ("calls", "memory", "idle", "recovery")
SOAK = "soak"
"""Not among the rows that are measured unless named: it holds nothing beside anything, and takes minutes."""
DELAY_S = 0.005


@dataclass(frozen=True, slots=True)
class Plan:
    """One size of the whole bench. Seconds are of one phase, counts of one round."""

    size: str
    rounds: int
    slices: int
    slice_calls: int
    seconds: float
    warmup_s: float
    concurrency: int
    closed_steps: int
    memory_calls: int
    idle_devices: int
    idle_calls: int
    recovery_entries: int
    recovery_holds: int


FULL = Plan("full", 5, 8, 50, 10.0, 2.0, 32, 4000, 100_000, 10_000, 400, 100_000, 1000)
QUICK = Plan("quick", 1, 2, 20, 2.0, 0.5, 16, 400, 2000, 200, 40, 4000, 100)


def latency_phase(plan: Plan) -> dict[str, Any]:
    """One request at a time."""
    return {
        "phase": "latency",
        "kind": "latency",
        "slices": plan.slices,
        "slice_calls": plan.slice_calls,
        "warmup_calls": plan.slice_calls,
    }


def calls_phase(plan: Plan) -> dict[str, Any]:
    """Many concurrent calls."""
    timed = {"seconds": plan.seconds, "warmup_s": plan.warmup_s}
    return {"phase": "calls", "kind": "calls", "concurrency": plan.concurrency, **timed}


def batch_phase(plan: Plan) -> dict[str, Any]:
    """Two streams with as many items each as all unary callers together."""
    timed = {"seconds": plan.seconds, "warmup_s": plan.warmup_s}
    return {"phase": "batch", "kind": "batch", "streams": 2, "in_flight": 2 * plan.concurrency, **timed}


def phases_of(service: str, plan: Plan) -> list[dict[str, Any]]:
    """The phases of a service in a round."""
    latency, calls, batch = latency_phase(plan), calls_phase(plan), batch_phase(plan)
    budget = {**calls, "phase": "budget", "kind": "budget"}
    close = {"phase": "close", "kind": "close", "count": plan.closed_steps, "concurrency": plan.concurrency}
    found: Mapping[str, list[dict[str, Any]]] = {
        "ours": [latency, calls, batch, budget, close],
        "litellm": [latency, calls],
        "echo-grpc": [latency, calls, batch],
        "echo-http": [latency, calls],
    }
    return found[service]
