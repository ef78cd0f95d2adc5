"""`edge-agent status` for a running agent, an idle folder and a missing folder."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from edge.cli import main
from edge.cli.remote import announced, running_agent
from edge.config.schema import PhaseConfig
from edge.core.types import Message
from edge.state.answer_record import AnswerRequest
from edge.state.folder import StateFolder
from edge.testing.coordinator import ScriptedTerms
from tests.worlds.agent import World, asks_about_even_numbers
from tests.worlds.served_agent import served
from tests.worlds.warm_commands import edge_agent


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """Four answers, two of them by the cloud, and one step."""
    world = World(tmp_path / "state", script=asks_about_even_numbers, terms=ScriptedTerms(calls_limit=60, price_uusd_per_call=70))
    async with world.agent() as agent:
        for number in range(4):
            await agent.answerer.answer(AnswerRequest((Message("user", f"What is {number} + 1?"),), id=f"a{number}"))
        await agent.learn(1)
    return world


def screen(out: str) -> dict[str, str]:
    return {line[:12].strip(): line[12:].strip() for line in out.splitlines()}


def test_idle_folder_reports_that_nothing_runs_and_its_content(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with StateFolder(world.folder):  # a process without an endpoint, such as edge-agent learn, may hold it
        assert main(["status", "--state", str(world.folder)]) == 0
    shown = screen(capsys.readouterr().out)
    assert shown["agent"].startswith("none that can be reached runs on this state folder")
    assert shown["learning"] == "task math, phase 1 of 1, 1 step of 4 done"
    assert shown["adapter"] == "1 is active"
    assert " of 60 · tokens " in shown["budget"]


async def test_running_agent_reports_address_process_rates_and_spend(world: World) -> None:
    async with served(world) as (agent, url):
        code, out, err = await edge_agent("status", "--state", str(world.folder))
        assert (code, err) == (0, "")
        shown = screen(out)
        assert shown["agent"].endswith(f"(pid {os.getpid()}) at {url}")
        assert shown["log-odds"].startswith("of chat: too few judged answers (0) · of math: too few judged answers (")
        assert "1 step of 4 done" in shown["learning"] and "answers of chat 50.0 %" in shown["assist rate"]
        agent.learning.pause(True)
        agent.access.pause_cloud(True)
        code, out, _ = await edge_agent("status", "--json", "--state", str(world.folder))
    found = json.loads(out)
    assert (found["running"], found["address"], found["pid"], found["model"]) == (True, url, os.getpid(), "scripted")
    assert (found["learning"]["steps_done"], found["learning"]["paused"]) == (1, True)
    assert found["adapter"] == {"active": 1, "trained": 1}
    assert set(found["used_today"]) == {"answers", "serving", "learning"}


async def test_running_agent_reports_how_far_its_step_has_come(world: World) -> None:
    world.seconds_per_token = 5.0
    async with served(world) as (agent, _url):
        learning = asyncio.create_task(agent.learn())
        while agent.status().progress is None:
            await asyncio.sleep(0.05)
        code, out, err = await edge_agent("status", "--state", str(world.folder))
        _, as_json, _ = await edge_agent("status", "--json", "--state", str(world.folder))
        agent.request_stop()
        await learning
    assert (code, err) == (0, "")
    assert "step 2: answering 0 of 12 responses" in out
    found = json.loads(as_json)["learning"]["progress"]
    assert (found["step"], found["part"], found["done"], found["of"]) == (2, "rollout", 0, 12)


async def test_status_shows_the_last_steps_assist_rate_with_that_steps_target(tmp_path: Path) -> None:
    phases = (PhaseConfig(source="sums", target_rate=0.3, steps=1), PhaseConfig(source="other", target_rate=0.1, steps=1))
    world = World(tmp_path / "state", phases=phases)
    async with served(world) as (agent, _):
        await agent.learn(1)
        _, out, _ = await edge_agent("status", "--json", "--state", str(world.folder))
        [step] = agent.components.state.steps()
    learning = json.loads(out)["learning"]
    assert (learning["assist_rate"], learning["target_rate"]) == (step.to_json()["assist_rate"], 0.3)


def test_missing_folder_is_one_line_and_not_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--state", str(tmp_path / "none")]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and "name it with --state" in err
    assert not (tmp_path / "none").exists()


async def test_another_agent_at_the_address_is_not_taken_for_this_folders(world: World, tmp_path: Path) -> None:
    """For example, the folder's agent runs in a container and another agent has the same port here."""
    async with served(world) as (_, url):
        (tmp_path / "other").mkdir()
        with announced(tmp_path / "other", url):
            async with running_agent(tmp_path / "other") as found:
                assert found is not None
            file = tmp_path / "other" / "endpoint.json"
            file.write_text(json.dumps({**json.loads(file.read_text()), "instance": "another process"}))
            async with running_agent(tmp_path / "other") as found:
                assert found is None
