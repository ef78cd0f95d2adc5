"""`python -m tools.bench coordinator`: the coordinator by each of its doors and LiteLLM's proxy, measured side by side in one run.

Rates are per second of processor time of the service's whole process tree; latencies are what the service adds to the mock cloud LLM's.
The ledger is durable (SQLite, synchronous=FULL), every call has a token, and metrics are served. Results are written to the folder
`--out`, one file per process, and an interrupted run resumes. Exit code 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.bench import harness
from tools.bench.coordinator import rows, services
from tools.bench.harness import BenchRow, MeasuredPart, Results, own_part

PACKAGES = ("edge-agent", "grpcio", "protobuf", "aiohttp", "msgspec", "cryptography", "pyjwt")
MEMORY_SAMPLES = 10
SOAK_SAMPLES = 8
ROWS = ("calls", "overspend", "profile", "cores", "memory", "idle", "recovery")
SOAK = "soak"
"""Not among the rows that are measured unless named: it compares nothing, and takes minutes."""
DELAY_S = 0.005
BURST = {"count": 200, "delay_s": 1.0, "rest_s": 3.0}
BURST_FITS = 100


@dataclass(frozen=True, slots=True)
class CoordinatorPlan:
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


FULL = CoordinatorPlan("full", 5, 8, 50, 10.0, 2.0, 32, 4000, 100_000, 10_000, 400, 100_000, 1000)
QUICK = CoordinatorPlan("quick", 1, 2, 20, 2.0, 0.5, 16, 400, 2000, 200, 40, 4000, 100)


PHASES = {
    "ours": ("latency", "calls", "serving", "budget", "close"),
    "endpoint": ("latency", "calls"),
    "litellm": ("latency", "calls"),
    "litellm_budget": ("latency", "calls"),
    "echo": ("latency", "calls"),
    "http_echo": ("latency", "calls"),
}
"""The phases of each service in a round: one request at a time, many concurrent calls (of a learning step and of none), budgets, and steps
that are closed."""
DOORS = {"gRPC": ("ours", "serving"), "HTTP": ("endpoint", "calls")}
"""The service and the phase of a call outside learning steps, by the door it comes in at."""


def phase_of(plan: CoordinatorPlan, kind: str, phase: str = "", **changes: Any) -> dict[str, Any]:
    """The job of a phase, named as its kind unless it is given a name."""
    timed = {"seconds": plan.seconds, "warmup_s": plan.warmup_s}
    jobs: dict[str, dict[str, Any]] = {
        "latency": {"slices": plan.slices, "slice_calls": plan.slice_calls, "warmup_calls": plan.slice_calls},
        "calls": {"concurrency": plan.concurrency, **timed},
        "serving": {"concurrency": plan.concurrency, **timed},
        "budget": {"concurrency": plan.concurrency, **timed},
        "close": {"count": plan.closed_steps, "concurrency": plan.concurrency},
    }
    return {"phase": phase or kind, "kind": kind, **jobs[kind], **changes}


@dataclass(frozen=True, slots=True)
class CoordinatorBench:
    """Measures rows. `litellm` is the proxy's command, or None to skip it; `code` identifies our version."""

    plan: CoordinatorPlan
    results: Results
    litellm: Callable[[], Path] | None
    code: str

    def calls(self) -> BenchRow:
        """All services, round by round."""
        parts = {name: self._part(name) for name in PHASES if self.litellm or not name.startswith("litellm")}
        return rows.calls_row(self.results.alternating("calls", parts, self.plan.rounds))

    def overspend(self) -> BenchRow:
        """200 calls at once against a budget that fits 100."""
        job = {**BURST, "limit_uusd": BURST_FITS * services.COST[2]}
        parts = {"endpoint": own_part("coordinator.overspend", {**job, "service": "endpoint", "code": self.code}, scratch=True)}
        for budget in ("key", "deployment") if self.litellm else ():
            theirs = {**job, "service": "litellm", "budget": budget, "litellm": self._litellm_command()}
            parts[f"litellm_{budget}"] = own_part("coordinator.overspend", theirs, scratch=True)
        return rows.overspend_row(self.results.alternating("overspend", parts, min(3, self.plan.rounds)))

    def profile(self) -> BenchRow:
        """Where the processor time of one call goes."""
        parts = {
            door: self._ours("profile", service=service, calls=phase_of(self.plan, phase))
            for door, (service, phase) in DOORS.items()
        }
        return rows.profile_row(self.results.alternating("profile", parts, min(3, self.plan.rounds)))

    def cores(self) -> BenchRow:
        """One process on one core and on two; the load and the mock cloud share the second."""
        first, *_, last = sorted(os.sched_getaffinity(0))
        parts = {
            f"{door}, {words}": self._ours(
                "measure", service=service, cores=cores, other_cores=[last], phases=[phase_of(self.plan, phase)]
            )
            for door, (service, phase) in DOORS.items()
            for words, cores in (("one core", [first]), ("two cores", [first, last]))
        }
        return rows.cores_row(self.results.alternating("cores", parts, min(3, self.plan.rounds)))

    def memory(self) -> BenchRow:
        """Our memory sampled after many calls; LiteLLM's from the first round of calls."""
        calls = self.plan.memory_calls // MEMORY_SAMPLES
        counted = [phase_of(self.plan, "calls", f"calls-{sample}", calls=calls, warmup_s=0.0) for sample in range(MEMORY_SAMPLES)]
        ours = self.results.measure("memory/ours", self._ours("measure", phases=counted))
        peer = [self.results.measure("calls/litellm/1", self._part("litellm"))] if self.litellm else []
        return rows.memory_row([ours], peer)

    def idle(self) -> BenchRow:
        """Idle devices while one calls."""
        latency = phase_of(self.plan, "latency", slices=1, slice_calls=self.plan.idle_calls, warmup_calls=20)
        part = self._ours("idle", devices=self.plan.idle_devices, latency=latency)
        return rows.idle_row([self.results.measure("idle/1", part)])

    def recovery(self) -> BenchRow:
        """After SIGKILL."""
        part = self._ours("recovery", entries=self.plan.recovery_entries, holds=self.plan.recovery_holds)
        rounds = range(1, min(3, self.plan.rounds) + 1)
        return rows.recovery_row(
            [self.results.measure(f"recovery/{number}", part) for number in rounds], self.plan.recovery_holds
        )

    def soak(self) -> BenchRow:
        """Minutes of mixed load with faults."""
        part = self._ours(SOAK, minutes=2.0, looks=SOAK_SAMPLES, seed=0)
        return rows.soak_row(self.results.measure("soak/1", part))

    def _part(self, service: str) -> MeasuredPart:
        """A round of a service."""
        phases = [phase_of(self.plan, kind) for kind in PHASES[service]]
        if service == "ours":
            return self._ours("measure", phases=phases)
        if service == "endpoint":
            return self._ours("measure", service=service, phases=phases)
        job = {"service": service, "delay_s": DELAY_S, "phases": phases}
        if service.startswith("litellm"):
            job["litellm"] = self._litellm_command()
            job["budget"] = "key" if service == "litellm_budget" else ""
        return own_part("coordinator.measure", job, scratch=True)

    def _litellm_command(self) -> str:
        assert self.litellm is not None
        return str(self.litellm())

    def _ours(self, module: str, **job: Any) -> MeasuredPart:
        own = {"service": "ours", "delay_s": DELAY_S, "code": self.code}
        return own_part(f"coordinator.{module}", {**own, **job}, scratch=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench coordinator", description="The coordinator compared with LiteLLM's proxy."
    )
    harness.add_options(parser, ROWS, also=f", also {SOAK}")
    parser.add_argument("--quick", action="store_true", help="one round, small sizes: a minute")
    parser.add_argument("--without-litellm", action="store_true", help="only ours and the baselines")
    return parser.parse_args(arguments)


def plan_of(given: argparse.Namespace) -> CoordinatorPlan:
    """The size asked for, with the rounds asked for."""
    plan = QUICK if given.quick else FULL
    return replace(plan, rounds=given.rounds or plan.rounds)


def measure(given: argparse.Namespace) -> int:
    """Measure the rows and write the report; 1 when a goal is missed. Raises EdgeError."""
    plan = plan_of(given)
    run = harness.Run(given, "coordinator", plan.size, (*ROWS, SOAK))
    machine, peer = harness.describe_machine(PACKAGES), None if given.without_litellm else services.litellm_installed
    if peer is not None:
        machine["packages"]["litellm"] = services.litellm_version(peer())
    bench = CoordinatorBench(plan, run.results, peer, harness.commit())
    return run.report(bench, machine, " Metrics on; upstream answers after 5 ms.")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see `harness.command`."""
    return harness.command(lambda: measure(parse(sys.argv[1:] if arguments is None else arguments)))


if __name__ == "__main__":
    sys.exit(main())
