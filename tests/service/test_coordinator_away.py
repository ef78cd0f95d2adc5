"""A real coordinator process is killed during serving and learning. Nothing is lost or counted twice: every question has its answer, the
ledger's calls match the agent's records, and every step is reported once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from edge.agent import Agent
from edge.config.schema import PhaseConfig
from edge.core.errors import CoordinatorError
from edge.core.types import Message
from edge.rpc.grpc_client import ClientPolicy, GrpcCoordinatorClient
from edge.state.answer_record import AnswerRecord, AnswerRequest
from edge.state.events import Offline, Online
from edge.state.reader import reading
from edge.testing.clock import ManualClock
from tests.unit.agent_world import HELP, World, local_answer, mixed_script, number_in, recorded
from tests.worlds.coordinator_process import CoordinatorProcess, command, coordinator_process, settings_for
from tests.worlds.upstream_server import Upstream, hangs, running_upstream

POLICY = ClientPolicy(connect_timeout_s=2.0, control_deadline_s=10.0, max_retries=1)
STEPS = 4
LEARNED = 10_000
"""Questions of learning have numbers below this, those of people above."""


def script(messages: Any, sampling: Any, seed: int) -> str:
    """People's questions are always asked on; those of learning are answered by chance."""
    if number_in(messages[-1].content) < LEARNED:
        return mixed_script(messages, sampling, seed)
    return local_answer(3) if sampling.suppress_help else HELP


async def right_after_a_while(request: web.Request) -> web.StreamResponse:
    """The right answer, a moment later; 10 tokens in, 5 out."""
    question = (await request.json())["messages"][-1]["content"]
    await asyncio.sleep(0.02)
    message = {"role": "assistant", "content": local_answer(number_in(question) + 1)}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return web.json_response({"id": "up", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})


@asynccontextmanager
async def world_over(folder: Path, coordinator: CoordinatorProcess) -> AsyncIterator[World]:
    """A scripted model and learner over a real connection."""
    world = World(folder / "agent", script=script, phases=(PhaseConfig(source="sums", target_rate=0.3, steps=STEPS),))
    client = GrpcCoordinatorClient(coordinator.address, policy=POLICY)
    world.client = client  # type: ignore[assignment]
    try:
        yield world
    finally:
        await client.aclose()


@asynccontextmanager
async def upstream_and_coordinator(folder: Path) -> AsyncIterator[tuple[Upstream, CoordinatorProcess]]:
    async with running_upstream() as upstream:
        upstream.reply = right_after_a_while
        async with coordinator_process(folder, settings_for(upstream)) as coordinator:
            yield upstream, coordinator


async def ask(agent: Agent, number: int) -> AnswerRecord:
    message = Message("user", f"What is {LEARNED + number} + 1?")
    return await agent.answerer.answer(AnswerRequest((message,), id=f"q{number}"))


async def all_is_known(agent: Agent) -> None:
    """Wait until no call's end is unknown and no step report waits; on the agent's clock time passes quickly."""
    clock = agent.components.clock
    assert isinstance(clock, ManualClock)
    async with asyncio.timeout(60):
        while agent.status().unsettled_calls:
            await agent.access.unconfirmed.settle()
            clock.advance(10.0)
            await asyncio.sleep(0.05)


def served_calls(coordinator: CoordinatorProcess) -> dict[str, tuple[str, int]]:
    """State and charge of the calls outside learning, by key."""
    database = sqlite3.connect(f"file:{coordinator.state / 'ledger.sqlite3'}?mode=ro", uri=True)
    try:
        rows = database.execute("SELECT key, state, charged_uusd FROM call WHERE step < 0").fetchall()
    finally:
        database.close()
    return {key: (state, charged) for key, state, charged in rows}


def closed_steps(coordinator: CoordinatorProcess) -> list[int]:
    database = sqlite3.connect(f"file:{coordinator.state / 'ledger.sqlite3'}?mode=ro", uri=True)
    try:
        return [step for (step,) in database.execute("SELECT step FROM step WHERE closed ORDER BY step")]
    finally:
        database.close()


