"""The service's files and commands: the input of systemd and launchd, with and without a service manager."""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from edge.cli import service
from edge.cli.service import ServiceSpec, systemd_unit
from tests.unit.conftest import EdgeAgent

ODD = '/home/a b/50% "off"/c$d\\e'
COMMAND = [sys.executable, "-m", "edge.cli", "run", "--state", ODD, "--set", "serve.temperature=0.5"]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="systemd runs on Linux")


def spec(**environment: str) -> ServiceSpec:
    return ServiceSpec(COMMAND, Path("/home/a b"), environment, Path("/home/a b/.config/edge-agent/environment"))


def values(unit: str, name: str) -> list[str]:
    return [line.partition("=")[2] for line in unit.splitlines() if line.startswith(f"{name}=")]


def unquoted(text: str) -> list[str]:
    """A command line as systemd reads it: the shell's quotes, and two signs that are doubled."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(text)]


def test_unit_passes_every_word_unchanged_and_restarts_after_failures_unprivileged() -> None:
    unit = systemd_unit(spec(EDGE_AGENT_NO_CLOUD="1", HF_HOME="/models/50%"))
    assert unquoted(values(unit, "ExecStart")[0]) == COMMAND
    assert values(unit, "Restart") == ["on-failure"]
    assert values(unit, "NoNewPrivileges") == ["yes"]
    assert values(unit, "Environment") == ["EDGE_AGENT_NO_CLOUD=1", '"HF_HOME=/models/50%%"']
    assert values(unit, "EnvironmentFile") == ["-/home/a b/.config/edge-agent/environment"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "edge-agent.service"
    unit.write_text(systemd_unit(spec(EDGE_AGENT_NO_CLOUD="1")))
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}

    def verdict() -> str:
        asked = ["systemd-analyze", "--user", "verify", str(unit)]
        return subprocess.run(asked, env=environment, capture_output=True, text=True, check=False).stderr

    output = verdict()
    if "Failed to initialize manager" in output:
        pytest.skip("systemd-analyze cannot work here")
    assert str(unit) not in output
    unit.write_text(unit.read_text().replace("LockPersonality", "LockPersonalty"))
    assert f"{unit}:" in verdict()  # it would be in the output


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of one's own, without a way to any service manager."""
    for name in service.CARRIED:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def program(home: Path, name: str, body: str) -> None:
    """A program of this name that notes how it was called."""
    file = home / "bin" / name
    file.write_text(f'#!/bin/sh\necho "{name} $*" >> "{home}/calls"\n{body}\n')
    file.chmod(0o755)


def calls(home: Path) -> list[str]:
    file = home / "calls"
    found = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return found


def unit_of(home: Path) -> Path:
    return home / "config" / "systemd" / "user" / "edge-agent.service"


@pytest.fixture
def systemd(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "platform", "linux")
    program(home, "systemctl", "exit 0")
    program(home, "loginctl", "echo no")
    program(home, "journalctl", "echo said")
    return home


