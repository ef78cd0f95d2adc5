"""The built wheel in empty virtual environments: the content of each extra, with models and protos included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)], check=True, capture_output=True)
    return next(out.glob("edge_agent-*.whl"))


def environment(folder: Path, wheel: Path, extra: str) -> Path:
    """A virtual environment with the wheel and one extra; returns its bin folder."""
    venv.create(folder, with_pip=True)
    target = f"{wheel}[{extra}]" if extra else str(wheel)
    command = [
        str(folder / "bin/python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        str(ROOT / "constraints.txt"),
        target,
    ]
    subprocess.run(command, check=True, cwd=folder)
    return folder / "bin"


def run(command: list[str], cwd: Path, **extra_env: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd), **extra_env}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=300)


def installed(bin_folder: Path) -> set[str]:
    listing = run([str(bin_folder / "python"), "-m", "pip", "list", "--format", "json"], bin_folder)
    return {package["name"].lower() for package in json.loads(listing.stdout)}


@pytest.mark.parametrize("extra", ["", "coordinator", "agent", "train", "onnx", "postgres", "lab"])
def test_each_extra_installs_alone_and_its_commands_answer(extra: str, wheel: Path, tmp_path: Path) -> None:
    bin_folder = environment(tmp_path / "venv", wheel, extra)
    for command in ("edge-agent", "edge-coordinator"):
        shown = run([str(bin_folder / command), "--help"], tmp_path)
        assert shown.returncode == 0, shown.stderr
    names = installed(bin_folder)
    assert ("torch" in names) == (extra in {"train", "onnx", "lab"})
    if extra in {"agent", "train"}:
        answer = run([str(bin_folder / "edge-agent"), "ask", "What is 12 + 30?", "--json", "--state", "state"], tmp_path)
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)["source"] in {"local", "cloud", "local-fallback"}
    if extra == "":
        refused = run([str(bin_folder / "edge-agent"), "ask", "What is 1 + 1?", "--state", "state"], tmp_path)
        assert refused.returncode != 0 and len(refused.stderr.strip().splitlines()) == 1
        assert ".[agent]" in refused.stderr


def test_coordinator_extra_alone_serves_its_bundled_model(wheel: Path, tmp_path: Path) -> None:
    bin_folder = environment(tmp_path / "venv", wheel, "coordinator")
    command = [str(bin_folder / "edge-coordinator"), "serve", "--listen", f"unix:{tmp_path / 'c.sock'}", "--state", "state"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert "SERVING" in server.stdout.readline()
        finally:
            server.terminate()
            assert server.wait(30) == 0
    contents = run(
        [str(bin_folder / "python"), "-c", "import edge.models.files as f, os; print(os.listdir(f.__path__[0]))"], tmp_path
    )
    assert "nano-cloud.gguf" in contents.stdout
    prices = "from coordinator.calls.prices import published_prices; print(len(published_prices()))"
    assert int(run([str(bin_folder / "python"), "-c", prices], tmp_path).stdout) > 0


def test_wheel_contains_the_console_and_the_operator_files(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    pages = {"index.html", "app.js", "style.css"}
    files = {"Containerfile", "compose.yaml", "coordinator.yaml", "prometheus.yaml", "alerts.yaml", "edge-coordinator.service"}
    assert {f"coordinator/console/page/{name}" for name in pages} <= names
    assert {f"coordinator/deploy/{name}" for name in files | {"grafana/dashboard.json"}} <= names
