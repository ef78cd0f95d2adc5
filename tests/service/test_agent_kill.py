"""kill -9 with real processes (agent, embedded coordinator, ledger, bundled models): nothing is lost and nothing is paid twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from coordinator.ledger.verify import verify_file
from edge.core.failpoint import VARIABLE
from edge.state.folder import StateFolder
from tests.worlds.coordinator_process import ledger_rows
from tests.worlds.warm_processes import LearningAgent

STEPS = 2
LIMIT_S = 300.0
COUNTS = (
    "SELECT coalesce(sum(charged_calls), 0) AS charged_calls, coalesce(sum(charged_uusd), 0) AS charged_uusd,"
    " (SELECT count(*) FROM attempt) AS attempts, (SELECT count(*) FROM step WHERE closed) AS steps FROM call"
)


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
    report = verify_file(state / "coordinator" / "ledger.sqlite3")
    assert report.ok, report.differences
    (counts,) = ledger_rows(state / "coordinator", COUNTS)
    return counts


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
