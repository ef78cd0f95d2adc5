"""Ctrl-C while a command's modules are imported: no traceback, and the exit code of every other Ctrl-C. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTS = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background of a shell
def interrupt(*_):
    signal.raise_signal(signal.SIGINT)

def plainly():
    interrupt()

def in_a_callback():
    type("Dying", (), {"__del__": interrupt})()

def while_a_class_is_made():
    type("Made", (), {"field": type("Field", (), {"__set_name__": interrupt})()})

class BeforeTheModule:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["MODULE"]:
            sys.meta_path.remove(self)
            globals()[os.environ["HOW"]]()

sys.meta_path.insert(0, BeforeTheModule())
"""
"""Python loads it as `sitecustomize` when it starts: an interrupt at the moment when a certain module is looked for."""
AGENT = ["-m", "edge.cli", "tasks", "list"]


@pytest.mark.parametrize("how", ["plainly", "in_a_callback", "while_a_class_is_made"])
@pytest.mark.parametrize(
    ("command", "module"),
    [
        (AGENT, "edge.cli.exits"),
        (AGENT, "asyncio"),
        (AGENT, "edge.cli.whatif"),
        (AGENT, "edge.tasks.forms"),
        (["-m", "coordinator", "--help"], "edge.core.errors"),
        (["-m", "coordinator", "--help"], "typer"),
        (["-m", "tools.simulate", "--help"], "argparse"),
        (["-m", "tools.experiments", "--help"], "edge.learning.step"),
        (["-m", "tools.nano", "export", "nano-edge", "--weights", "none.pt"], "tools.nano.export"),
    ],
)
def test_an_interrupt_while_modules_are_imported_ends_without_a_traceback(
    tmp_path: Path, command: list[str], module: str, how: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS, encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "MODULE": module, "HOW": how}
    ended = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_other_errors_and_library_use_keep_their_traceback(tmp_path: Path) -> None:
    """Only commands change how the process ends, and only for an interrupt."""
    program = "from edge.core.interrupts import end_quietly\nend_quietly()\nraise KeyError('a fault')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, "KeyError: 'a fault'" in ended.stderr) == (1, True)
    program = f"import tools, edge.cli, signal; signal.raise_signal({int(signal.SIGINT)})"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "KeyboardInterrupt" in ended.stderr
