"""`budget`, `why` and `whatif` on an idle state folder, with an unreachable agent, and through an agent's HTTP endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from edge.budget.dial import MOST_OWN_DIALS
from edge.cli import main
from edge.core.types import Message
from edge.state.answer_record import AnswerRequest
from edge.state.folder import StateFolder
from edge.testing.coordinator import ScriptedTerms
from tests.worlds.agent import World, asks_about_even_numbers
from tests.worlds.coordinator import ProgrammedProvider, running_coordinator
from tests.worlds.served_agent import served
from tests.worlds.warm_commands import edge_agent


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state", script=asks_about_even_numbers, terms=ScriptedTerms(calls_limit=20, price_uusd_per_call=70))


@pytest.fixture
async def used(world: World) -> Path:
    """A folder in which 24 questions were answered, half of them by the cloud."""
    async with world.agent() as agent:
        for number in range(24):
            await agent.answerer.answer(AnswerRequest((Message("user", f"What is {number} + 1?"),), id=f"a{number}"))
    return world.folder


@pytest.fixture
async def running(world: World, used: Path) -> AsyncIterator[str]:
    """The URL of an agent on that folder."""
    async with served(world) as (_, url):
        yield url


def test_idle_folder_shows_its_budget_without_model_or_coordinator(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["budget", "show", "--state", str(used)]) == 0
    out = capsys.readouterr().out
    for part in (
        "limit    20 calls in all",
        "calls    12 of 20",
        "spend    0.00084 USD (unlimited)",
        "50.0 % of the last 24 asked",
    ):
        assert part in out
    assert "task     math" in out, "the label that is learned shares the budget, which was reported for the other one"
    assert not (used / "coordinator").exists()


async def is_steered(world: World) -> None:
    async with world.agent() as agent:
        dial = agent.access.dial()
        assert (dial.target_rate, dial.known_log_odds, agent.access.quota().state) == (0.15, 24, "paused")


def test_settings_of_an_idle_folder_apply_to_the_next_agent(world: World, used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--state", str(used)]
    assert main(["budget", "set", "15%", *place]) == 0
    assert main(["budget", "set", "0.4", "--task", "code", *place]) == 0
    assert main(["budget", "pause", *place]) == 0
    assert "until edge-agent budget resume" in capsys.readouterr().out
    assert main(["budget", "show", "--json", *place]) == 0
    budgets = json.loads(capsys.readouterr().out)
    assert {task["task"]: (task["target_rate"], task["state"]) for task in budgets["tasks"]} == {
        "chat": (0.15, "paused"), "math": (0.15, "paused"), "code": (0.4, "paused"),
    }  # fmt: skip
    assert (budgets["paused"], budgets["origin"]) == (True, "stored")
    asyncio.run(is_steered(world))
    with StateFolder(used):
        assert main(["budget", "show", *place]) == 0, "a folder locked by an agent can be read"
        assert main(["budget", "set", "15%", *place]) == 1
    assert "another agent is using this state folder" in capsys.readouterr().err
    assert main(["budget", "resume", "--json", *place]) == 0
    assert json.loads(capsys.readouterr().out)["switched_off"] == ""
    assert main(["budget", "set", "off", *place]) == 0
    assert main(["budget", "set", "15", *place]) == 2


def test_unused_folder_is_reported_and_not_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--state", str(tmp_path / "none")]
    assert main(["budget", "show", *place]) == 0
    assert "nothing was asked or learned here yet" in capsys.readouterr().out
    assert (main(["whatif", "--sweep", *place]), main(["whatif", *place]), main(["why", "x", *place])) == (1, 2, 1)
    for words in (["pause"], ["budget", "set", "10%"], ["budget", "pause"]):
        assert main([*words, *place]) == 1
        assert "no agent has used the state folder" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_why_and_whatif_explain_from_the_folder_alone(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--state", str(used)]
    assert main(["why", "a4", *place]) == 0
    out = capsys.readouterr().out
    assert "it asked, and the cloud answered" in out and "the embedded coordinator is not running" in out
    assert main(["whatif", "--sweep", "--target-rate", "25%", *place]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in table[1:11]] == [
        "as it was", "0 %", "5 %", "10 %", "20 %", "25 %", "30 %", "50 %", "70 %", "100 %",
    ]  # fmt: skip
    assert main(["whatif", "--good", "95%", *place]) == 0
    assert "what rate keeps 95.0 % good is not known" in capsys.readouterr().out
    assert main(["whatif", "--target-rate", "0.25", "--task", "chat", "--last", "23", "--json", *place]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["answers"], result["outlooks"][0]["calls"]) == (23, 6)


async def test_reachable_coordinator_reports_the_budget_without_a_running_agent(used: Path, tmp_path: Path) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider(), budgets={"device": {"calls_limit": 50}}):
        code, out, _ = await edge_agent(
            "budget", "show", "--json", "--state", str(used), "--coordinator", f"unix:{tmp_path}/c.sock"
        )
    budgets = json.loads(out)
    assert (code, budgets["origin"]) == (0, "coordinator")
    assert (budgets["tasks"][0]["calls"], budgets["tasks"][0]["calls_limit"]) == (0, 50)


async def test_a_running_agent_is_steered_through_its_endpoint(used: Path, running: str) -> None:
    place = ("--state", str(used))
    assert (await edge_agent("budget", "set", "20%", *place))[0] == 0
    code, out, _ = await edge_agent("budget", "pause", "--json", *place)
    budgets = json.loads(out)
    assert (budgets["origin"], budgets["paused"], budgets["tasks"][0]["state"]) == ("agent", True, "paused")
    assert (budgets["target_rate"], code) == (0.2, 0)
    answer = json.loads((await edge_agent("ask", "What is 4 + 1?", "--json", *place))[1])
    assert (answer["source"], answer["quota"]["state"]) == ("local", "paused")
    assert (await edge_agent("budget", "resume", *place))[0] == 0
    code, out, _ = await edge_agent("whatif", "--target-rate", "10%", *place)
    assert code == 0 and "over 25 recorded answers" in out
    code, out, _ = await edge_agent("why", "a4", *place)
    assert code == 0 and "completed, " in out and "from the record" not in out


BAD: list[tuple[str, Any, str | None]] = [
    ("/api/budget", {"target_rate": 1.5}, "target_rate"),
    ("/api/budget", {"task": "math"}, "target_rate"),
    ("/api/budget", {"target_rate": 0.1, "task": 7}, "task"),
    ("/api/budget/pause", {"paused": 1}, "paused"),
    ("/api/budget/limit", {"period": "fortnight"}, "period"),
    ("/api/budget/limit", {}, None),
    ("/api/budget/limit", {"off": True, "calls_limit": 4}, None),
    ("/api/whatif", {}, "target_rate"),
    ("/api/budget", {"target_rate": 0.1, "task": "<img src=x onerror=alert(1)>"}, "task"),
    ("/api/whatif", {"target_rate": [0.1, "x"]}, "target_rate"),
    ("/api/whatif", {"target_rate": 0.1, "last": 0}, "last"),
]


async def test_number_of_tasks_with_their_own_dial_is_limited(running: str) -> None:
    async with aiohttp.ClientSession() as session:
        for number in range(MOST_OWN_DIALS + 1):
            async with session.post(f"{running}/api/budget", json={"target_rate": 0.1, "task": f"t{number}"}) as reply:
                assert reply.status == (200 if number < MOST_OWN_DIALS else 400)
        async with session.post(f"{running}/api/budget", json={"target_rate": 0.2, "task": "t0"}) as reply:
            assert reply.status == 200, "one that is there can be turned"
        async with session.post(f"{running}/api/budget", json={"target_rate": 0.2}) as reply:
            assert reply.status == 200


async def test_endpoint_error_names_the_invalid_field(running: str) -> None:
    async with aiohttp.ClientSession() as session:
        for path, body, param in BAD:
            async with session.post(running + path, json=body) as reply:
                assert (reply.status, (await reply.json())["error"]["param"]) == (400, param)
        async with session.post(f"{running}/api/whatif", json={"target_rate": 0.1, "last": 5}) as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (409, "too_few_answers")
        async with session.post(f"{running}/api/budget", json={"target_rate": "30 %"}) as reply:
            assert (reply.status, (await reply.json())["target_rate"]) == (200, 0.3)
        async with session.post(f"{running}/api/budget", json={"target_rate": None}) as reply:
            assert (reply.status, (await reply.json())["target_rate"]) == (200, None)
        async with session.get(f"{running}/api/status") as reply:
            assert (await reply.json())["quota"]["task"] == "chat"


def test_unknown_label_is_accepted_with_a_warning_and_can_be_forgotten(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--state", str(used)]
    assert main(["budget", "set", "10%", "--task", "typo", *place]) == 0
    assert "no task of the label typo is known yet (known: chat, math)" in capsys.readouterr().err
    assert main(["budget", "forget", "typo", *place]) == 0
    capsys.readouterr()
    assert main(["budget", "show", "--json", *place]) == 0
    assert [task["task"] for task in json.loads(capsys.readouterr().out)["tasks"]] == ["chat", "math"]
    assert main(["budget", "forget", "typo", *place]) == 1
    assert main(["budget", "forget", "no label", *place]) == 2


async def test_running_agent_forgets_a_label_and_marks_answers_of_unknown_labels(running: str) -> None:
    async with aiohttp.ClientSession() as session:

        async def known(label: str) -> bool:
            body = {
                "model": "edge-local",
                "messages": [{"role": "user", "content": "What is 2 + 1?"}],
                "metadata": {"task": label},
            }
            async with session.post(f"{running}/v1/chat/completions", json=body) as reply:
                return bool((await reply.json())["edge"]["task_known"])

        assert [await known("math"), await known("typo"), await known("typo")] == [True, False, False]
        await session.post(f"{running}/api/budget", json={"task": "typo", "target_rate": 0.3})
        assert await known("typo")
        for status in (200, 404):
            async with session.post(f"{running}/api/budget/forget", json={"task": "typo"}) as reply:
                assert reply.status == status
        async with session.get(f"{running}/api/budget") as reply:
            assert "typo" not in [task["task"] for task in (await reply.json())["tasks"]]
        assert not await known("typo")
        async with session.post(f"{running}/api/budget/forget", json={}) as reply:
            assert (reply.status, (await reply.json())["error"]["param"]) == (400, "task")
