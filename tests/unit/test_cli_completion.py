"""What importing and `--help` may load, for a command line must respond quickly on a small machine; and shell completion, queried as the
shells do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge.cli import completion
from edge.cli.completion import MODES, SHELLS
from edge.config.schema import AgentConfig
from edge.models.catalogue import MODELS_FOLDER
from tests.unit.conftest import EdgeAgent

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


def completed(line: str, **environment: str) -> list[str]:
    """The completions that bash gets for the last word of a line."""
    words = line.split(" ")
    asked = {"_EDGE_AGENT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    result = subprocess.run(
        [sys.executable, "-m", "edge.cli"],
        env={**os.environ, **environment, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.split()


def test_commands_modes_sources_and_models_are_completed(tmp_path: Path) -> None:
    (tmp_path / "my-model.gguf").touch()
    assert completed("edge-agent serv") == ["serve-token", "service"]
    assert completed("edge-agent ask --mode ") == list(MODES)
    assert completed("edge-agent run --tasks practice:g") == ["practice:group1", "practice:group2"]
    assert completed("edge-agent models show my", **{MODELS_FOLDER: str(tmp_path)}) == ["my-model"]


def test_the_modes_are_those_of_the_configuration() -> None:
    schema = AgentConfig.model_json_schema()["properties"]["mode"]
    assert set(MODES) == set(schema["enum"])


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_valid_completion_lines(shell: str, edge_agent: EdgeAgent) -> None:
    script = edge_agent("completion", shell).out
    assert "edge-agent" in script and f"complete_{shell}" in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, check=False).returncode == 0


def test_bash_lines_complete_in_bash(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    if not shutil.which("bash"):
        pytest.skip("bash is not installed")
    script = edge_agent("completion", "bash").out
    program = tmp_path / "edge-agent"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m edge.cli "$@"\n')
    program.chmod(0o755)
    ask = 'COMP_WORDS=(edge-agent ask --mo); COMP_CWORD=2; _edge_agent_completion edge-agent; echo "${COMPREPLY[@]}"'
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", "-c", script + ask], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["--model", "--mode"]


def test_an_unknown_shell_is_wrong_usage(edge_agent: EdgeAgent) -> None:
    edge_agent("completion", "tcsh").refused(2, "bash, zsh, fish")


def test_completing_loads_nothing_heavy() -> None:
    code = """
from edge.cli import completion
assert completion.modes("") and completion.models("nano") and completion.sources("practice") and completion.shells("b")
"""
    assert loaded_by(code) == []


def test_task_files_are_completed_beside_the_known_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    for name in ("my.jsonl", "my.CSV", "my.txt", "tasks/more.tsv"):
        (tmp_path / name).write_text("")
    assert completion.sources("my") == ["my.CSV", "my.jsonl"]
    assert completion.sources("ta") == ["taco", "tasks/"] and completion.sources("tasks/") == ["tasks/more.tsv"]
    assert completion.sources("practice:ar") == ["practice:arith"]
