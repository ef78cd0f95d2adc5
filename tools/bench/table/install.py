"""From a clean checkout to a learning agent: clone, `make run`, one learned step; nothing comes from pip's cache.

    python -m tools.bench.table.install JOB RESULT

Knows git and make. The time includes downloading packages, so it depends on the connection, and building llama.cpp.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.bench.harness import measured_process
from tools.bench.processes import REPOSITORY


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Clone, install, learn one step; seconds of both parts."""
    scratch = Path(job["scratch"])
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    checkout, environment = scratch / "checkout", {**os.environ, "XDG_DATA_HOME": str(scratch / "data")}
    try:
        began = time.perf_counter()
        subprocess.run(["git", "clone", "--quiet", "--shared", str(REPOSITORY), str(checkout)], check=True)
        print("installing", flush=True)
        subprocess.run(["make", "install"], cwd=checkout, env=environment, check=True)
        installed = time.perf_counter()
        print("learning one step", flush=True)
        command = ["make", "run", "ARGS=--steps 1 --port 0"]
        subprocess.run(command, cwd=checkout, env=environment, check=True)
        learned = time.perf_counter()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return {"seconds": learned - began, "install_s": installed - began, "first_step_s": learned - installed}


def main(paths: Sequence[str]) -> None:
    """The process."""
    measured_process(measure, paths)


if __name__ == "__main__":
    main(sys.argv[1:])
