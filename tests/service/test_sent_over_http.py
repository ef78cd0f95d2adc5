"""What left the device, over the endpoint of a running agent: the listing's pages, one entry, and the command that reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from edge.cli.remote import agent_control, announced
from edge.cloud.egress import EgressClient
from edge.cloud.sent import Choice, Keep, SentLog
from edge.config.schema import AgentConfig
from edge.core.errors import NotFound
from edge.privacy.registry import Registry
from edge.serve.endpoint import build_app
from edge.serve.running_agent import RunningAgent
from edge.serve.server import serving
from edge.testing.clock import ManualClock
from edge.testing.endpoint import ScriptedAnswers
from tests.service.in_process import call
from tests.unit.agent_world import World


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[tuple[str, Path]]:
    world = World(tmp_path)
    async with world.agent() as agent:
        client = EgressClient(world.client, Registry(), SentLog(agent.components.state.database, world.clock, Keep()))
        for number in range(3):
            await client.complete(call(f"k{number}", f"What is {number} + 1? I am p{number}@x.org", prompt_id=f"a{number}"), 5.0)
        async with serving(build_app(ScriptedAnswers(["4"]), RunningAgent(agent), ManualClock()), "127.0.0.1", 0) as url:
            with announced(tmp_path, url):
                yield url, tmp_path


async def got(url: str) -> tuple[int, dict]:
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        return reply.status, await reply.json()


async def test_pages_follow_one_another_and_one_answers_entries_are_found(place) -> None:
    url, _ = place
    status, first = await got(f"{url}/api/sent?limit=2")
    assert status == 200 and [entry["id"] for entry in first["sent"]] == [3, 2] and first["next_before"] == 2
    _, rest = await got(f"{url}/api/sent?limit=2&before={first['next_before']}")
    assert [entry["id"] for entry in rest["sent"]] == [1] and rest["next_before"] is None
    assert rest["dropped"] == {"entries": 0, "until": 0.0} and rest["waiting"] == []
    assert [entry["answer_id"] for entry in (await got(f"{url}/api/sent?answer=chatcmpl-a1"))[1]["sent"]] == ["a1"]


async def test_one_entry_has_its_content(place) -> None:
    url, _ = place
    status, entry = await got(f"{url}/api/sent/1")
    assert status == 200 and entry["payload"]["messages"][0]["content"] == "What is 0 + 1? I am [EMAIL_1]"
    assert entry["replaced"] == {"email": 1} and (await got(f"{url}/api/sent/99"))[0] == 404


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "before=-1", "kind=gossip", "since=now"])
async def test_what_cannot_be_asked_is_a_400(place, query: str) -> None:
    status, body = await got(f"{place[0]}/api/sent?{query}")
    assert status == 400 and body["error"]["param"] == query.partition("=")[0]


async def test_the_command_asks_the_agent_that_runs(place) -> None:
    _, folder = place
    async with agent_control(AgentConfig(state_folder=str(folder))) as agent:
        found = await agent.sent(Choice(1, kind="answering"))
        assert [entry["id"] for entry in found["sent"]] == [3]
        assert (await agent.sent_entry(2))["payload"]["prompt_id"] == "a1"
        with pytest.raises(NotFound):
            await agent.sent_entry(77)
