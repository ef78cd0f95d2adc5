"""`python -m tools.bench table`: the table of goals, measured side by side in one run.

Every figure comes from a process of its own; results lie in the folder `--out`, one file a process, and a run that was cut goes on where it
stopped. Ends with 1 when a goal is missed, so that a machine can watch it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edge.core.machine import usable_cores
from tools.bench import harness
from tools.bench.table import peers
from tools.bench.table.jobs import Places
from tools.bench.table.plan import FULL, QUICK, ROWS, TINY, Plan
from tools.bench.table.run import Bench


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench table", description="The table of goals, measured in one run.")
    harness.add_options(parser, ROWS)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="one round, few steps")
    size.add_argument("--tiny", action="store_true", help="tries the bench out; the figures mean nothing")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="threads of every competitor (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=harness.CACHE, help="folder for models and peers (default: runs/bench)")
    return parser.parse_args(arguments)


def plan_of(given: argparse.Namespace) -> Plan:
    """The size asked for, with the rounds asked for. Raises UsageError."""
    plan = TINY if given.tiny else QUICK if given.quick else FULL
    small, large = (replace(work, rounds=harness.rounds_of(given, work.rounds)) for work in (plan.small, plan.large))
    return replace(plan, small=small, large=large, rollout_rounds=harness.rounds_of(given, plan.rollout_rounds))


def measure(given: argparse.Namespace) -> int:
    """Measure the rows and write the report; 1 when a goal is missed. Raises EdgeError."""
    names, plan, screen = harness.rows_of(given.rows, ROWS), plan_of(given), harness.Screen()
    out, cache = (given.out or harness.CACHE / f"table-{plan.size}").resolve(), given.cache.resolve()
    load = harness.load_1min()
    if load > harness.QUIET_LOAD:
        print(f"the machine is busy (load {load:.1f}): these figures will not be worth reporting", file=sys.stderr)
    print("\n".join(beginning(plan, names, cache)), file=sys.stderr)
    bench = Bench(plan, Places(cache, out), harness.Results(out, screen, fresh=given.fresh), screen, given.threads)
    nothing = " A try of the bench itself at sizes that mean nothing." if plan.size == "tiny" else ""
    facts = {"size": plan.size, "threads": given.threads, "load_before": load}
    return harness.report(
        out / "table", names, bench.row, screen, harness.describe_machine(), harness.about(load) + nothing, **facts
    )


def beginning(plan: Plan, names: Sequence[str], cache: Path) -> list[str]:
    """What is going to be made first, and about how long that and the measuring take."""
    missing = peers.missing(cache)
    lasts = {"tiny": "some minutes", "quick": "half an hour or less"}.get(plan.size, "the better part of an hour")
    lines = [f"measuring {', '.join(names)} at size {plan.size}: {lasts} on two cores"]
    if missing:
        lines.append(
            f"first, where a row needs it, {' and '.join(missing)} are built in {cache}: 5 to 15 minutes, once, over the network"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see `harness.command`."""
    return harness.command(lambda: measure(parse(sys.argv[1:] if arguments is None else arguments)))


if __name__ == "__main__":
    sys.exit(main())
