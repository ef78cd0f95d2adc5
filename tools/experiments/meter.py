"""What a run costs in time, processor and memory. Knows one file for each process that worked on a run; knows nothing of what it does.

The file is written again and again, so that a killed process loses little of its account.
"""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.core.clock import Clock
from edge.core.machine import MachineFacts
from tools.bench.table.memory_watch import memory_now
from tools.experiments.held_out import write_whole

_ROOT = Path(__file__).resolve().parents[2]
_CODE = ("edge", "coordinator", "tools/experiments/*.py")


class Meter:
    """The account of this process. `coordinator`: the process id of its coordinator while it runs."""

    def __init__(self, folder: Path, clock: Clock, coordinator: Callable[[], int | None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{int(clock.now() * 1000)}.json"
        self._clock = clock
        self._began = clock.monotonic()
        self._coordinator = coordinator
        self._coordinator_cpu_s, self._coordinator_peak_mib = 0.0, 0.0
        self._commit = commit_of(_ROOT)

    def note(self) -> None:
        """Write down what was used so far; programs are those that this process has waited for (judged programs)."""
        own, programs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        self._look_at_coordinator()
        body = {
            "commit": self._commit,
            "wall_s": round(self._clock.monotonic() - self._began, 1),
            "cpu_agent_s": round(own.ru_utime + own.ru_stime, 1),
            "cpu_programs_s": round(programs.ru_utime + programs.ru_stime, 1),
            "cpu_coordinator_s": round(self._coordinator_cpu_s, 1),
            "peak_agent_mib": round(memory_now().get("peak_mib", 0.0)),
            "peak_coordinator_mib": round(self._coordinator_peak_mib),
        }
        write_whole(self._file, json.dumps(body))

    def _look_at_coordinator(self) -> None:
        import psutil

        pid = self._coordinator()
        if pid is None:
            return
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:
            return
        self._coordinator_cpu_s = times.user + times.system
        self._coordinator_peak_mib = max(self._coordinator_peak_mib, memory_now(pid).get("peak_mib", 0.0))


def account(folder: Path) -> dict[str, Any]:
    """The processes of a run together: sums of seconds, the highest peaks, and every commit that had a part in it."""
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    summed = ("wall_s", "cpu_agent_s", "cpu_programs_s", "cpu_coordinator_s")
    return {
        "commits": list(dict.fromkeys(part["commit"] for part in parts)),
        "processes": len(parts),
        **{name: round(sum(part[name] for part in parts), 1) for name in summed},
        **{name: max((part[name] for part in parts), default=0) for name in ("peak_agent_mib", "peak_coordinator_mib")},
    }


def commit_of(root: Path) -> str:
    """The commit that is checked out, with a + where the code differs from it; "" without git."""
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no", "--", *_CODE) else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine_told(facts: MachineFacts) -> dict[str, Any]:
    """Processor, cores and memory; no names of hosts or people."""
    return {"cpu": facts.chip or facts.board or facts.architecture, "cores": facts.cores, "memory_mib": facts.memory_mib}


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
