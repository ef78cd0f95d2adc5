"""Time per judged program: `python -m tools.bench.sandbox [--sandbox NAME] [--data HumanEval.jsonl.gz]`.

The programs are HumanEval's canonical solutions where the file is given or in ../shared/data, else generated ones of the practice family
`code`. Shown are the first verdict of a process (with the probe of the sandbox), the others, the same with one per core concurrently,
cached verdicts, and CPU time. Times of a busy machine mean little; CPU time means more.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from edge.core.clock import Clock, SystemClock
from edge.core.errors import UsageError
from edge.core.types import AnswerKind
from edge.dagrpo.answers import last_python_block
from edge.verifiers.program import ProgramJudge, ProgramTests
from edge.verifiers.sandbox.choice import choose_sandbox
from edge.verifiers.sandbox.role import SandboxLimits
from tools.bench.harness import command, show

HUMANEVAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "humaneval" / "HumanEval.jsonl.gz"
_PRACTICE_PROGRAMS = 100


def programs_of(data: Path) -> list[ProgramTests]:
    """HumanEval's solutions from the file, or practice programs where there is none."""
    if not data.is_file():
        return practice_programs()
    with gzip.open(data, "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return [
        ProgramTests(record["prompt"] + record["canonical_solution"], f"{record['test']}\n\ncheck({record['entry_point']})\n")
        for record in records
    ]


def practice_programs() -> list[ProgramTests]:
    """Worked solutions of the practice family `code`."""
    from edge.tasks.registry import open_source

    items = islice(open_source("practice:code").train(0), _PRACTICE_PROGRAMS)
    found = [(last_python_block(item.solution), item) for item in items if item.kind is AnswerKind.PROGRAM]
    return [ProgramTests(code, item.answer, item.preamble) for code, item in found if code is not None]


def measure(name: str, programs: Sequence[ProgramTests], clock: Clock) -> dict[str, Any]:
    """Seconds of one sandbox: the first verdict of the process, the others one at a time, concurrently, and from the cache."""
    limits = SandboxLimits(wall_s=30.0)
    start = clock.monotonic()
    sandbox = choose_sandbox(name, unsafe=name == "none")
    judge = ProgramJudge(lambda: sandbox, limits, clock=clock)
    passed = int(judge.verdict(programs[0]).passed)
    first_s, cpu, times = clock.monotonic() - start, cpu_seconds(), []
    for program in programs[1:]:
        start = clock.monotonic()
        passed += judge.verdict(program).passed
        times.append(clock.monotonic() - start)
    cpu = (cpu_seconds() - cpu) / len(times)
    at_once_s = batch_seconds(ProgramJudge(lambda: sandbox, limits, clock=clock), programs, clock)
    remembered_s = batch_seconds(judge, programs, clock)
    times.sort()
    p95 = times[int(0.95 * (len(times) - 1))]
    seconds = {
        "first_s": first_s,
        "median_s": statistics.median(times),
        "p95_s": p95,
        "slowest_s": times[-1],
        "cpu_s": cpu,
        "at_once_s": at_once_s,
        "remembered_s": remembered_s,
    }
    counts = {"sandbox": sandbox.name, "programs": len(programs), "passed": passed}
    return {**counts, **{name: round(value, 5) for name, value in seconds.items()}}


def batch_seconds(judge: ProgramJudge, programs: Sequence[ProgramTests], clock: Clock) -> float:
    """Seconds per program when many threads ask."""
    start = clock.monotonic()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(judge.verdict, programs))
    return (clock.monotonic() - start) / len(programs)


def cpu_seconds() -> float:
    """CPU time of this process and of its ended children."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each sandbox and print a line for it."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.sandbox", description="Time per judged program.")
    parser.add_argument("--sandbox", default="auto", help="names, comma separated (default: %(default)s)")
    parser.add_argument("--data", type=Path, default=HUMANEVAL)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args(arguments)
    if given.data != HUMANEVAL and not given.data.is_file():
        raise UsageError(f"--data {given.data} is no file", hint="give HumanEval.jsonl.gz, or leave the option out")
    programs = programs_of(given.data)
    if not given.json:
        load = os.getloadavg()[0]
        print(f"{len(programs)} programs of {given.data.name if given.data.is_file() else 'practice:code'}, load {load:.1f}")
    show((measure(name, programs, SystemClock()) for name in given.sandbox.split(",")), as_json=given.json)
    return 0


if __name__ == "__main__":
    sys.exit(command(main))
