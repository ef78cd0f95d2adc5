"""`python -m tools.bench coordinator`: the coordinator beside LiteLLM's proxy, measured side by side in one run.

Rates are per second of processor time of the service's whole process tree; latencies are what the service adds to the mock cloud LLM's.
The ledger is durable (SQLite, synchronous=FULL), every call has a token, and metrics are served. Results are written to the folder
`--out`, one file per process, and an interrupted run resumes. Exit code 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.bench import harness
from tools.bench.coordinator import rows, services
from tools.bench.coordinator.plan import DELAY_S, FULL, QUICK, ROWS, SOAK, Plan, calls_phase, latency_phase, phases_of
from tools.bench.harness import Part, Results, Row, own_part

PACKAGES = ("edge-agent", "grpcio", "protobuf", "aiohttp", "msgspec", "cryptography", "pyjwt")
MEMORY_SAMPLES = 10
SOAK_LOOKS = 8


@dataclass(frozen=True, slots=True)
class Bench:
    """Measures rows. `litellm` is the proxy's command, or None to skip it; `code` identifies our version."""

    plan: Plan
    out: Path
    results: Results
    litellm: Callable[[], Path] | None
    metrics: bool
    code: str
    minutes: float = 2.0

    def row(self, name: str) -> Row:
        """One row by name. Raises EdgeError when something cannot be measured."""
        measure: Callable[[], Row] = getattr(self, name)
        return measure()

    def calls(self) -> Row:
        """All services, round by round."""
        names = ["ours", *(["litellm"] if self.litellm else []), "echo-grpc", "echo-http"]
        parts = {name: lambda key, name=name: self._part(name, key) for name in names}
        return rows.calls_row(self.results.alternating("calls", parts, self.plan.rounds))

    def memory(self) -> Row:
        """Our memory sampled after many calls; LiteLLM's from the first round of calls."""
        samples = [{**calls_phase(self.plan), "phase": f"calls-{sample}"} for sample in range(MEMORY_SAMPLES)]
        counted = [{**sample, "calls": self.plan.memory_calls // MEMORY_SAMPLES, "warmup_s": 0.0} for sample in samples]
        ours = [self.results.measure(self._part("ours", "memory/ours", counted))]
        peer = [self.results.measure(self._part("litellm", "calls/litellm/1"))] if self.litellm else []
        return rows.memory_row(ours, peer)

    def idle(self) -> Row:
        """Idle devices beside a caller."""
        latency = {**latency_phase(self.plan), "slices": 1, "slice_calls": self.plan.idle_calls, "warmup_calls": 20}
        job = {**self._job("ours", "idle"), "devices": self.plan.idle_devices, "latency": latency}
        return rows.idle_row([self.results.measure(own_part("coordinator.idle", "idle/1", job))])

    def recovery(self) -> Row:
        """After SIGKILL."""
        sizes = {"entries": self.plan.recovery_entries, "holds": self.plan.recovery_holds}
        keys = [f"recovery/{number}" for number in range(1, min(3, self.plan.rounds) + 1)]
        parts = [own_part("coordinator.recovery", key, {**self._job("ours", key), **sizes}) for key in keys]
        return rows.recovery_row([self.results.measure(part) for part in parts], self.plan.recovery_holds)

    def soak(self) -> Row:
        """Minutes of mixed load with faults."""
        job = {**self._job("ours", SOAK), "minutes": self.minutes, "looks": SOAK_LOOKS, "seed": 0}
        return rows.soak_row(self.results.measure(own_part("coordinator.soak", "soak/1", job)))

    def _part(self, service: str, key: str, phases: list[dict[str, Any]] | None = None) -> Part:
        job = {**self._job(service, key), "phases": phases_of(service, self.plan) if phases is None else phases}
        return own_part("coordinator.measure", key, job)

    def _job(self, service: str, key: str) -> Mapping[str, Any]:
        scratch = str(self.out / "scratch" / key.replace("/", "-"))
        job: dict[str, Any] = {"service": service, "scratch": scratch, "delay_s": DELAY_S, "metrics": self.metrics}
        if service == "ours":
            return {**job, "code": self.code}
        return {**job, "litellm": str(self.litellm())} if service == "litellm" and self.litellm else job


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench coordinator", description="The coordinator beside LiteLLM's proxy."
    )
    harness.add_options(parser, ROWS, also=f", also {SOAK}")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long the row soak lasts (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one round, small sizes: a minute")
    parser.add_argument("--without-litellm", action="store_true", help="only ours and the baselines")
    parser.add_argument("--without-metrics", action="store_true", help="serve no metrics")
    return parser.parse_args(arguments)


def plan_of(given: argparse.Namespace) -> Plan:
    """The size asked for. Raises UsageError."""
    plan = QUICK if given.quick else FULL
    return replace(plan, rounds=harness.rounds_of(given, plan.rounds))


def measure(given: argparse.Namespace) -> int:
    """Measure the rows and write the report; 1 when a goal is missed. Raises EdgeError."""
    plan, metrics = plan_of(given), not given.without_metrics
    run = harness.Run(given, "coordinator", plan.size, (*ROWS, SOAK))
    machine, peer = harness.describe_machine(PACKAGES), None if given.without_litellm else services.litellm_installed
    if peer is not None:
        machine["packages"]["litellm"] = services.litellm_version(peer())
    bench = Bench(plan, run.out, run.results, peer, metrics, harness.commit(), given.minutes)
    about = f" Metrics {'on' if metrics else 'off'}; upstream answers after 5 ms."
    return run.report(bench.row, machine, about, metrics=metrics)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see `harness.command`."""
    return harness.command(lambda: measure(parse(sys.argv[1:] if arguments is None else arguments)))


if __name__ == "__main__":
    sys.exit(main())
