"""How commands start and end: one line of error, exit codes, first steps of a new user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.cli import main as coordinator_main
from edge.cli import main
from edge.cli.allocator import SETTINGS, wants_tuning
from edge.cli.exits import ending
from edge.core.install import install_extra
from tests.unit.conftest import EdgeAgent, Ended


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["lern"], 2, "'lern'"),
        (["run", "--nope"], 2, "--nope"),
        (["learn", "--steps", "many"], 2, "--steps"),
        (["learn", "--steps", "0"], 2, "--steps"),
        (["learn", "--target-rate", "1.5"], 2, "--target-rate"),
        (["run", "--target-rate", "nan"], 2, "--target-rate"),
        (["run", "--set", "nonsense"], 2, "nonsense"),
        (["run", "--mode", "sideways"], 2, "--mode"),
        (["run", "--no-learn", "--no-serve"], 2, "nothing to do"),
        (["run", "--config", "/no/such.yaml"], 2, "/no/such.yaml"),
        (["ask", "  "], 2, "the question is empty"),
        (["ask", "two", "words"], 2, "quotes"),
        (["config", "show", "budgte"], 2, "budgte"),
        (["ask", "hi", "--model", "/no/such.gguf", "--state", "new"], 1, "/no/such.gguf"),
    ],
)
def test_a_failure_is_one_line_with_exit_code_1_and_wrong_usage_one_with_2(
    words: list[str], code: int, part: str, edge_agent: EdgeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    edge_agent(*words).refused(code, part)


def test_ctrl_c_exits_with_130_and_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert ending(interrupted) == 130
    assert capsys.readouterr() == ("", "")


def test_unexpected_error_writes_its_traceback_to_a_file_and_prints_it_for_debugging(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGE_AGENT_DEBUG", raising=False)
    monkeypatch.setattr("platformdirs.user_log_path", lambda *names, **options: tmp_path)

    def breaks() -> int:
        raise ZeroDivisionError("by zero")

    ended = Ended(ending(breaks), *capsys.readouterr())
    (file,) = tmp_path.iterdir()
    ended.refused(1, "ZeroDivisionError: by zero", str(file))
    assert "in breaks" in file.read_text(encoding="utf-8")
    monkeypatch.setenv("EDGE_AGENT_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        ending(breaks)


def test_missing_package_is_named_with_the_command_to_install_it(capsys: pytest.CaptureFixture[str]) -> None:
    def needs_torch() -> int:
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")

    Ended(ending(needs_torch), *capsys.readouterr()).refused(1, install_extra("train"))


def test_closed_output_pipe_is_no_error() -> None:
    program = f"{sys.executable} -m edge.cli config show | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_full_disk_or_closed_output_is_no_traceback() -> None:
    command = f"{sys.executable} -m edge.cli config keys"
    full = subprocess.run(["sh", "-c", f"{command} > /dev/full"], capture_output=True, text=True, check=False)
    assert (full.returncode, full.stderr.count("\n")) == (1, 1)
    closed = subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, "")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env=ascii_only)
    assert shown.returncode == 0 and "\\u" in shown.stdout


@pytest.mark.parametrize(
    ("words", "environment", "glibc", "wanted"),
    [
        (["run"], {}, True, True),
        (["learn", "--steps", "3"], {}, True, True),
        (["ask", "run"], {}, True, False),
        (["run", "--help"], {}, True, False),
        (["run", "--no-learn"], {}, True, False),
        (["run"], {"EDGE_AGENT_ALLOCATOR": "tuned"}, True, False),
        (["run"], {"EDGE_AGENT_ALLOCATOR": "lean"}, True, True),
        (["run"], {"EDGE_AGENT_ALLOCATOR": "lean", "MALLOC_MMAP_THRESHOLD_": "1048576"}, True, False),
        (["run"], {"LD_PRELOAD": "libjemalloc.so"}, True, False),
        (["run"], {}, False, False),
        ([], {}, True, False),
    ],
)
def test_only_training_commands_are_restarted_and_only_once(
    words: list[str], environment: dict[str, str], glibc: bool, wanted: bool
) -> None:
    assert wants_tuning(words, environment, glibc=glibc) is wanted


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings exist on Linux only")
def test_the_restarted_process_is_the_same_command_with_the_settings(tmp_path: Path) -> None:
    program = (
        "import json, os, sys\nfrom edge.cli import allocator\n"
        "allocator.restart_with_tuned_allocator()\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))"
    )
    file = tmp_path / "probe.py"
    file.write_text(program, encoding="utf-8")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd()), "MALLOC_ARENA_MAX": "3"}
    done = subprocess.run(
        [sys.executable, str(file), "learn", "a b"], capture_output=True, text=True, check=True, env=environment
    )
    arguments, seen = json.loads(done.stdout)
    assert arguments == ["learn", "a b"]
    assert {name: seen[name] for name in SETTINGS} == {**SETTINGS, "MALLOC_ARENA_MAX": "3"}


def test_an_unknown_allocator_is_wrong_usage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EDGE_AGENT_ALLOCATOR", "leen")
    Ended(main(), *capsys.readouterr()).refused(2, "EDGE_AGENT_ALLOCATOR", "lean")


def test_the_coordinators_configuration_is_checked_and_shown_like_the_agents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "coordinator.yaml"
    file.write_text("budgets: {device: {calls_limit: 7}}\n")
    assert coordinator_main(["config", "check", str(file)]) == 0
    assert coordinator_main(["config", "check", str(file), "--config", str(file)]) == 2
    capsys.readouterr()
    assert coordinator_main(["config", "show", "budgets.device.calls_limit", "--config", str(file)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("budgets.device.calls_limit: 7")
    assert coordinator_main(["config", "show", "budgte"]) == 2
    assert "budgte" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run", "--no-learn"], ["run"], ["service", "install", "--print"]])
def test_whatever_run_would_refuse_is_reported_first(command: list[str], tmp_path: Path, edge_agent: EdgeAgent) -> None:
    for option, value, code in (("--coordinator", "nonsense", 2), ("--model", "/nope.gguf", 1)):
        edge_agent(*command, option, value, "--state", str(tmp_path / "state")).refused(code, value)
    assert not (tmp_path / "state").exists()


def test_config_show_accepts_a_prefix(edge_agent: EdgeAgent) -> None:
    rows = edge_agent("config", "show", "budget.learning", "--json").json
    keys = ["budget.learning_calls_per_day", "budget.learning_spend_per_day_uusd"]
    assert [(row["key"], row["origin"]) for row in rows] == [(key, "default") for key in keys]


def test_an_option_before_the_command_is_told_its_place(edge_agent: EdgeAgent) -> None:
    edge_agent("--state", "here", "status").refused(2, "No such option: --state", "options come after a command")