def records(folder: Path) -> dict[str, dict[str, Any]]:
    with reading(folder) as state:
        assert state is not None
        return {record["id"]: record for record in state.requests(1000)}


async def verified(coordinator: CoordinatorProcess) -> None:
    code, stdout, stderr = await command("ledger", "verify", "--state", str(coordinator.state))
    assert code == 0, stdout + stderr


async def reached_again(agent: Agent) -> None:
    """Wait until the connection is back: gRPC pauses between its tries, and requests wait 2 s after a lost coordinator."""
    while True:
        with suppress(CoordinatorError):
            await agent.link.budget("math")
            return
        await asyncio.sleep(0.05)


async def test_coordinator_killed_while_serving_and_learning_loses_and_double_counts_nothing(tmp_path: Path) -> None:
    async with upstream_and_coordinator(tmp_path) as (upstream, coordinator), world_over(tmp_path, coordinator) as world:
        async with world.agent() as agent:
            first = [await ask(agent, number) for number in range(3)]
            await agent.learn(max_steps=1)
            upstream.asked.clear()
            upstream.reply = hangs
            under_way = asyncio.create_task(ask(agent, 3))
            await upstream.asked.wait()
            await coordinator.kill_9()
            cut = await under_way
            away = await ask(agent, 4)
            await agent.learn(max_steps=1)
            assert (agent.status().outbox, agent.status().online) == (1, False)
            assert agent.budgets.quota().state == "offline"
            upstream.reply = right_after_a_while
            await coordinator.start()
            await reached_again(agent)
            back = [await ask(agent, number) for number in range(5, 7)]
            await agent.learn()
            await all_is_known(agent)
            assert (agent.status().outbox, agent.status().steps_done) == (0, STEPS)
            await agent.learning.reporter.deliver()
            dual = (await agent.link.budget("math")).dual
            assert agent.steps()[-1].control.dual_after == dual
        assert [record.source for record in (*first, *back)] == ["cloud"] * 5
        assert [(record.source, record.final) for record in (cut, away)] == [("local-fallback", "3")] * 2
        assert len(world.events(Offline)) == len(world.events(Online)) == 1
        await coordinator.stop()
        kept, calls = records(world.folder), served_calls(coordinator)
        assert set(kept) == {f"q{number}" for number in range(7)}
        charged = {record["call_key"]: record["charged_uusd"] for record in kept.values() if record["charged_uusd"]}
        assert charged == {key: uusd for key, (_, uusd) in calls.items() if uusd}
        assert kept["q3"]["call_state"] == "in_doubt" and kept["q3"]["charged_uusd"] > 0
        assert kept["q4"]["call_state"] == "never_arrived"
        assert closed_steps(coordinator) == list(range(STEPS))
        await verified(coordinator)


async def test_lost_reply_is_found_by_its_key_and_paid_once(tmp_path: Path) -> None:
    async with upstream_and_coordinator(tmp_path) as (upstream, coordinator), world_over(tmp_path, coordinator) as world:
        async with world.agent() as agent:
            honest = world.client.stream_complete

            async def lost(call: Any, deadline_s: float) -> Any:
                async for _ in honest(call, deadline_s):
                    pass
                await coordinator.kill_9()
                async for delta in honest(call, deadline_s):
                    yield delta

            world.client.stream_complete = lost  # type: ignore[method-assign]
            record = await ask(agent, 0)
            assert (record.source, record.call_state, record.charged_uusd) == ("local-fallback", "unsettled", 0)
        await coordinator.start()
        world.client = GrpcCoordinatorClient(coordinator.address, policy=POLICY)  # type: ignore[assignment]
        async with world.agent() as agent:
            await all_is_known(agent)
            found = recorded(agent, "q0")
        await world.client.aclose()
        assert (found.call_state, found.charged_uusd, found.cloud_tokens) == ("completed", 20, 15)
        assert served_calls(coordinator) == {found.call_key: ("completed", 20)}
        assert len(upstream.keys) == 1
        assert json.dumps(records(world.folder)).count('"charged_uusd": 20') == 1
        await coordinator.stop()
        await verified(coordinator)
