"""kill -9 of a real agent between a step's report and the coordinator's reply: the committed steps are the reported ones, however many
replies were late before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web

from edge.state.events import StepFinished
from edge.state.folder import StateFolder
from tests.worlds.coordinator_process import CoordinatorProcess, coordinator_process, ledger_rows, settings_for, verify
from tests.worlds.upstream_server import Upstream
from tests.worlds.warm_processes import LearningAgent

LIMIT_S = 600.0
MANY_STEPS = 5000
LAST_STEPS = 2
SOURCE = "practice:arith"


def settings(folder: Path, address: str) -> list[str]:
    return [
        f"state_folder={folder / 'state'}",
        f"phases=[{{source: '{SOURCE}', steps: {MANY_STEPS}}}]",
        f"coordinator.address={address}",
        "coordinator.control_deadline_s=1",
        "learning.prompts_per_step=1",
        "learning.group_size=2",
        "learning.max_tokens=24",
        "learning.torch_threads=1",
        "engine.threads=1",
        "learning.seed=5",
    ]


async def wrong(request: web.Request) -> web.StreamResponse:
    """An answer that any question may get."""
    message = {"role": "assistant", "content": "<answer>\\boxed{1}</answer>"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return web.json_response({"id": "up", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})


class Relay(grpc.GenericRpcHandler):
    """Passes every call with one reply on; `on_reply` is awaited with its method before the reply goes back."""

    def __init__(self, target: str, on_reply: Callable[[str], Awaitable[None]]) -> None:
        self._channel, self._on_reply = grpc.aio.insecure_channel(target), on_reply

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = handler_call_details.method.rpartition("/")[2]
        if method in ("StreamComplete", "WatchBudget"):
            return None
        ask = self._channel.unary_unary(handler_call_details.method)

        async def once(request: bytes, context: Any) -> bytes:
            named = [(key, value) for key, value in context.invocation_metadata() if key == "device-id"]
            try:
                reply: bytes = await ask(request, timeout=context.time_remaining(), metadata=named)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
            await self._on_reply(method)
            return reply

        return grpc.unary_unary_rpc_method_handler(once)


@asynccontextmanager
async def relay(folder: Path, target: str, on_reply: Callable[[str], Awaitable[None]]) -> AsyncIterator[str]:
    """A relay's address, while the block runs."""
    address, server = f"unix:{folder}/relay.sock", grpc.aio.server()
    server.add_generic_rpc_handlers((Relay(target, on_reply),))
    server.add_insecure_port(address)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


class Killer:
    """Kills the agent at some step reports and holds back the reply to others; lets all pass after the last kill."""

    def __init__(self, kills: int) -> None:
        self.kills = 0
        self.kept_back = 0
        self.agent: LearningAgent | None = None
        self._most = kills
        self._rng = random.Random(900139)

    async def on_reply(self, method: str) -> None:
        if method != "CloseStep" or self.kills == self._most:
            return
        fate = self._rng.choice(["passed", "passed", "kept back", "killed", "killed"])
        if fate == "killed" and self.agent is not None:
            self.kills += 1
            self.agent.kill()
        if fate != "passed":
            self.kept_back += fate == "kept back"
            await asyncio.Event().wait()  # until the caller gives up


async def live(folder: Path, address: str, steps: int, killer: Killer | None = None) -> int:
    """One life of the agent, and how it ended."""
    agent = LearningAgent(folder, steps, settings(folder, address), {})
    if killer is not None:
        killer.agent = agent
    async with asyncio.timeout(LIMIT_S):
        _, errors = await agent.communicate()
    assert agent.returncode is not None
    assert agent.returncode in (0, -9), errors.decode()
    return agent.returncode


def committed(folder: Path) -> tuple[list[tuple[StepFinished, int]], int]:
    """The committed steps with their numbers at the coordinator, and how many reports wait."""
    with StateFolder(folder / "state") as state:
        numbers = [int(number) for (number,) in state.rows("SELECT task_step FROM steps ORDER BY step")]
        return list(zip(state.steps(), numbers, strict=True)), len(state.waiting_reports())


def reported(coordinator: CoordinatorProcess) -> list[dict[str, Any]]:
    rows = ledger_rows(coordinator.state, "SELECT * FROM step WHERE closed ORDER BY step")
    return [row | {name: float.fromhex(row[name]) for name in ("dual", "dual_after", "assist_rate")} for row in rows]


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.long)])
async def test_committed_steps_equal_reported_steps_wherever_the_agent_is_killed(
    tmp_path: Path, kills: int, upstream: Upstream
) -> None:
    killer = Killer(kills)
    upstream.reply = wrong
    async with coordinator_process(tmp_path, settings_for(upstream)) as coordinator:
        async with relay(tmp_path, coordinator.address, killer.on_reply) as address:
            while killer.kills < kills:
                assert await live(tmp_path, address, MANY_STEPS, killer) == -9
            done = len(committed(tmp_path)[0])
            assert await live(tmp_path, address, done + LAST_STEPS) == 0
        await coordinator.stop()
        steps, waiting = committed(tmp_path)
        closed = reported(coordinator)
        await verify(coordinator)
    print(f"{kills} kills, {killer.kept_back} replies kept back, {len(steps)} steps committed, {len(closed)} reported")
    assert waiting == 0
    assert killer.kept_back > 0
    assert [row["step"] for row in closed] == list(range(len(steps)))
    assert [event.control.assist_rate for event, _ in steps] == [row["assist_rate"] for row in closed]
    for (event, number), row in zip(steps, closed, strict=True):
        if not event.control.offline:
            assert (number, event.control.dual_before, event.control.dual_after) == (row["step"], row["dual"], row["dual_after"])
    assert steps[-1][0].control.dual_after == closed[-1]["dual_after"]
