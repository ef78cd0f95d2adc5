"""A model that llama.cpp serves and learning does not compute answers, and every place where one would look says that learning is off."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from edge.cli import main
from tests.unit.conftest import EdgeAgent, Ended
from tests.worlds.agent_process import agent_process
from tests.worlds.tiny_gguf import write_unlearned_model

ARCHITECTURE = "'phi3'"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_unlearned_model(tmp_path_factory.mktemp("model") / "odd.gguf"))


@pytest.fixture
def edge_agent(capsys: pytest.CaptureFixture[str]) -> EdgeAgent:
    return lambda *words: Ended(main(list(words)), *capsys.readouterr())


def test_run_serves_it_and_says_in_one_line_that_learning_is_off(model: str, tmp_path: Path, edge_agent: EdgeAgent) -> None:
    state = tmp_path / "state"
    with agent_process(state, "--model", model) as url:
        body = {"model": "edge-local", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            assert json.load(response)["edge"]["source"] == "local"
        with urllib.request.urlopen(f"{url}/api/status") as response:
            status = json.load(response)
        assert (status["learning"], ARCHITECTURE in status["waiting"]) == ("off", True)
        (line,) = [line for line in edge_agent("status", "--state", str(state)).out.splitlines() if line.startswith("learning")]
        assert "off" in line and ARCHITECTURE in line
    (line,) = [line for line in (tmp_path / "agent.log").read_text().splitlines() if "learning is off" in line]
    assert ARCHITECTURE in line and model in line


@pytest.mark.parametrize("command", [["learn", "--steps", "1"], ["run", "--no-serve"], ["run", "--steps", "1"]])
def test_what_only_learns_is_refused_in_one_line(command: list[str], model: str, tmp_path: Path, edge_agent: EdgeAgent) -> None:
    edge_agent(*command, "--model", model, "--state", str(tmp_path / "state")).refused(1, ARCHITECTURE, model, "serve")
    assert not (tmp_path / "state").exists()


def test_models_show_and_doctor_say_it(model: str, tmp_path: Path, edge_agent: EdgeAgent) -> None:
    shown = edge_agent("models", "show", model)
    assert "learning with default settings: off for this model" in shown.out and ARCHITECTURE in shown.out
    findings = edge_agent("doctor", "--model", model, "--state", str(tmp_path / "state")).out.splitlines()
    (line,) = [line for line in findings if line.split()[:2] == ["warn", "learning"]]
    assert ARCHITECTURE in line
    assert not [line for line in findings if line.startswith("fail")]
