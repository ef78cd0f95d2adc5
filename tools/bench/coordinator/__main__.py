"""`python -m tools.bench coordinator`: the coordinator beside LiteLLM's proxy, measured side by side in one run.

Rates are per second of processor time of the service's whole process tree; latencies are what the service adds to the mock cloud LLM's.
The ledger is durable (SQLite, synchronous=FULL), every call shows a token, and metrics are served where this version has them. Results
lie in the folder `--out`, one file a process, and a run that was cut goes on where it stopped. Ends with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge.core.errors import EdgeError, UsageError
from tools.bench.coordinator import litellm_proxy, ours
from tools.bench.coordinator.plan import FULL, QUICK, ROWS, SOAK, Plan
from tools.bench.coordinator.run import Bench
from tools.bench.table.__main__ import CACHE, about, leave
from tools.bench.table.machine import QUIET_LOAD, commit, describe_machine, load_1min
from tools.bench.table.parts import Results, write_json
from tools.bench.table.screen import LineScreen
from tools.bench.table.verdicts import Row, markdown

PACKAGES = ("edge-agent", "grpcio", "protobuf", "aiohttp", "msgspec", "cryptography", "pyjwt")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench coordinator", description="The coordinator beside LiteLLM's proxy."
    )
    parser.add_argument("--rows", default=",".join(ROWS), help="comma separated, also soak (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long the row soak lasts (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help="rounds in which services alternate (default: of the size)")
    parser.add_argument("--quick", action="store_true", help="one round, small sizes: a minute")
    parser.add_argument("--without-litellm", action="store_true", help="only ours and the baselines")
    parser.add_argument("--without-metrics", action="store_true", help="serve no metrics")
    parser.add_argument("--fresh", action="store_true", help="measure again what lies in the folder already")
    parser.add_argument("--out", type=Path, help="folder for the results (default: runs/bench/coordinator-SIZE)")
    return parser.parse_args(arguments)


def rows_of(text: str) -> list[str]:
    """The rows named. Raises UsageError for an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in (*ROWS, SOAK)]
    if unknown or not names:
        raise UsageError(f"unknown row {', '.join(unknown) or repr(text)}", hint=f"there is: {', '.join((*ROWS, SOAK))}")
    return names


def plan_of(given: argparse.Namespace) -> Plan:
    """The size asked for. Raises UsageError."""
    plan = QUICK if given.quick else FULL
    if given.rounds is None:
        return plan
    if given.rounds < 1:
        raise UsageError(f"--rounds must be at least 1, not {given.rounds}")
    return replace(plan, rounds=given.rounds)


def measure(given: argparse.Namespace) -> int:
    """Measure the rows and write the report; 1 when a goal is missed. Raises EdgeError."""
    names, plan, screen = rows_of(given.rows), plan_of(given), LineScreen()
    out = (given.out or CACHE / f"coordinator-{plan.size}").resolve()
    load, metrics = load_1min(), ours.has_metrics() and not given.without_metrics
    if load > QUIET_LOAD:
        print(f"the machine is busy (load {load:.1f}): compare within a row only", file=sys.stderr)
    peer = None if given.without_litellm else litellm_proxy.installed
    machine = described(peer is not None)
    bench = Bench(plan, out, Results(out, screen, fresh=given.fresh), peer, metrics, commit(), given.minutes)
    done: list[Row] = []
    sentence = f"{about(plan.size, load)} Metrics {'on' if metrics else 'off'}; upstream answers after 5 ms."
    for name in names:
        screen.title(name)
        done.append(bench.row(name))
        told = {"size": plan.size, "load_before": load, "machine": machine, "metrics": metrics}
        write_json(out / "coordinator.json", {**told, "rows": [row.to_json() for row in done]})
        (out / "coordinator.md").write_text(markdown(done, machine, sentence), encoding="utf-8")
    print(markdown(done, machine, sentence))
    print(f"every sample: {out / 'coordinator.json'}", file=sys.stderr)
    return int(any(row.missed for row in done))


def described(with_peer: bool) -> dict[str, Any]:
    """The machine with the versions that matter here."""
    machine = describe_machine(PACKAGES)
    if with_peer:
        machine["packages"]["litellm"] = litellm_proxy.version_of(litellm_proxy.installed())
    return machine


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 all goals met, 1 a goal missed or a failure, 2 wrong use."""
    signal.signal(signal.SIGTERM, leave)
    try:
        return measure(parse(sys.argv[1:] if arguments is None else arguments))
    except EdgeError as error:
        print(f"{error}" + (f" ({error.hint})" if error.hint else ""), file=sys.stderr)
        return error.exit_code
    except json.JSONDecodeError as error:
        print(f"a result cannot be read: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
