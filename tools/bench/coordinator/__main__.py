"""`python -m tools.bench coordinator`: the coordinator beside LiteLLM's proxy, measured side by side in one run.

Rates are per second of processor time of the service's whole process tree; latencies are what the service adds to the mock cloud LLM's.
The ledger is durable (SQLite, synchronous=FULL), every call shows a token, and metrics are served where this version has them. Results
lie in the folder `--out`, one file a process, and a run that was cut goes on where it stopped. Ends with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tools.bench import harness
from tools.bench.coordinator import litellm_proxy, ours
from tools.bench.coordinator.plan import FULL, QUICK, ROWS, SOAK, Plan
from tools.bench.coordinator.run import Bench

PACKAGES = ("edge-agent", "grpcio", "protobuf", "aiohttp", "msgspec", "cryptography", "pyjwt")


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
    names, plan, screen = harness.rows_of(given.rows, (*ROWS, SOAK)), plan_of(given), harness.Screen()
    out = (given.out or harness.CACHE / f"coordinator-{plan.size}").resolve()
    load, metrics = harness.load_1min(), ours.has_metrics() and not given.without_metrics
    if load > harness.QUIET_LOAD:
        print(f"the machine is busy (load {load:.1f}): compare within a row only", file=sys.stderr)
    peer = None if given.without_litellm else litellm_proxy.installed
    results = harness.Results(out, screen, fresh=given.fresh)
    bench = Bench(plan, out, results, peer, metrics, harness.commit(), given.minutes)
    about = f"{harness.about(load)} Metrics {'on' if metrics else 'off'}; upstream answers after 5 ms."
    facts = {"size": plan.size, "load_before": load, "metrics": metrics}
    return harness.report(out / "coordinator", names, bench.row, screen, described(peer is not None), about, **facts)


def described(with_peer: bool) -> dict[str, Any]:
    """The machine with the versions that matter here."""
    machine = harness.describe_machine(PACKAGES)
    if with_peer:
        machine["packages"]["litellm"] = litellm_proxy.version_of(litellm_proxy.installed())
    return machine


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see `harness.command`."""
    return harness.command(lambda: measure(parse(sys.argv[1:] if arguments is None else arguments)))


if __name__ == "__main__":
    sys.exit(main())
