"""`python -m tools.bench PART ...`: benchmarks of this machine. Options after the name belong to the part.

Medians and ratios of one run are comparable; absolute times of a shared machine are not.
"""

from __future__ import annotations

import os
import sys

from edge.core.errors import UsageError
from tools.bench.harness import command
from tools.bench.processes import own

PARTS = {
    "table": "the table of goals, compared with TRL and llama.cpp; most of an hour",
    "coordinator": "the coordinator compared with LiteLLM's proxy; half an hour",
    "endpoint": "the agent's endpoint compared with llama-cpp-python's server; a minute",
    "chat": "a chat of ten turns at both; some minutes",
}
"""What each module measures."""


def main(arguments: list[str]) -> int:
    """Become the part that the first word names. Raises UsageError."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    name, *options = arguments
    if name in PARTS:
        os.execv(sys.executable, own(name, *options))
    raise UsageError(f"unknown part {name!r}", hint=f"there is: {', '.join(PARTS)}")


def usage() -> str:
    """The available parts."""
    parts = [f"  {name:<11} {what}" for name, what in PARTS.items()]
    return "\n".join(
        ["usage: python -m tools.bench PART OPTIONS", "", *parts, "", "The options of a part: python -m tools.bench PART --help"]
    )


if __name__ == "__main__":
    sys.exit(command(lambda: main(sys.argv[1:])))
