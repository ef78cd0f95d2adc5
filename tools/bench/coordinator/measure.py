"""One round of one service: start it, load it phase by phase, look at its memory, check its books, end it.

Every phase is a load process of its own; the mock cloud LLM is another. Knows which service is started how; times nothing itself.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tools.bench.coordinator import litellm_proxy, ours
from tools.bench.coordinator.audit import audit
from tools.bench.mock_cloud import INPUT_TOKENS, OUTPUT_TOKENS
from tools.bench.processes import REPOSITORY, Server, free_port, memory_mib, own, running, scratch_folder

DEVICES = 8


@dataclass(frozen=True, slots=True)
class Started:
    """A service under test. `direct_port` is the upstream's, None where there is none behind it."""

    server: Server
    protocol: str
    target: str | int
    tokens: Sequence[str]
    devices: Sequence[str] = ()
    direct_port: int | None = None
    upstream: Server | None = None
    ledger: Path | None = None

    @property
    def watch(self) -> dict[str, int]:
        """The processes whose processor time is wanted."""
        beside = {"upstream": self.upstream.pid} if self.upstream is not None else {}
        return {"service": self.server.pid, **beside}


@contextmanager
def cloud(job: Mapping[str, Any], scratch: Path) -> Iterator[Server]:
    """The mock cloud LLM."""
    with running(own("mock_cloud", str(job["delay_s"])), scratch / "upstream.log") as server:
        yield server


@contextmanager
def coordinator(job: Mapping[str, Any], scratch: Path) -> Iterator[Started]:
    """Ours."""
    state, devices = scratch / "state", [f"bench-{number}" for number in range(DEVICES)]
    tokens = ours.device_tokens(state, devices)
    with cloud(job, scratch) as upstream:
        metrics_port = free_port() if job["metrics"] else None
        values = ours.settings(state, upstream.told["port"], metrics_port=metrics_port)
        ours.write_settings(scratch / "coordinator.yaml", values)
        with running(_command(job, scratch), scratch / "coordinator.log") as server:
            address, port = ours.address_of(server.told), upstream.told["port"]
            yield Started(server, "grpc", address, tokens, devices, port, upstream, ours.ledger_file(state))


def _command(job: Mapping[str, Any], scratch: Path) -> tuple[str, ...]:
    config = scratch / "coordinator.yaml"
    return own("coordinator.profiled", str(scratch / "profile.json"), str(config)) if job.get("profile") else ours.command(config)


@contextmanager
def litellm(job: Mapping[str, Any], scratch: Path) -> Iterator[Started]:
    """LiteLLM's proxy."""
    port, config = free_port(), scratch / "litellm.yaml"
    with cloud(job, scratch) as upstream:
        litellm_proxy.write_settings(config, upstream.told["port"])
        command = litellm_proxy.command(Path(job["litellm"]), config, port)
        with running(
            command,
            scratch / "litellm.log",
            ready=lambda: litellm_proxy.is_ready(port),
            environment=litellm_proxy.ENVIRONMENT,
            folder=scratch,
        ) as server:
            yield Started(server, "http", port, [litellm_proxy.API_KEY], (), upstream.told["port"], upstream)


@contextmanager
def echo(kind: str, scratch: Path) -> Iterator[Started]:
    """A baseline."""
    command = own("coordinator.echo") if kind == "grpc" else own("mock_cloud", "0")
    with running(command, scratch / "echo.log") as server:
        port = server.told["port"]
        yield Started(server, kind, f"127.0.0.1:{port}" if kind == "grpc" else port, [""] * DEVICES)


@contextmanager
def started(job: Mapping[str, Any], scratch: Path) -> Iterator[Started]:
    """The service that the job names."""
    services = {"ours": coordinator, "litellm": litellm}
    name: str = job["service"]
    with services[name](job, scratch) if name in services else echo(name.removeprefix("echo-"), scratch) as service:
        yield service


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
        "steps": service.ledger is not None,
    }
    file, result = scratch / f"{phase['phase']}.job", scratch / f"{phase['phase']}.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    subprocess.run(own("part", "coordinator.load", str(file), str(result)), check=True, cwd=REPOSITORY)
    told: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return told | {"memory_mib": memory_mib(service.server.pid)}


def upstream_log(upstream: Server) -> list[str]:
    """The keys of everything it was asked."""
    with urlopen(f"http://127.0.0.1:{upstream.told['port']}/log", timeout=30.0) as answer:
        log: list[str] = json.loads(answer.read())
    return log


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
                told = loaded(service, phase, scratch)
                acked += told.pop("acked")
                phases[phase["phase"]] = told
            if service.upstream is not None and service.ledger is not None:
                log = [key for key in upstream_log(service.upstream) if key]
        books = audit(service.ledger, log, acked, cost()).to_json() if service.ledger is not None else None
        profile = scratch / "profile.json"
        watched = json.loads(profile.read_text(encoding="utf-8")) if profile.exists() else None
    return {**start, "phases": phases, "audit": books, "profile": watched}


def cost() -> tuple[int, int, int]:
    """What every call costs: calls, tokens, micro-USD."""
    uusd = (INPUT_TOKENS * ours.PRICE_IN_UUSD_PER_MTOK + OUTPUT_TOKENS * ours.PRICE_OUT_UUSD_PER_MTOK) // 10**6
    return 1, INPUT_TOKENS + OUTPUT_TOKENS, uusd
