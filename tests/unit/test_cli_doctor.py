"""The doctor names each problem with advice, and fails only when `run` would."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from edge.cli import doctor
from edge.cli.doctor import llama_fault
from edge.cli.settings import Settings
from edge.core.install import install_extra
from edge.models.catalogue import find_model
from tests.unit.conftest import EdgeAgent


@pytest.fixture(autouse=True)
def _light_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening models, and decoding with them, belongs to the engine's own tests."""
    monkeypatch.setattr("edge.cli.doctor.llama_fault", lambda: ("", False))
    monkeypatch.setattr(doctor, "_loaded", lambda path: f"{path} opened")


def findings(tmp_path: Path, **options: str | Path) -> dict[str, doctor.Finding]:
    found = doctor.examine(Settings(**{"state": tmp_path / "state", **options}))  # type: ignore[arg-type]
    return {finding.name: finding for finding in found}


def test_a_healthy_machine_has_no_fail_and_exit_code_0(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    report = edge_agent("doctor", "--state", str(tmp_path), "--json").json
    assert report["ok"] is True
    names = [check["name"] for check in report["checks"]]
    assert names[0] == "python"
    assert {"agent", "train", "cores", "memory", "model", "cloud model", "sandbox", "state folder", "coordinator"} <= set(names)


def test_missing_packages_are_named_with_the_command_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("llama_cpp", "torch") else object())
    agent, train = doctor.check_extra("agent"), doctor.check_extra("train")
    assert (agent.state, "llama_cpp" in agent.text, agent.hint) == ("fail", True, install_extra("agent"))
    assert (train.state, train.hint) == ("warn", install_extra("train"))


CRASHES = "import os, resource, signal; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), signal.SIGSEGV)"


def planted(code: str, limit_s: float = 60.0) -> Callable[[], tuple[str, bool]]:
    """A trial of another program."""
    return partial(llama_fault, lambda: [sys.executable, "-c", code], limit_s)


def test_crashing_llama_cpp_fails_and_is_not_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.cli.doctor.llama_fault", planted(CRASHES))
    monkeypatch.setattr("edge.cli.doctor.cpu_flags", lambda: {"amx_int8"})
    monkeypatch.setattr("edge.inference.gguf_model.llama_offloads", pytest.fail)
    monkeypatch.setattr(doctor, "_loaded", pytest.fail)
    decoding = findings(tmp_path)["decoding"]
    assert (decoding.state, "SIGSEGV" in decoding.text) == ("fail", True)
    assert 'CMAKE_ARGS="-DCMAKE_C_FLAGS=-U__AMX_INT8__ ' in decoding.hint and 'CMAKE_ARGS="-DGGML_NATIVE=OFF"' in decoding.hint


def test_an_unreachable_coordinator_is_a_warning_because_the_agent_answers_locally(tmp_path: Path) -> None:
    found = findings(tmp_path, coordinator="127.0.0.1:9")["coordinator"]
    assert (found.state, "locally" in found.hint) == ("warn", True)


def test_a_configured_cloud_is_connected_to_and_asked_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_KEY", "the-secret")
    file, received = tmp_path / "cloud.yaml", list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30.0)
        base_url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        cloud = {"upstream": "openai_compatible", "base_url": base_url, "model": "m", "api_key_env": "CLOUD_KEY"}
        file.write_text(json.dumps({"coordinator": {"embedded": cloud}}), encoding="utf-8")
        settings = Settings(state=tmp_path / "state", config_file=file)
        reached = doctor.check_cloud(settings.config())
        with server.accept()[0] as connection:
            received.append(connection.recv(1000))
    assert (reached.state, base_url in reached.text, received) == ("ok", True, [b""])
    away = doctor.check_cloud(settings.config())
    assert (away.state, base_url in away.text, "base_url" in away.hint) == ("warn", True, True)
    assert "the-secret" not in f"{reached} {away}"
    monkeypatch.setattr(doctor, "connection_fault", pytest.fail)
    monkeypatch.delenv("CLOUD_KEY")
    assert doctor.check_cloud(settings.config()).state == "fail", "run would refuse it"
    monkeypatch.setenv("EDGE_AGENT_NO_CLOUD", "1")
    assert doctor.check_cloud(settings.config()).state == "ok", "nothing leaves this machine"


@pytest.mark.parametrize(
    ("option", "value", "finding"),
    [("--coordinator", "nowhere", "coordinator"), ("--model", "/no/such.gguf", "model")],
)
def test_whatever_run_would_refuse_fails_with_exit_code_1(
    option: str, value: str, finding: str, tmp_path: Path, edge_agent: EdgeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_loaded", lambda path: str(find_model(path)))
    code, out, _ = edge_agent("doctor", "--state", str(tmp_path), option, value, "--json")
    states = {check["name"]: check["state"] for check in json.loads(out)["checks"]}
    assert (code, states[finding]) == (1, "fail")


def test_a_state_folder_that_cannot_be_made_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file" / "state", tmp_path / "file", Path("/dev/null/state")):
        finding = findings(tmp_path, state=folder)["state folder"]
        assert (finding.state, "cannot be written" in finding.text) == ("fail", True)


def test_checking_a_new_state_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    assert findings(tmp_path, state=tmp_path / "deep" / "er" / "state")["state folder"].state != "fail"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["lines", "json"])
@pytest.mark.parametrize("text", ["mode: [\n", "modes: auto\n", "learning:\n  group_size: x\n", "- auto\n"], ids=repr)
def test_unreadable_configuration_is_one_line_on_stderr_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edge_agent: EdgeAgent, text: str, more: list[str]
) -> None:
    monkeypatch.setattr("edge.cli.doctor.llama_fault", pytest.fail)
    file = tmp_path / "broken.yaml"
    file.write_text(text, encoding="utf-8")
    code, out, err = edge_agent("doctor", "--config", str(file), *more)
    assert code == 1 and "configuration" not in out
    assert len(err.splitlines()) == 1 and err.startswith(f"error: {file}")
