"""A real coordinator process is killed during serving and learning. Nothing is lost or counted twice: every question has its answer, the
ledger's calls match the agent's records, and every step is reported once."""

from __future__ import annotations

import asyncio
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
from tests.worlds.agent import HELP, World, local_answer, mixed_script, number_in
from tests.worlds.coordinator_process import CoordinatorProcess, coordinator_process, ledger_rows, settings_for, verify
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


def records(folder: Path) -> dict[str, dict[str, Any]]:
    with reading(folder) as state:
        assert state is not None
        return {record["id"]: record for record in state.requests(1000)}


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
            assert (agent.status().waiting_reports, agent.status().online) == (1, False)
            assert agent.access.quota().state == "offline"
            upstream.reply = right_after_a_while
            await coordinator.start()
            await reached_again(agent)
            back = [await ask(agent, number) for number in range(5, 7)]
            await agent.learn()
            await all_is_known(agent)
            assert (agent.status().waiting_reports, agent.status().steps_done) == (0, STEPS)
            await agent.learning.session.reporter.deliver()
            dual = (await agent.link.budget("math")).dual
            assert agent.components.state.steps()[-1].control.dual_after == dual
        assert [record.source for record in (*first, *back)] == ["cloud"] * 5
        assert [(record.source, record.final) for record in (cut, away)] == [("local-fallback", "3")] * 2
        assert len(world.events(Offline)) == len(world.events(Online)) == 1
        await coordinator.stop()
        kept = records(world.folder)
        charges = ledger_rows(coordinator.state, "SELECT key, charged_uusd FROM call WHERE step < 0 AND charged_uusd > 0")
        assert set(kept) == {f"q{number}" for number in range(7)}
        charged = {record["call_key"]: record["charged_uusd"] for record in kept.values() if record["charged_uusd"]}
        assert charged == {row["key"]: row["charged_uusd"] for row in charges}
        assert kept["q3"]["call_state"] == "in_doubt" and kept["q3"]["charged_uusd"] > 0
        assert kept["q4"]["call_state"] == "never_arrived"
        closed = ledger_rows(coordinator.state, "SELECT step FROM step WHERE closed ORDER BY step")
        assert [row["step"] for row in closed] == list(range(STEPS))
        await verify(coordinator)
