"""From a clean checkout to a learning agent: clone, `make run`, one learned step; without pip's cache. The time includes downloading
packages, so it depends on the connection, and building llama.cpp.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

from tools.bench.processes import REPOSITORY, scratch_folder


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Clone, install, learn one step; seconds of both parts."""
    with scratch_folder(job) as scratch:
        checkout, environment = scratch / "checkout", {**os.environ, "XDG_DATA_HOME": str(scratch / "data")}
        began = time.perf_counter()
        subprocess.run(["git", "clone", "--quiet", "--shared", str(REPOSITORY), str(checkout)], check=True)
        print("installing", flush=True)
        subprocess.run(["make", "install"], cwd=checkout, env=environment, check=True)
        installed = time.perf_counter()
        print("learning one step", flush=True)
        command = ["make", "run", "ARGS=--steps 1 --port 0"]
        subprocess.run(command, cwd=checkout, env=environment, check=True)
        learned = time.perf_counter()
    return {"seconds": learned - began, "install_s": installed - began, "first_step_s": learned - installed}
