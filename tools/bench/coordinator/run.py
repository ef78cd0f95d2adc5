"""The rows of the table: which processes in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench.coordinator import rows
from tools.bench.coordinator.plan import DELAY_S, SOAK, Plan, calls_phase, latency_phase, phases_of
from tools.bench.harness import Part, Results, Row
from tools.bench.processes import own

MEMORY_LOOKS = 10
SOAK_LOOKS = 8


@dataclass(frozen=True, slots=True)
class Bench:
    """Measures rows. `litellm` gives the proxy's command, or None to go without; `code` tells versions of ours apart."""

    plan: Plan
    out: Path
    results: Results
    litellm: Callable[[], Path] | None
    metrics: bool
    code: str
    minutes: float = 2.0

    def row(self, name: str) -> Row:
        """One row by name. Raises EdgeError when something cannot be measured."""
        measure: dict[str, Callable[[], Row]] = {
            "calls": self.calls,
            "memory": self.memory,
            "idle": self.idle,
            "recovery": self.recovery,
            SOAK: self.soak,
        }
        return measure[name]()

    def calls(self) -> Row:
        """All services, round by round."""
        services = ["ours", *(["litellm"] if self.litellm else []), "echo-grpc", "echo-http"]
        parts = {name: lambda key, name=name: self._part(name, key) for name in services}
        row = rows.calls_row(self.results.alternating("calls", parts, self.plan.rounds))
        if row.missed:  # where our time goes, from a round of its own whose stacks are watched
            watched = self.results.measure(self._part("ours", "profile/calls", [calls_phase(self.plan)], profile=True))
            row.profile = rows.profile_lines(watched["profile"])
        return row

    def memory(self) -> Row:
        """Ours after many calls, looked at again and again; LiteLLM's from the first round of calls."""
        looks = [{**calls_phase(self.plan), "phase": f"calls-{look}"} for look in range(MEMORY_LOOKS)]
        counted = [{**look, "calls": self.plan.memory_calls // MEMORY_LOOKS, "warmup_s": 0.0} for look in looks]
        ours = [self.results.measure(self._part("ours", "memory/ours", counted))]
        peer = [self.results.measure(self._part("litellm", "calls/litellm/1"))] if self.litellm else []
        return rows.memory_row(ours, peer)

    def idle(self) -> Row:
        """Idle devices beside a caller."""
        latency = {**latency_phase(self.plan), "slices": 1, "slice_calls": self.plan.idle_calls, "warmup_calls": 20}
        job = {**self._job("ours", "idle"), "devices": self.plan.idle_devices, "latency": latency}
        return rows.idle_row([self.results.measure(Part("idle/1", own("coordinator.idle"), job))])

    def recovery(self) -> Row:
        """After SIGKILL."""
        sizes = {"entries": self.plan.recovery_entries, "holds": self.plan.recovery_holds}
        keys = [f"recovery/{number}" for number in range(1, min(3, self.plan.rounds) + 1)]
        parts = [Part(key, own("coordinator.recovery"), {**self._job("ours", key), **sizes}) for key in keys]
        return rows.recovery_row([self.results.measure(part) for part in parts], self.plan.recovery_holds)

    def soak(self) -> Row:
        """Minutes of mixed load with faults."""
        job = {**self._job("ours", SOAK), "minutes": self.minutes, "looks": SOAK_LOOKS, "seed": 0}
        return rows.soak_row(self.results.measure(Part("soak/1", own(f"coordinator.{SOAK}"), job)))

    def _part(self, service: str, key: str, phases: list[dict[str, Any]] | None = None, *, profile: bool = False) -> Part:
        job = {**self._job(service, key), "phases": phases_of(service, self.plan) if phases is None else phases}
        return Part(key, own("coordinator.measure"), {**job, **({"profile": True} if profile else {})})

    def _job(self, service: str, key: str) -> Mapping[str, Any]:
        scratch = str(self.out / "scratch" / key.replace("/", "-"))
        job: dict[str, Any] = {"service": service, "scratch": scratch, "delay_s": DELAY_S, "metrics": self.metrics}
        if service == "ours":
            return {**job, "code": self.code}
        return {**job, "litellm": str(self.litellm())} if service == "litellm" and self.litellm else job
