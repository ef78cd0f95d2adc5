"""The services under test: our coordinator by each of its doors, LiteLLM's proxy, and the cheapest possible gRPC and HTTP servers. Sets up
and starts each; measures no time.

Our limits apply in all three scopes, so that every call is held on four budgets, and none is reached unless a job sets one of spend.
LiteLLM's proxy has one worker process and no database; its pins are those that the tests use. Without a database it can hold calls to a
budget in two ways: as the `max_budget` of a key that a custom authentication returns, for which its centralised checks reserve the most
that a call can cost before it is sent, or as the `max_budget` of a deployment, which its router compares with what was spent.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coordinator.config import AuthConfig
from coordinator.ledger.opening import LEDGER_FILE
from coordinator.service.tokens import TokenAuthority, TokenStore
from edge.core.clock import SystemClock
from tools.bench.coordinator.load import MODEL
from tools.bench.mock_cloud import INPUT_TOKENS, OUTPUT_TOKENS
from tools.bench.processes import REPOSITORY, Server, answers, free_port, on_cores, own, running
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
HTTP_HOST = "127.0.0.1"
CUSTOM_AUTH = """
from litellm.proxy._types import UserAPIKeyAuth


async def check(request, api_key):
    if api_key != {key!r}:
        raise PermissionError("unknown key")
    return UserAPIKeyAuth(api_key=api_key, max_budget={max_budget!r})
"""
"""LiteLLM's `custom_auth`: one key, with a budget in USD."""
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

    def with_one_caller(self) -> Started:
        """The same, asked by its first caller only."""
        return replace(self, tokens=self.tokens[:1], devices=self.devices[:1])

    @property
    def watch(self) -> dict[str, int]:
        """The processes whose processor time is wanted."""
        upstream = {"upstream": self.upstream.pid} if self.upstream is not None else {}
        return {"service": self.server.pid, **upstream}


@contextmanager
def started(job: Mapping[str, Any], scratch: Path) -> Iterator[Started]:
    """The service that the job names, on the job's `cores` where it names some; the mock cloud on its `other_cores`."""
    services = {
        "ours": coordinator,
        "endpoint": endpoint,
        "litellm": litellm,
        "litellm_budget": litellm,
        "echo": echo,
        "http_echo": http_echo,
    }
    with services[job["service"]](job, scratch) as service:
        yield service


@contextmanager
def cloud(job: Mapping[str, Any], scratch: Path) -> Iterator[Server]:
    """The mock cloud LLM."""
    with on_cores(job.get("other_cores")), running(own("mock_cloud", str(job["delay_s"])), scratch / "upstream.log") as server:
        yield server


@contextmanager
def echo(job: Mapping[str, Any], scratch: Path) -> Iterator[Started]:
    """The baseline of gRPC."""
    with running(own("coordinator.echo"), scratch / "echo.log") as server:
        yield Started(server, "grpc", f"127.0.0.1:{server.ready['port']}", [""] * DEVICES)


@contextmanager
def http_echo(job: Mapping[str, Any], scratch: Path) -> Iterator[Started]:
    """The baseline of HTTP."""
    with running(own("coordinator.http_echo"), scratch / "http_echo.log") as server:
        yield Started(server, "http", server.ready["port"], [""] * DEVICES)


# -- our coordinator -------------------------------------------------------------------------------------------------------------------


@contextmanager
def coordinator(job: Mapping[str, Any], scratch: Path) -> Iterator[Started]:
    """Ours, over gRPC."""
    with _ours(job, scratch, "device") as (server, tokens, devices, upstream):
        port = upstream.ready["port"]
        yield Started(server, "grpc", address_of(server), tokens, devices, port, upstream, scratch / "state" / LEDGER_FILE)


@contextmanager
def endpoint(job: Mapping[str, Any], scratch: Path) -> Iterator[Started]:
    """Ours, over OpenAI's protocol."""
    with _ours(job, scratch, "client") as (server, tokens, devices, upstream):
        where, port = urlsplit(server.ready["openai_url"]).port, upstream.ready["port"]
        assert where is not None
        yield Started(server, "http", where, tokens, devices, port, upstream, scratch / "state" / LEDGER_FILE)


