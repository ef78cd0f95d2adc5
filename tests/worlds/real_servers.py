"""Third-party servers as real processes: llama-cpp-python's server, and LiteLLM's proxy in front of it.

LiteLLM lives in a virtual environment of its own in the user's cache folder, because its pins are not ours; it is installed at the first
use (about a minute) and kept until its requirements change.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from coordinator.providers.bundled import bundled_model_path
from tests.worlds.environments import environment
from tools.bench.processes import free_port

REQUIREMENTS = Path(__file__).with_name("litellm_requirements.txt")
START_TIMEOUT_S = 180.0
API_KEY = "sk-local-key-of-the-tests-0123456789"
MODEL = "nano-cloud"
CONTEXT_TOKENS = 512


@dataclass(frozen=True)
class RealServer:
    """A server of others and where it listens."""

    name: str
    base_url: str


@contextmanager
def llama_server(folder: Path) -> Iterator[RealServer]:
    """llama-cpp-python's server with nano-cloud."""
    port = free_port()
    options = ["--model", str(bundled_model_path(MODEL)), "--host", "127.0.0.1", "--port", str(port), "--api_key", API_KEY]
    limits = ["--n_ctx", str(CONTEXT_TOKENS), "--n_threads", "1", "--n_threads_batch", "1", "--model_alias", MODEL]
    command = [sys.executable, "-m", "llama_cpp.server", *options, *limits]
    with _running(command, folder / "llama.log", port, "/v1/models"):
        yield RealServer("llama", f"http://127.0.0.1:{port}/v1")


@contextmanager
def litellm_proxy(folder: Path, upstream: RealServer) -> Iterator[RealServer]:
    """LiteLLM's proxy: `nano-cloud` goes to the upstream, `dead` to a closed port, `busy` is always rate limited."""
    port, dead = free_port(), free_port()
    settings = {
        "model_list": [
            _model(MODEL, api_base=upstream.base_url),
            _model("dead", api_base=f"http://127.0.0.1:{dead}/v1"),
            _model("busy", api_base=upstream.base_url, mock_response="litellm.RateLimitError"),
        ],
        "general_settings": {"master_key": API_KEY},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "litellm_settings": {"num_retries": 0},
    }
    (folder / "litellm.yaml").write_text(yaml.safe_dump(settings))
    command = [str(litellm_command()), "--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    quiet = {"LITELLM_TELEMETRY": "False", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DISABLE_ADMIN_UI": "True", "NO_DOCS": "True"}
    with _running(command, folder / "litellm.log", port, "/health/liveliness", quiet):
        yield RealServer("litellm", f"http://127.0.0.1:{port}/v1")


def litellm_command() -> Path:
    """The proxy's command, installed when it is not there yet; skips the test where it cannot be installed."""
    return environment("litellm", REQUIREMENTS) / "bin" / "litellm"


def _model(name: str, **changes: Any) -> dict[str, Any]:
    return {"model_name": name, "litellm_params": {"model": f"openai/{name}", "api_key": API_KEY, "max_retries": 0, **changes}}


@contextmanager
def _running(command: list[str], log: Path, port: int, path: str, environ: dict[str, str] | None = None) -> Iterator[None]:
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env={**os.environ, **(environ or {})}, cwd=log.parent)
    try:
        asyncio.run(_answers(process, f"http://127.0.0.1:{port}{path}", log))
        yield
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _answers(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until the server answers."""
    headers = {"Authorization": f"Bearer {API_KEY}"}
    async with asyncio.timeout(START_TIMEOUT_S), aiohttp.ClientSession(headers=headers) as session:
        while process.poll() is None:
            with suppress(aiohttp.ClientError):
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.1)
    raise AssertionError(f"the server ended: {log.read_text()[-2000:]}")
