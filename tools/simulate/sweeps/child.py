"""One run of a sweep in a process of its own: asked on stdin, written to a file.

The request is {"run": "module:function", "scenario": {...}, "seed": 1, "out": path}. The result comes to its place in one move, so that a
process which was stopped leaves none.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edge.core.errors import EdgeError
from tools.simulate.reports.places import put
from tools.simulate.reports.result import SimulationResult

RunScenario = Callable[[Mapping[str, Any], int], SimulationResult]


def played(run: str, scenario: Mapping[str, Any], seed: int) -> bytes:
    """The JSON of a run's result. Raises what the run raises."""
    module, _, name = run.partition(":")
    play: RunScenario = getattr(importlib.import_module(module), name)
    return play(scenario, seed).to_json()


def main() -> int:
    """Play what stdin asks for."""
    asked = json.load(sys.stdin)
    try:
        put(played(asked["run"], asked["scenario"], asked["seed"]), Path(asked["out"]))
    except EdgeError as error:
        print(f"{error}; {error.hint}" if error.hint else str(error), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
