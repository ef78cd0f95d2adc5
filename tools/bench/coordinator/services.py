"""The services under test: our coordinator, LiteLLM's proxy, and the cheapest possible gRPC server. Sets up and starts each;
measures no time.

Our limits apply in all three scopes, so that every call is held on four budgets, and none is ever reached. LiteLLM's proxy has one worker
process and no database; its pins are those that the tests use.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.config import AuthConfig
from coordinator.ledger.opening import LEDGER_FILE
from coordinator.service.tokens import TokenAuthority, TokenStore
from edge.core.clock import SystemClock
from tools.bench.mock_cloud import INPUT_TOKENS, OUTPUT_TOKENS
from tools.bench.processes import REPOSITORY, Server, answers, free_port, own, running
from tools.environments import environment

DEVICES = 8
PRICE_IN_UUSD_PER_MTOK, PRICE_OUT_UUSD_PER_MTOK = 1_000_000, 4_000_000
COST = (
    1,
    INPUT_TOKENS + OUTPUT_TOKENS,
    (INPUT_TOKENS * PRICE_IN_UUSD_PER_MTOK + OUTPUT_TOKENS * PRICE_OUT_UUSD_PER_MTOK) // 10**6,
)
"""What every call costs: calls, tokens, micro-USD."""
AMPLE = 10**12
API_KEY = "sk-local-key-of-the-bench-0123456789"
LITELLM_ENVIRONMENT: Mapping[str, str] = {
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
}


@dataclass(frozen=True, slots=True)
class Started:
    """A service under test. `direct_port` is the upstream's, None where it has none."""

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
        upstream = {"upstream": self.upstream.pid} if self.upstream is not None else {}
        return {"service": self.server.pid, **upstream}


@contextmanager
def started(job: Mapping[str, Any], scratch: Path) -> Iterator[Started]:
    """The service that the job names."""
    services = {"ours": coordinator, "litellm": litellm, "echo": echo}
    with services[job["service"]](job, scratch) as service:
        yield service


@contextmanager
def cloud(job: Mapping[str, Any], scratch: Path) -> Iterator[Server]:
    """The mock cloud LLM."""
    with running(own("mock_cloud", str(job["delay_s"])), scratch / "upstream.log") as server:
        yield server


@contextmanager
def echo(job: Mapping[str, Any], scratch: Path) -> Iterator[Started]:
    """The baseline."""
    with running(own("coordinator.echo"), scratch / "echo.log") as server:
        yield Started(server, "grpc", f"127.0.0.1:{server.ready['port']}", [""] * DEVICES)


# -- our coordinator -------------------------------------------------------------------------------------------------------------------


@contextmanager
def coordinator(job: Mapping[str, Any], scratch: Path) -> Iterator[Started]:
    """Ours."""
    state, devices = scratch / "state", [f"bench-{number}" for number in range(DEVICES)]
    tokens = device_tokens(state, devices)
    with cloud(job, scratch) as upstream:
        values = settings(state, upstream.ready["port"], metrics_port=free_port())
        with serving(values, scratch) as server:
            port = upstream.ready["port"]
            yield Started(server, "grpc", address_of(server), tokens, devices, port, upstream, state / LEDGER_FILE)


def settings(state: Path, upstream_port: int, *, metrics_port: int | None, **upstream: Any) -> dict[str, Any]:
    """The coordinator's configuration as plain data; `upstream`: more of its only cloud LLM."""
    limit = {"window": "month", "calls_limit": AMPLE, "tokens_limit": AMPLE, "spend_limit_uusd": AMPLE}
    mock = {
        "provider": "openai_compatible",
        "model": "mock",
        "base_url": f"http://127.0.0.1:{upstream_port}/v1",
        "price_in_uusd_per_mtok": PRICE_IN_UUSD_PER_MTOK,
        "price_out_uusd_per_mtok": PRICE_OUT_UUSD_PER_MTOK,
        "max_concurrency": 1024,
        "max_output_tokens": 256,
    }
    return {
        "listen": ["127.0.0.1:0"],
        "admin_listen": [],
        "state_dir": str(state),
        "upstreams": {"default": {**mock, **upstream}},
        "budgets": {"fleet": limit, "device": limit, "device_task": limit},
        **({"metrics_listen": f"127.0.0.1:{metrics_port}"} if metrics_port else {}),
    }


@contextmanager
def serving(values: Mapping[str, Any], scratch: Path) -> Iterator[Server]:
    """A coordinator with these settings."""
    config = scratch / "coordinator.yaml"
    config.write_text(json.dumps(values, indent=1), encoding="utf-8")  # JSON is YAML
    command = (sys.executable, "-m", "coordinator", "serve", "--config", str(config), "--json")
    with running(command, scratch / "coordinator.log") as server:
        yield server


def device_tokens(state: Path, devices: Sequence[str]) -> list[str]:
    """A valid token for each device; makes the signing key where there is none."""
    tokens = TokenAuthority(TokenStore(state), AuthConfig(), SystemClock())
    return [tokens.renew("device", device) for device in devices]


def address_of(server: Server) -> str:
    """The address of a running coordinator for devices."""
    address: str = next(iter(server.ready["addresses"]))
    return address


# -- LiteLLM's proxy -------------------------------------------------------------------------------------------------------------------


def litellm_installed() -> Path:
    """The proxy's command, installed where it is not there yet. Raises CannotInstall."""
    return environment("litellm", REPOSITORY / "tests" / "service" / "litellm_requirements.txt") / "bin" / "litellm"


def litellm_version(command: Path) -> str:
    """The installed version."""
    asked = "import importlib.metadata as m; print(m.version('litellm'))"
    done = subprocess.run([str(command.with_name("python")), "-c", asked], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextmanager
def litellm(job: Mapping[str, Any], scratch: Path) -> Iterator[Started]:
    """One model, a master key, no retries, no callbacks; otherwise its defaults."""
    port, config = free_port(), scratch / "litellm.yaml"
    with cloud(job, scratch) as upstream:
        where = {"api_base": f"http://127.0.0.1:{upstream.ready['port']}/v1", "api_key": API_KEY, "max_retries": 0}
        values = {
            "model_list": [{"model_name": "mock", "litellm_params": {"model": "openai/mock", **where}}],
            "general_settings": {"master_key": API_KEY},
            "router_settings": {"num_retries": 0, "disable_cooldowns": True},
            "litellm_settings": {"num_retries": 0, "set_verbose": False},
        }
        config.write_text(json.dumps(values), encoding="utf-8")
        at = ("--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1")
        with running(
            (job["litellm"], *at),
            scratch / "litellm.log",
            ready=lambda: answers(f"http://127.0.0.1:{port}/health/liveliness"),
            environment=LITELLM_ENVIRONMENT,
            folder=scratch,
        ) as server:
            yield Started(server, "http", port, [API_KEY], (), upstream.ready["port"], upstream)
