"""The process of a measured part: `python -m tools.bench.part MODULE JOB RESULT`.

Reads the job, calls `measure` of the module under tools.bench and writes the result; both are JSON files.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path


def main(arguments: Sequence[str]) -> None:
    """Measure, in this process."""
    module, job, result = arguments
    found = importlib.import_module(f"tools.bench.{module}").measure(json.loads(Path(job).read_text(encoding="utf-8")))
    if inspect.iscoroutine(found):
        found = asyncio.run(found)
    Path(result).write_text(json.dumps(found, default=asdict), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
