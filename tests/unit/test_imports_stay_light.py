"""What importing and `--help` may load: a command line must respond quickly on a small machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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


def loaded_by(code: str, *more: str) -> list[str]:
    """Heavy modules, and those of `more`, in sys.modules of a fresh interpreter after running `code`."""
    text = PROBE.format(code=code, heavy=[*HEAVY, *more])
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


def test_the_list_of_commands_is_shown_without_pydantic() -> None:
    code = """
import contextlib, io
from edge.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["--help"]) == 0
"""
    assert loaded_by(code, "pydantic", "edge.state.events") == []


ASKS = """
import contextlib, io, pathlib, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from edge.cli import main
from edge.cli.remote import announced
from edge.serve.ports import INSTANCE

class Agent(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(json.dumps({{"status": "ok", "instance": INSTANCE}}))
    def do_POST(self):
        edge = json.dumps({{"choices": [], "edge": {{"id": "a1", "source": "local", "final": "4"}}}})
        self.answer("data: " + edge + chr(10))
    def answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *args):
        pass

server = HTTPServer(("127.0.0.1", 0), Agent)
threading.Thread(target=server.serve_forever, daemon=True).start()
with announced(pathlib.Path({folder!r}), f"http://127.0.0.1:{{server.server_port}}"), contextlib.redirect_stdout(io.StringIO()) as shown:
    assert main(["ask", "2+2?", "--state", {folder!r}, *{options!r}]) == 0
assert shown.getvalue() == "4\\n", shown.getvalue()
"""


@pytest.mark.parametrize("options", [[], ["--mode", "auto"], ["--local-only"], ["--full", "--seed", "3"]], ids=" ".join)
def test_a_question_reaches_a_running_agent_before_any_configuration_is_loaded(tmp_path: Path, options: list[str]) -> None:
    code = ASKS.format(folder=str(tmp_path), options=options)
    assert loaded_by(code, "edge.config.schema", "edge.agent", "edge.state.events") == []
