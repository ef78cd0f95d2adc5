"""One round of one service: start it, load it phase by phase, sample its memory, audit its ledger, end it.

Every phase is a separate load process, as is the mock cloud LLM. Measures no time itself.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tools.bench.coordinator.audit import audit
from tools.bench.coordinator.services import COST, Started, started
from tools.bench.processes import REPOSITORY, memory_mib, on_cores, own, scratch_folder


def loaded(service: Started, phase: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """One phase. Raises CalledProcessError."""
    job = {
        **phase,
        "protocol": service.protocol,
        "target": service.target,
        "tokens": list(service.tokens),
        "devices": list(service.devices),
        "direct_port": service.direct_port,
        "watch": service.watch,
        "steps": service.ledger is not None and service.protocol == "grpc",
    }
    file, result = scratch / f"{phase['phase']}.job", scratch / f"{phase['phase']}.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    with on_cores(phase.get("cores")):
        subprocess.run(own("part", "coordinator.load", str(file), str(result)), check=True, cwd=REPOSITORY)
    figures: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return figures | {"memory_mib": memory_mib(service.server.pid)}


def upstream_log(service: Started, path: str) -> list[str]:
    """A log of the mock cloud: `/log` or `/asked`."""
    with urlopen(f"http://127.0.0.1:{service.direct_port}{path}", timeout=30.0) as answer:
        entries: list[str] = json.loads(answer.read())
    return entries


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """The round."""
    phases: dict[str, Any] = {}
    acked: list[str] = []
    log: list[str] = []
    with scratch_folder(job) as scratch:
        with started(job, scratch) as service:
            start = {"start_s": service.server.start_s, "idle_mib": memory_mib(service.server.pid)}
            for phase in job["phases"]:
                print(phase["phase"], flush=True)
                result = loaded(service, {**phase, "cores": job.get("other_cores")}, scratch)
                acked += result.pop("acked")
                phases[phase["phase"]] = result
            if service.ledger is not None:
                log = [key for key in upstream_log(service, "/log") if key]
        books = audit(service.ledger, log, acked, COST).to_json() if service.ledger is not None else None
    return {**start, "phases": phases, "audit": books}
