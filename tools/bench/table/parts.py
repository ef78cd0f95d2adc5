"""The measured pieces of a run and their results on disk, one file each, so that a run that was cut goes on where it stopped.

Knows jobs, results and when a stored one still counts; knows nothing of what is measured. A piece is a command that is given two
paths behind its own arguments: a job to read and a result to write, both JSON. A result that names `files` counts as long as they exist.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from edge.core.files import write_atomically
from tools.bench.table.children import Tell, run_child
from tools.bench.table.machine import load_1min

REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Part:
    """One measured process. `key` is its name and its file's (`small/trl-fp32/1`), `job` plain JSON, `environment` beside our own."""

    key: str
    command: tuple[str, ...]
    job: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 7200.0

    @property
    def digest(self) -> str:
        """What must be equal for a stored result to count."""
        told = {"command": self.command[1:], "job": self.job, "environment": dict(self.environment)}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


class Screen(Protocol):
    """Where a person watches."""

    def begin(self, key: str) -> Tell:
        """A part begins; the answer is told how it goes."""
        ...

    def end(self, key: str, seconds: float, note: str) -> None:
        """A part is over."""
        ...


RunPart = Callable[[Part, Path, Path, Tell], float]
"""Carries a part out: (part, job file, result file, tell) -> seconds. The log lies beside the result."""


class Results:
    """A folder of results. With `fresh`, stored ones do not count but those of this run do."""

    def __init__(self, folder: Path, screen: Screen, *, fresh: bool = False, run: RunPart | None = None) -> None:
        self._folder = folder
        self._screen = screen
        self._fresh = fresh
        self._run = run or run_part
        self._of_this_run: dict[str, str] = {}

    def measure(self, part: Part) -> dict[str, Any]:
        """The part's result, measured now unless an equal part's lies here. Raises ChildFailed."""
        file = self._folder / "parts" / f"{part.key}.json"
        stored = self._stored(part, file)
        if stored is not None:
            self._screen.end(part.key, stored["seconds"], "read back")
            return _result(stored)
        return self._measured(part, file)

    def _stored(self, part: Part, file: Path) -> dict[str, Any] | None:
        if self._fresh and self._of_this_run.get(part.key) != part.digest:
            return None
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(stored, dict) or stored.get("digest") != part.digest:
            return None
        return stored if all(Path(made).exists() for made in stored["result"].get("files", ())) else None

    def _measured(self, part: Part, file: Path) -> dict[str, Any]:
        job, raw = file.with_suffix(".job"), file.with_suffix(".raw")
        file.parent.mkdir(parents=True, exist_ok=True)
        raw.unlink(missing_ok=True)
        job.write_text(json.dumps(part.job, indent=1), encoding="utf-8")
        load, at = load_1min(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        seconds = self._run(part, job, raw, self._screen.begin(part.key))
        stored = {
            "key": part.key,
            "digest": part.digest,
            "at": at,
            "load_before": load,
            "seconds": seconds,
            "result": json.loads(raw.read_text(encoding="utf-8")),
        }
        write_json(file, stored)
        raw.unlink()
        self._of_this_run[part.key] = part.digest
        self._screen.end(part.key, seconds, f"load before {load:.1f}")
        return _result(stored)


def run_part(part: Part, job: Path, result: Path, tell: Tell) -> float:
    """Start the part's process in the repository and wait for it. Raises ChildFailed."""
    environment = {**os.environ, **part.environment, "PYTHONUNBUFFERED": "1"}
    command = (*part.command, str(job), str(result))
    log = result.with_suffix(".log")
    return run_child(command, log=log, environment=environment, folder=REPOSITORY, tell=tell, timeout_s=part.timeout_s)


def write_json(file: Path, value: Any) -> None:
    """Replace a file in one step."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _result(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The result with when and under which load it was taken."""
    return {**stored["result"], "taken": {name: stored[name] for name in ("key", "at", "load_before", "seconds")}}
