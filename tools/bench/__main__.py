"""`python -m tools.bench`: benchmarks of this machine, one part after the other, each in its own process.

Options after the name of a single part belong to that part (`python -m tools.bench sandbox --help`); without a name, or with several, all
run one after the other. `python -m tools.bench table` is the table of goals against TRL and llama.cpp (tools/bench/table), `python -m
tools.bench coordinator` the coordinator beside LiteLLM's proxy (tools/bench/coordinator); each takes most of an hour. `python -m
tools.bench endpoint` is the agent's endpoint beside llama-cpp-python's server.

Medians and ratios of one run are comparable; absolute times of a shared machine are not.
"""

from __future__ import annotations

import os
import subprocess
import sys

from edge.core.errors import UsageError
from tools.bench.harness import command

ALONE = {
    "rollout": "rollout tokens/s of the llama.cpp backend by rows in flight",
    "update": "seconds and peak memory of one DA-GRPO update, prefix shared and plain",
    "sandbox": "time per judged program, in the sandbox that this machine has",
}
BESIDE = {
    "table": "the table of goals, beside TRL and llama.cpp; the better part of an hour",
    "coordinator": "the coordinator beside LiteLLM's proxy; half an hour",
    "endpoint": "the agent's endpoint beside llama-cpp-python's server; a minute",
}


def main(arguments: list[str]) -> int:
    """Run the parts named on the command line, or all that need no peer. Raises UsageError."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(usage())
        return 0
    name, *options = arguments or [""]
    if name in BESIDE or (name in ALONE and any(word.startswith("-") for word in options)):
        os.execv(sys.executable, [*module(name), *options])
    if unknown := [name for name in arguments if name not in {*ALONE, *BESIDE}]:
        raise UsageError(f"unknown part {unknown[0]!r}", hint=f"there is: {', '.join([*ALONE, *BESIDE])}")
    if beside := [name for name in arguments if name in BESIDE]:
        raise UsageError(f"{beside[0]} is measured by itself", hint=f"python -m tools.bench {beside[0]}")
    for name in arguments or ALONE:
        print(f"\n== {name}: {ALONE[name]}", flush=True)
        if code := subprocess.run(module(name), check=False).returncode:
            return code
    return 0


def module(name: str) -> list[str]:
    """The command of a part."""
    return [sys.executable, "-m", f"tools.bench.{name}"]


def usage() -> str:
    """The available parts."""
    return "\n".join(
        [
            "usage: python -m tools.bench [PART ...] | PART OPTIONS",
            "",
            f"Without a PART: {', '.join(ALONE)}, which measure this project alone; {', '.join(BESIDE)} compare.",
            "",
            *(f"  {name:<11} {what}" for name, what in {**ALONE, **BESIDE}.items()),
            "",
            "The options of a part: python -m tools.bench PART --help",
        ]
    )


if __name__ == "__main__":
    sys.exit(command(lambda: main(sys.argv[1:])))