@contextmanager
def _ours(job: Mapping[str, Any], scratch: Path, role: str) -> Iterator[tuple[Server, list[str], list[str], Server]]:
    """A coordinator with both doors open, and who may come in by one of them; `limit_uusd`: what the first of them may spend."""
    state, devices = scratch / "state", [f"bench-{number}" for number in range(DEVICES)]
    tokens = tokens_of(state, role, devices)
    with cloud(job, scratch) as upstream, on_cores(job.get("cores")):
        values = settings(state, upstream.ready["port"], metrics_port=free_port())
        values["openai_listen"] = f"{HTTP_HOST}:0"
        if limit_uusd := job.get("limit_uusd"):
            values["budgets"]["device"] = {**values["budgets"]["device"], "spend_limit_uusd": limit_uusd}
        with serving(values, scratch, job.get("program", ("coordinator",))) as server:
            yield server, tokens, devices, upstream


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
        "upstreams": {MODEL: {**mock, **upstream}},
        "budgets": {"fleet": limit, "device": limit, "device_task": limit},
        **({"metrics_listen": f"127.0.0.1:{metrics_port}"} if metrics_port else {}),
    }


@contextmanager
def serving(values: Mapping[str, Any], scratch: Path, program: Sequence[str] = ("coordinator",)) -> Iterator[Server]:
    """A coordinator with these settings; `program`: the module that is its command, with arguments of its own before the coordinator's."""
    config = scratch / "coordinator.yaml"
    config.write_text(json.dumps(values, indent=1), encoding="utf-8")  # JSON is YAML
    command = (sys.executable, "-m", *program, "serve", "--config", str(config), "--json")
    with running(command, scratch / "coordinator.log") as server:
        yield server


def device_tokens(state: Path, devices: Sequence[str]) -> list[str]:
    """A valid token for each device; makes the signing key where there is none."""
    return tokens_of(state, "device", devices)


def tokens_of(state: Path, role: str, names: Sequence[str]) -> list[str]:
    """A valid token of a role for each name; makes the signing key where there is none."""
    tokens = TokenAuthority(TokenStore(state), AuthConfig(), SystemClock())
    return [tokens.renew(role, name) for name in names]


def address_of(server: Server) -> str:
    """The address of a running coordinator for devices."""
    address: str = next(iter(server.ready["addresses"]))
    return address


# -- LiteLLM's proxy -------------------------------------------------------------------------------------------------------------------


def litellm_installed() -> Path:
    """The proxy's command, installed where it is not there yet. Raises CannotInstall."""
    return environment("litellm", REPOSITORY / "tests" / "worlds" / "litellm_requirements.txt") / "bin" / "litellm"


def litellm_version(command: Path) -> str:
    """The installed version."""
    asked = "import importlib.metadata as m; print(m.version('litellm'))"
    done = subprocess.run([str(command.with_name("python")), "-c", asked], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextmanager
def litellm(job: Mapping[str, Any], scratch: Path) -> Iterator[Started]:
    """One model, no retries, no callbacks; otherwise its defaults. `budget`: how it holds calls to `limit_uusd` ("": not at all)."""
    port, config = free_port(), scratch / "litellm.yaml"
    with cloud(job, scratch) as upstream, on_cores(job.get("cores")):
        values = litellm_settings(upstream.ready["port"], job.get("budget", ""), job.get("limit_uusd", AMPLE) / 1e6)
        (scratch / "bench_auth.py").write_text(CUSTOM_AUTH.format(key=API_KEY, max_budget=job.get("limit_uusd", AMPLE) / 1e6))
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


def litellm_settings(upstream_port: int, budget: str, limit_usd: float) -> dict[str, Any]:
    """The proxy's configuration. `budget`: "" for none, "key" for a reserved one of the key, "deployment" for one of the router."""
    where = {"api_base": f"http://127.0.0.1:{upstream_port}/v1", "api_key": API_KEY, "max_retries": 0}
    price = {"input_cost_per_token": PRICE_IN_UUSD_PER_MTOK / 1e12, "output_cost_per_token": PRICE_OUT_UUSD_PER_MTOK / 1e12}
    held = {"max_budget": limit_usd, "budget_duration": "30d"} if budget == "deployment" else {}
    reserved = {
        "custom_auth": "bench_auth.check",
        "custom_auth_run_common_checks": True,
        "fail_closed_budget_enforcement": True,
    }
    return {
        "model_list": [{"model_name": MODEL, "litellm_params": {"model": "openai/mock", **where, **price, **held}}],
        "general_settings": {"master_key": API_KEY, **(reserved if budget == "key" else {})},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "litellm_settings": {"num_retries": 0, "set_verbose": False},
    }
