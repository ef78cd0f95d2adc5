"""`python -m tools.bench`: what this machine does, one part after the other, each in a process of its own.

What follows the name of one part is that part's own (`python -m tools.bench sandbox --help`); without a name, or with several, all run
one after the other. `python -m tools.bench table` is the table of goals against TRL and llama.cpp (tools/bench/table), `python -m
tools.bench coordinator` the coordinator beside LiteLLM's proxy (tools/bench/coordinator); each takes the better part of an hour. `python
-m tools.bench endpoint` is the agent's endpoint beside llama-cpp-python's server.

Medians and ratios of one run are comparable; absolute times of a shared machine are not.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

PARTS = {
    "rollout": "rollout tokens/s of the llama.cpp backend by rows in flight",
    "update": "seconds and peak memory of one DA-GRPO update, prefix shared and plain",
    "sandbox": "time per judged program, in the sandbox that this machine has",
}


def main(arguments: list[str]) -> int:
    """Run the parts named on the command line, or all; 2 when a name is unknown. Options after one name are that part's own."""
    if arguments[:1] == ["table"]:
        from tools.bench.table.__main__ import main as table

        return table(arguments[1:])
    if arguments[:1] == ["coordinator"]:
        from tools.bench.coordinator.__main__ import main as coordinator

        return coordinator(arguments[1:])
    if arguments[:1] == ["endpoint"]:
        return run("endpoint", arguments[1:])
    if arguments and arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    if arguments[:1] and arguments[0] in PARTS and any(word.startswith("-") for word in arguments):
        return run(arguments[0], arguments[1:])
    unknown = [name for name in arguments if name not in PARTS]
    if unknown:
        print(f"unknown part {unknown[0]!r}; there is: {', '.join(PARTS)}, table, coordinator and endpoint", file=sys.stderr)
        return 2
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores")
    for name in arguments or PARTS:
        print(f"\n== {name}: {PARTS[name]}", flush=True)
        if code := run(name, []):
            return code
    return 0


def run(name: str, options: list[str]) -> int:
    """Run one part in a process of its own, with options of its own; its exit code."""
    return subprocess.run([sys.executable, "-m", f"tools.bench.{name}", *options], check=False).returncode


def usage() -> str:
    """What there is to run."""
    parts = {
        **PARTS,
        "table": "the table of goals, beside TRL and llama.cpp; the better part of an hour",
        "coordinator": "the coordinator beside LiteLLM's proxy; half an hour",
        "endpoint": "the agent's endpoint beside llama-cpp-python's server; a minute",
    }
    return "\n".join(
        [
            "usage: python -m tools.bench [PART ...] | PART OPTIONS",
            "",
            "Without a PART: rollout, update and sandbox, which measure this project alone; table, coordinator and endpoint compare.",
            "",
            *(f"  {name:<11} {what}" for name, what in parts.items()),
            "",
            "The options of a part: python -m tools.bench PART --help",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
