"""Where the processor time of one call goes, at one of the coordinator's doors: its service samples itself under load."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from tools.bench.coordinator.measure import loaded
from tools.bench.coordinator.services import started
from tools.bench.processes import ProcessFailed, scratch_folder

WRITER, MAIN = "ledger-writer", "MainThread"
RESULT_S = 10.0


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Microseconds of a call by group; `per_call_us` is the whole of it, sampling included."""
    with scratch_folder(job) as scratch:
        result = scratch / "profile.json"
        program = ("tools.bench.coordinator.profiled", str(result))
        with started({**job, "program": program}, scratch) as service:
            loaded(service, {**job["calls"], "phase": "warm", "seconds": 1.0}, scratch)
            os.kill(service.server.pid, signal.SIGUSR1)
            found = loaded(service, {**job["calls"], "phase": "calls"}, scratch)
            os.kill(service.server.pid, signal.SIGUSR2)
            end = time.monotonic() + RESULT_S
            while not result.exists():
                if time.monotonic() > end:
                    raise ProcessFailed("the coordinator wrote no profile")
                time.sleep(0.05)
            profile = json.loads(result.read_text(encoding="utf-8"))
    per_call_us = 1e6 * found["spent_s"]["service"] / found["calls"]
    return {"per_call_us": per_call_us, "errors": found["errors"], **divided(profile, per_call_us), "profile": profile}


def divided(profile: Mapping[str, Any], per_call_us: float) -> dict[str, dict[str, float]]:
    """The whole of a call divided by threads, and the main one's part by groups."""
    threads: Mapping[str, float] = profile["threads"]
    of_all = per_call_us / sum(threads.values())
    parts = {name: seconds * of_all for name, seconds in threads.items()}
    main = parts.pop(MAIN)
    sampled = sum(profile["groups"].values())
    groups = {name: main * seconds / sampled for name, seconds in profile["groups"].items()}
    others = {"writer thread: commits": parts.pop(WRITER, 0.0), "threads of libraries and others": sum(parts.values())}
    return {"us": {**groups, **others}}
