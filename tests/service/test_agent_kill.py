"""kill -9 with real processes (agent, embedded coordinator, ledger, bundled models): nothing is lost and nothing is paid twice."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from coordinator.ledger.verify import verify_file
from edge.core.failpoint import VARIABLE
from edge.state.folder import StateFolder
from tests.worlds.warm_processes import LearningAgent

STEPS = 2
LIMIT_S = 300.0
COUNTS = {
    "charged_calls": "SELECT coalesce(sum(charged_calls), 0) FROM call",
    "charged_uusd": "SELECT coalesce(sum(charged_uusd), 0) FROM call",
    "attempts": "SELECT count(*) FROM attempt",
    "steps": "SELECT count(*) FROM step WHERE closed",
}


def settings(state: Path) -> list[str]:
    return [
        f"state_folder={state}",
        "learning.prompts_per_step=2",
        "learning.group_size=4",
        "learning.max_tokens=64",
        "learning.torch_threads=1",
        "engine.threads=1",
        "engine.max_rows=16",
        "coordinator.max_output_tokens=128",
        "learning.seed=11",
    ]


@asynccontextmanager
async def agent_process(state: Path, failpoint: str = "") -> AsyncIterator[LearningAgent]:
    """A learning agent; killed, with its coordinator, when the block ends and it has not ended by itself."""
    state.parent.mkdir(exist_ok=True)
    process = LearningAgent(state.parent, STEPS, settings(state), {VARIABLE: failpoint})
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        await no_coordinator_left(state)


async def no_coordinator_left(state: Path) -> None:
    """An orphaned coordinator detects the end of its parent and stops."""
    async with asyncio.timeout(LIMIT_S):
        while any(str(state) in " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])):
            await asyncio.sleep(0.1)


async def run_to_the_end(state: Path) -> list[dict[str, Any]]:
    async with agent_process(state) as process:
        async with asyncio.timeout(LIMIT_S):
            _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
    return committed(state)


def committed(state: Path) -> list[dict[str, Any]]:
    """The steps in the state folder, without times."""
    with StateFolder(state) as folder:
        steps = [step.to_json() for step in folder.steps()]
    return [
        {key: value for key, value in step.items() if key not in ("seconds", "seconds_by_part", "tokens_per_s", "at")}
        for step in steps
    ]


def ledger(state: Path) -> dict[str, int]:
    """Verify the ledger, then count its calls and attempts in the file."""
    file = state / "coordinator" / "ledger.sqlite3"
    report = verify_file(file)
    assert report.ok, report.differences
    database = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        one = {name: database.execute(query).fetchone()[0] for name, query in COUNTS.items()}
    finally:
        database.close()
    return one


async def test_agent_killed_anywhere_in_a_step_resumes_without_lost_or_double_paid_calls(tmp_path: Path) -> None:
    """One process per kill point; the last one finishes with the result of an agent without accidents."""
    calm, state = tmp_path / "calm" / "state", tmp_path / "killed" / "state"
    for place in ("collected=kill", "checkpointed=kill", "updated=kill", "closed=kill"):
        async with agent_process(state, place) as process:
            async with asyncio.timeout(LIMIT_S):
                _, errors = await process.communicate()
            assert process.returncode == -signal.SIGKILL, errors.decode()
    steps, expected = await run_to_the_end(state), await run_to_the_end(calm)
    assert steps == expected and len(expected) == STEPS
    counts = ledger(state)
    assert counts == ledger(calm)
    assert counts["charged_calls"] == expected[-1]["total_cloud_calls"] > 0
    assert (counts["charged_uusd"], counts["steps"]) == (expected[-1]["total_spend_uusd"], STEPS)


async def test_coordinator_killed_during_a_cloud_call_recovers_with_a_consistent_ledger(tmp_path: Path) -> None:
    state, killed = tmp_path / "state", 0
    async with agent_process(state) as process, asyncio.timeout(LIMIT_S):
        while killed < 2 and process.returncode is None:
            await asyncio.sleep(0.005)
            killed += kill_coordinator_with_an_open_call(process.pid, state)
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
    assert killed == 2
    events = [json.loads(line) for line in output.splitlines()]
    assert any("embedded coordinator ended (SIGKILL)" in event.get("text", "") for event in events)
    steps = committed(state)
    assert len(steps) == STEPS
    counts = ledger(state)
    assert counts["steps"] == STEPS
    assert counts["attempts"] >= counts["charged_calls"] >= steps[-1]["total_cloud_calls"]


def kill_coordinator_with_an_open_call(agent: int, state: Path) -> int:
    """Kill the child of the agent if its ledger holds a dispatched attempt right now; how many were killed."""
    path = state / "coordinator" / "ledger.sqlite3"
    if not path.exists():
        return 0
    try:
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=0.05)
        try:
            open_attempts = database.execute("SELECT count(*) FROM attempt WHERE state = 'dispatched'").fetchone()[0]
        finally:
            database.close()
    except sqlite3.Error:
        return 0
    if open_attempts == 0:
        return 0
    children = [child for child in psutil.Process(agent).children() if is_coordinator(child)]
    for child in children:
        child.kill()
    return len(children)


def is_coordinator(process: psutil.Process) -> bool:
    """False for one that was killed a moment ago and is not yet reaped."""
    try:
        return "coordinator" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
