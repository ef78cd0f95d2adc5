"""`launch` prints what programs of others need to use the running agent, or starts them with it; it installs and writes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from asyncio import create_subprocess_exec
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from edge.cli.launch import PROGRAMS
from edge.cli.remote import announced
from edge.serve.endpoint import build_app
from edge.serve.server import serving
from edge.serve.token_file import make_token
from edge.testing.clock import ManualClock
from edge.testing.endpoint import ScriptedAnswers, ScriptedControl
from tests.worlds.warm_commands import edge_agent

_SHELL = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}
Agent = Callable[[bool], AbstractAsyncContextManager[tuple[str, str]]]


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    """An agent that runs on the folder `state`; gives its address and its token."""

    @asynccontextmanager
    async def running(with_token: bool) -> AsyncIterator[tuple[str, str]]:
        answers, file = ScriptedAnswers([]), tmp_path / "it's a token"
        token = make_token(file) if with_token else ""
        app = build_app(answers, ScriptedControl(answers), ManualClock(), token=token, context_tokens=1024)
        (tmp_path / "state").mkdir()
        async with serving(app, "127.0.0.1", 0) as url:
            with announced(tmp_path / "state", url, str(file) if with_token else None):
                yield url, token

    return running


def as_a_shell_reads(lines: str) -> dict[str, str]:
    """The variables that a POSIX shell has after these lines."""
    script = f'{lines}\nexec "$PYTHON" -c "import json, os; print(json.dumps(dict(os.environ)))"'
    return dict(json.loads(subprocess.run(["sh", "-c", script], env=_SHELL, capture_output=True, check=True).stdout))


@pytest.mark.parametrize("with_token", [False, True], ids=["open", "token"])
@pytest.mark.parametrize("name", PROGRAMS)
async def test_the_lines_point_a_program_at_the_running_agent(agent: Agent, tmp_path: Path, name: str, with_token: bool) -> None:
    async with agent(with_token) as (url, token):
        code, out, err = await edge_agent("launch", name, "--state", str(tmp_path / "state"))
    assert code == 0 and PROGRAMS[name].command[0] in err
    assert not token or (token not in out and token not in err)
    read = as_a_shell_reads(out)
    key = token or "edge"
    expected = {
        variable: value.replace("<url>", url).replace("<model>", "edge").replace("<key>", key)
        for variable, value in PROGRAMS[name].variables.items()
    }
    assert {variable: read[variable] for variable in expected} == expected
    assert key in str(expected) and url in str(expected)
    if name == "opencode":
        options = json.loads(read["OPENCODE_CONFIG_CONTENT"])["provider"]["edge"]["options"]
        assert options == {"baseURL": f"{url}/v1", "apiKey": key}


async def test_the_model_is_that_of_the_mode_and_a_short_context_is_said(agent: Agent, tmp_path: Path) -> None:
    words = ("launch", "claude", "--state", str(tmp_path / "state"), "--mode")
    async with agent(False):
        for mode, model, short in (("prefer-local", "edge-prefer-local", True), ("cloud-only", "edge-cloud", False)):
            code, out, err = await edge_agent(*words, mode)
            assert (code, as_a_shell_reads(out)["ANTHROPIC_MODEL"]) == (0, model)
            assert ("1024 tokens" in err) is short


async def test_an_installed_program_is_started_with_them(agent: Agent, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "aider"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$OPENAI_API_BASE $OPENAI_API_KEY $AIDER_MODEL $@"\nexit 5\n')
    program.chmod(0o755)
    words = ("launch", "aider", "--exec", "--state", str(tmp_path / "state"))
    environment = {**os.environ, "PATH": f"{program.parent}:/usr/bin:/bin"}
    async with agent(True) as (url, token):
        process = await create_subprocess_exec(
            sys.executable, "-m", "edge.cli", *words, "--", "--message", "hi", env=environment, stdout=subprocess.PIPE
        )
        out = (await process.communicate())[0].decode()
        assert (process.returncode, out) == (5, f"{url}/v1 {token} openai/edge --message hi\n")
        code, out, err = await edge_agent(*words, PATH="/nowhere")
    assert (code, out) == (1, "") and "aider" in err and "--exec" in err


async def test_an_unknown_program_and_a_missing_agent_are_refused(tmp_path: Path) -> None:
    code, out, err = await edge_agent("launch", "emacs", "--state", str(tmp_path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert all(name in err for name in ("emacs", *PROGRAMS))
    code, out, err = await edge_agent("launch", "claude", "--state", str(tmp_path))
    assert (code, out) == (1, "") and "edge-agent run" in err
