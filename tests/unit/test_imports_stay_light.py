"""What importing and `--help` may load: a command line must respond quickly on a small machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = [
    "torch",
    "llama_cpp",
    "transformers",
    "peft",
    "numpy",
    "grpc",
    "matplotlib",
    "uvicorn",
    "starlette",
    "fastapi",
    "aiohttp",
    "gguf",
    "mlx",
    "opentelemetry",
    "yaml",
    "rich",
]
PROBE = """
import json, sys
{code}
print(json.dumps(sorted(name for name in {heavy!r} if name in sys.modules)))
"""


def loaded_by(code: str) -> list[str]:
    """Heavy modules in sys.modules of a fresh interpreter after running `code`."""
    text = PROBE.format(code=code, heavy=HEAVY)
    result = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return list(json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.parametrize("code", ["import edge", "import edge.dagrpo.dual, edge.dagrpo.format", "import edge.core.worker"])
def test_lower_layers_import_nothing_heavy(code: str) -> None:
    assert loaded_by(code) == []


COMMANDS = ("", "run", "learn", "eval", "ask", "chat", "why", "doctor", "config", "config show", "budget show")


@pytest.mark.parametrize(("main", "commands"), [("edge.cli", COMMANDS), ("coordinator.cli", ("", "serve", "budget show"))])
def test_help_of_a_command_imports_nothing_heavy(main: str, commands: tuple[str, ...]) -> None:
    code = f"""
import contextlib, io
import {main} as cli
for words in {commands!r}:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert cli.main([*words.split(), "--help"]) == 0
    assert "usage" in shown.getvalue().casefold()
"""
    assert loaded_by(code) == []
