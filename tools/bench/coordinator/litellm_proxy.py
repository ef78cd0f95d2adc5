"""LiteLLM's proxy as the service to compare with: installed once in an environment of its own, one worker process, no database.

Knows pip, its configuration and its command. Its pins are those that the tests use.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import yaml

from tools.bench.processes import REPOSITORY
from tools.environments import environment

REQUIREMENTS = REPOSITORY / "tests" / "service" / "litellm_requirements.txt"
API_KEY = "sk-local-key-of-the-bench-0123456789"
ENVIRONMENT: Mapping[str, str] = {
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
}


def installed() -> Path:
    """The proxy's command, installed where it is not there yet. Raises CannotInstall."""
    return environment("litellm", REQUIREMENTS) / "bin" / "litellm"


def version_of(command: Path) -> str:
    """The installed version."""
    asked = "import importlib.metadata as m; print(m.version('litellm'))"
    done = subprocess.run([str(command.with_name("python")), "-c", asked], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def settings(upstream_port: int) -> dict[str, Any]:
    """One model, a master key, no retries, no callbacks; otherwise its defaults."""
    where = {"api_base": f"http://127.0.0.1:{upstream_port}/v1", "api_key": API_KEY, "max_retries": 0}
    return {
        "model_list": [{"model_name": "mock", "litellm_params": {"model": "openai/mock", **where}}],
        "general_settings": {"master_key": API_KEY},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "litellm_settings": {"num_retries": 0, "set_verbose": False},
    }


def write_settings(file: Path, upstream_port: int) -> None:
    """As YAML."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(settings(upstream_port)), encoding="utf-8")


def command(program: Path, config: Path, port: int) -> tuple[str, ...]:
    """Serve on this port with one worker."""
    return (str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1")


def is_ready(port: int) -> bool:
    """Whether it answers."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
