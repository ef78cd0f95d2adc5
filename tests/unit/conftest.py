"""Fixtures shared by several files of unit tests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from edge.cli import main
from edge.core.errors import UsageError
from edge.state.folder import StateFolder
from edge.verifiers.sandbox import choice
from edge.verifiers.sandbox.role import Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    """The best sandbox for programs that this machine has."""
    try:
        return choice.best_sandbox()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFolder]:
    """An open state folder."""
    with StateFolder(tmp_path / "state") as folder:
        yield folder


TimeZone = Callable[[str], None]


@pytest.fixture
def time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[TimeZone]:
    """Moves this machine into a time zone for the test."""
    if not hasattr(time, "tzset"):
        pytest.skip("this system has no time zones to set")

    def move(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


class Ended(NamedTuple):
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON output of a successful command."""
        assert self.code == 0, self
        return json.loads(self.out)

    def refused(self, code: int, *parts: str) -> None:
        """It printed nothing but one line of error, which has these parts."""
        assert (self.code, self.out, self.err.count("\n")) == (code, "", 1), self
        assert self.err.startswith("error: ") and all(part in self.err for part in parts), self.err


EdgeAgent = Callable[..., Ended]


@pytest.fixture
def edge_agent(capsys: pytest.CaptureFixture[str]) -> EdgeAgent:
    """Runs `edge-agent` with these words in this process."""

    def run(*words: str) -> Ended:
        capsys.readouterr()
        return Ended(main(words), *capsys.readouterr())

    return run