def test_install_writes_and_starts_the_unit_and_explains_how_to_keep_it_running(
    systemd: Path, edge_agent: EdgeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(systemd)
    (systemd / "mine.yaml").write_text("coordinator: {embedded: {upstream: anthropic, model: large, api_key_env: MY_KEY}}\n")
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    words = ["service", "install", "--config", "mine.yaml", "--state", "state", "--port", "0", "--no-learn"]
    code, out, err = edge_agent(*words)
    assert code == 0 and calls(systemd) == [
        "systemctl --user show-environment",
        "systemctl --user daemon-reload",
        "systemctl --user enable edge-agent.service",
        "systemctl --user restart edge-agent.service",
        f"loginctl show-user {os.getuid()} --property=Linger --value",
    ]
    (line,) = values(unit_of(systemd).read_text(), "ExecStart")
    options = ["--config", str(systemd / "mine.yaml"), "--state", str(systemd / "state"), "--port", "0", "--no-learn"]
    assert unquoted(line) == [sys.executable, "-P", "-m", "edge.cli", "run", *options]
    assert "sk-very-secret" not in unit_of(systemd).read_text()
    assert str(unit_of(systemd)) in out
    assert "loginctl enable-linger" in err and "MY_KEY" in err
    assert edge_agent(*words).code == 0  # the same again changes nothing


def test_foreign_unit_is_replaced_only_with_force_and_an_unusable_one_never(systemd: Path, edge_agent: EdgeAgent) -> None:
    assert edge_agent("service", "install").code == 0
    before = unit_of(systemd).read_text()
    edge_agent("service", "install", "--port", "0").refused(2, "--force")
    edge_agent("service", "install", "--force", "--set", "serve.port=99999").refused(2, "serve.port")
    assert unit_of(systemd).read_text() == before
    assert edge_agent("service", "install", "--port", "0", "--force").code == 0
    assert unit_of(systemd).read_text() != before


def test_status_logs_and_uninstall_control_the_unit(systemd: Path, edge_agent: EdgeAgent) -> None:
    assert edge_agent("service", "status").code == service.NOT_RUNNING
    assert edge_agent("service", "logs").code == 2
    assert edge_agent("service", "uninstall").code == 2
    assert calls(systemd) == []
    assert edge_agent("service", "install").code == 0
    assert edge_agent("service", "status", "--json").json == {"installed": True, "running": True, "file": str(unit_of(systemd))}
    program(systemd, "systemctl", '[ "$2" != is-active ]')
    assert edge_agent("service", "status").code == service.NOT_RUNNING
    calls(systemd)
    assert edge_agent("service", "logs", "-n", "7").code == 0
    assert edge_agent("service", "uninstall").code == 0
    assert calls(systemd) == [
        "journalctl --user-unit edge-agent.service --lines 7 --no-pager",
        "systemctl --user show-environment",
        "systemctl --user disable --now edge-agent.service",
        "systemctl --user daemon-reload",
    ]
    assert not unit_of(systemd).exists()


@linux_only
def test_without_a_user_systemd_nothing_changes_and_one_line_explains_why(home: Path, edge_agent: EdgeAgent) -> None:
    edge_agent("service", "install").refused(1, "systemctl")
    program(home, "systemctl", "echo 'Failed to connect to bus: No medium found' >&2; exit 1")
    edge_agent("service", "install").refused(1, "Failed to connect to bus")
    assert not (home / "config").exists()


@linux_only
def test_print_and_dry_run_change_nothing(home: Path, edge_agent: EdgeAgent) -> None:
    assert values(edge_agent("service", "install", "--print").out, "WantedBy") == ["default.target"]
    assert str(unit_of(home)) in edge_agent("service", "install", "--dry-run").out
    assert edge_agent("service", "uninstall", "--dry-run").code == 0
    assert sorted(file.name for file in home.iterdir()) == ["bin"]


def test_on_macos_launchd_gets_a_property_list(home: Path, edge_agent: EdgeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    program(home, "launchctl", '[ "$1" != print ] || [ "${2%/edge-agent}" = "$2" ]')  # the domain is there, the service is not
    assert edge_agent("service", "install", "--port", "0").code == 0
    plist = home / "Library" / "LaunchAgents" / "edge-agent.plist"
    domain = f"gui/{os.getuid()}"
    assert calls(home) == [
        f"launchctl print {domain}",
        f"launchctl print {domain}/edge-agent",
        f"launchctl bootstrap {domain} {plist}",
    ]
    assert plistlib.loads(plist.read_bytes())["ProgramArguments"][-2:] == ["--port", "0"]
    program(home, "launchctl", "exit 0")
    assert edge_agent("service", "install", "--port", "0").code == 0  # loaded already: unloaded first
    assert f"launchctl bootout {domain}/edge-agent" in calls(home)
    assert edge_agent("service", "uninstall").code == 0
    assert not plist.exists()
    assert stat.S_IMODE(plist.parent.stat().st_mode) & 0o022 == 0
