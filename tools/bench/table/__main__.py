"""`python -m tools.bench table`: the table of goals, measured side by side in one run.

Every figure comes from a process of its own; results lie in the folder `--out`, one file a process, and a run that was cut goes on where it
stopped. Ends with 1 when a goal is missed, so that a machine can watch it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from edge.core.errors import EdgeError, UsageError
from edge.core.machine import usable_cores
from tools.bench.table import peers
from tools.bench.table.jobs import Places
from tools.bench.table.machine import QUIET_LOAD, describe_machine, load_1min
from tools.bench.table.parts import REPOSITORY, Results, write_json
from tools.bench.table.plan import FULL, QUICK, ROWS, TINY, Plan
from tools.bench.table.run import Bench
from tools.bench.table.screen import LineScreen
from tools.bench.table.verdicts import Row, markdown

CACHE = REPOSITORY / "runs" / "bench"


@dataclass(frozen=True, slots=True)
class MadePeers:
    """Peers in the cache folder, made when they are missing."""

    cache: Path
    screen: LineScreen

    def trl_python(self) -> Path:
        """The interpreter of the environment with TRL."""
        return peers.trl_python(self.cache, self.screen)

    def batched_bench(self) -> Path:
        """llama.cpp's program."""
        return peers.batched_bench(self.cache, self.screen)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench table", description="The table of goals, measured in one run.")
    parser.add_argument("--rows", default=",".join(ROWS), help="comma separated (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help="rounds in which competitors alternate (default: of the size)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="one round, few steps")
    size.add_argument("--tiny", action="store_true", help="tries the bench out; the figures mean nothing")
    parser.add_argument("--fresh", action="store_true", help="measure again what lies in the folder already")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="threads of every competitor (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder for the results (default: runs/bench/table-SIZE)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for models and peers (default: runs/bench)")
    return parser.parse_args(arguments)


def rows_of(text: str) -> list[str]:
    """The rows named. Raises UsageError for an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in ROWS]
    if unknown or not names:
        raise UsageError(f"unknown row {', '.join(unknown) or repr(text)}", hint=f"there is: {', '.join(ROWS)}")
    return names


def plan_of(given: argparse.Namespace) -> Plan:
    """The size asked for, with the rounds asked for. Raises UsageError."""
    plan = TINY if given.tiny else QUICK if given.quick else FULL
    if given.rounds is None:
        return plan
    if given.rounds < 1:
        raise UsageError(f"--rounds must be at least 1, not {given.rounds}")
    small, large = replace(plan.small, rounds=given.rounds), replace(plan.large, rounds=given.rounds)
    return replace(plan, small=small, large=large, rollout_rounds=given.rounds)


def measure(given: argparse.Namespace) -> int:
    """Measure the rows and write the report; 1 when a goal is missed. Raises EdgeError."""
    names, plan, screen = rows_of(given.rows), plan_of(given), LineScreen()
    out = (given.out or CACHE / f"table-{plan.size}").resolve()
    machine, load = describe_machine(), load_1min()
    if load > QUIET_LOAD:
        print(f"the machine is busy (load {load:.1f}): these figures will not be worth reporting", file=sys.stderr)
    cache = given.cache.resolve()
    for line in beginning(plan, names, cache):
        print(line, file=sys.stderr)
    bench = Bench(plan, Places(cache, out), Results(out, screen, fresh=given.fresh), MadePeers(cache, screen), given.threads)
    done: list[Row] = []
    for name in names:
        screen.title(name)
        done.append(bench.row(name))
        report = {"size": plan.size, "threads": given.threads, "load_before": load, "machine": machine}
        write_json(out / "table.json", {**report, "rows": [row.to_json() for row in done]})
        (out / "table.md").write_text(markdown(done, machine, about(plan.size, load)), encoding="utf-8")
    print(markdown(done, machine, about(plan.size, load)))
    print(f"every sample: {out / 'table.json'}", file=sys.stderr)
    return int(any(row.missed for row in done))


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


def about(size: str, load: float) -> str:
    """How this was measured, in a sentence before the machine."""
    doubt = "" if load <= QUIET_LOAD else f" The machine was busy (load {load:.1f}), so these figures mean little."
    nothing = " A try of the bench itself at sizes that mean nothing." if size == "tiny" else ""
    return f"Measured side by side in one run, {time.strftime('%d %B %Y', time.gmtime())}.{doubt}{nothing}"


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


def leave(number: int, _frame: object) -> NoReturn:
    """Leave by way of every `finally`, so that the process being measured ends too."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
