"""State folders after accidents: new databases with old checkpoints, later versions, damage found late, full disks."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edge.agent import Agent
from edge.cli.exits import ending
from edge.cli.remote import announced, announcement
from edge.cli.run import learn_while_serving
from edge.core.errors import AdapterError, StateError
from edge.learning.activity import read_activity
from edge.state.events import Notice
from edge.state.folder import StateFolder
from edge.state.reader import reading, reading_or_nothing
from edge.testing.learner import ScriptedLearner
from tests.unit.conftest import EdgeAgent
from tests.until import until
from tests.worlds.agent import World


async def test_new_database_does_not_take_an_old_checkpoint_for_its_own_step(tmp_path: Path) -> None:
    """As after `move the file away to start afresh`."""
    world = World(tmp_path)
    await world.learn(max_steps=2)
    for file in tmp_path.glob("agent.sqlite*"):
        file.unlink()
    async with world.agent() as agent:
        await agent.learn(max_steps=1)
        aside = agent.components.state.set_aside
    assert aside is not None and sorted(path.name for path in aside.iterdir()) == ["step-000001", "step-000002"]
    assert any(str(aside) in notice.text for notice in world.events(Notice))
    world.sink.events.clear()
    async with world.agent() as agent:
        assert agent.components.state.position().steps_done == 1
        assert agent.components.state.set_aside is None
    assert not any("had been cut" in notice.text for notice in world.events(Notice))


def test_folder_of_a_later_version_is_reported_as_such_even_when_only_read(tmp_path: Path) -> None:
    with StateFolder(tmp_path) as state:
        state.database.execute("ALTER TABLE requests RENAME TO answers")
        state.database.execute("PRAGMA user_version = 99")
    for read in (reading, reading_or_nothing):
        with pytest.raises(StateError, match="format 99"), read(tmp_path):
            pass
    with pytest.raises(StateError, match="format 99"):
        read_activity(tmp_path, 0.0, 1.0)
    with pytest.raises(StateError, match="format 99") as caught:
        StateFolder(tmp_path)
    assert "newer version" in caught.value.hint


@pytest.mark.parametrize("number", [1, 7])
def test_folder_of_an_earlier_development_version_is_refused_in_one_line_and_left_as_it_is(
    tmp_path: Path, edge_agent: EdgeAgent, number: int
) -> None:
    (tmp_path / "lock").touch()
    with closing(sqlite3.connect(tmp_path / "agent.sqlite")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(f"CREATE TABLE meta (key TEXT, value TEXT); PRAGMA user_version = {number};")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for command in (["budget", "show"], ["budget", "set", "20%"], ["report"]):
        edge_agent(*command, "--state", str(tmp_path)).refused(1, "earlier development version", "commit 037616aa", "--state DIR")
    learn = edge_agent("learn", "--steps", "1", "--state", str(tmp_path), "--out", str(tmp_path / "run"))
    assert learn.code == 1 and "commit 037616aa" in learn.err.splitlines()[-1]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert not (tmp_path / "checkpoints").exists() and not (tmp_path / "coordinator").exists()


def test_database_found_damaged_during_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        raise sqlite3.DatabaseError("database disk image is malformed")

    assert ending(command) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "database disk image is malformed" in line


def test_foreign_database_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(StateError, match="Operation not permitted"):
        StateFolder(tmp_path)


async def notices_until_learned(agent: Agent) -> list[str]:
    """Learn while serving until all four steps are made; returns the notices."""
    notices, stop = list[str](), asyncio.Event()
    learning = asyncio.create_task(learn_while_serving(agent, stop, notices.append, pause_s=0.001))
    await until(lambda: learning.done() or agent.components.state.position().steps_done == 4)
    assert not learning.done(), learning
    stop.set()
    agent.request_stop()
    await learning
    return notices


class FullDisk(ScriptedLearner):
    """A disk on which its adapter does not fit a given number of times."""

    failures = 1

    async def export(self, folder: Path, version: int) -> Any:
        if FullDisk.failures:
            FullDisk.failures -= 1
            folder.mkdir(parents=True)
            raise OSError("3072 requested and 824 written")
        return await super().export(folder, version)


async def test_disk_that_fills_during_a_step_ends_no_answers_and_the_step_is_made_later(tmp_path: Path) -> None:
    world = World(tmp_path)
    FullDisk.failures = 2

    async def open_learner() -> ScriptedLearner:
        return FullDisk()

    world._open_learner = open_learner  # type: ignore[method-assign]
    async with world.agent() as agent:
        [line] = await notices_until_learned(agent)
        assert [step.step for step in agent.components.state.steps()] == [1, 2, 3, 4]
    assert "3072 requested and 824 written" in line
    assert not list((tmp_path / "checkpoints").glob(".*"))


async def test_adapter_removed_while_the_agent_runs_ends_no_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with World(tmp_path).agent() as agent:
        learn, failures = agent.learn, [AdapterError("no such adapter file")]

        async def gone_once(max_steps: int | None = None) -> object:
            if failures:
                raise failures.pop()
            return await learn(max_steps)

        monkeypatch.setattr(agent, "learn", gone_once)
        [line] = await notices_until_learned(agent)
    assert "no such adapter file" in line


def test_endpoint_file_of_a_killed_agent_is_ignored(tmp_path: Path) -> None:
    """Another agent, on another folder, may listen on its port by now, and would be steered in its place."""
    code = (
        "import os, signal; from pathlib import Path; from edge.cli.remote import announced\n"
        f"with announced(Path({str(tmp_path)!r}), 'http://127.0.0.1:1'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert (tmp_path / "endpoint.json").exists()
    assert announcement(tmp_path) is None
    with announced(tmp_path, "http://127.0.0.1:2"):
        found = announcement(tmp_path)
        assert found is not None and found["url"] == "http://127.0.0.1:2"
    assert announcement(tmp_path) is None
