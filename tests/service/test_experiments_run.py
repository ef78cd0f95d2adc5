"""A real cell of an experiment is killed, stopped and resumed, and gives the result of an undisturbed run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

pytestmark = pytest.mark.long  # a whole cell twice, in processes of its own
ROOT = Path(__file__).resolve().parents[2]
_STARTS_S = 120.0
_SPEC = {
    "name": "tiny",
    "about": "Four steps.",
    "models": ["nano-edge"],
    "seeds": [0],
    "routers": ["da-grpo"],
    "settings": {"learning.prompts_per_step": 2, "learning.group_size": 4, "learning.max_tokens": 128},
    "phases": {"arith-facts": [{"source": "arith", "steps": 2}, {"source": "facts", "steps": 2}]},
    "evaluate": {"sources": ["practice:arith"], "items": 4, "router_items": 40},
    "bare": False,
}


@asynccontextmanager
async def _started(folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """`run` of the tiny experiment with its own work folder."""
    folder.mkdir(exist_ok=True)
    spec = folder / "tiny.yaml"
    spec.write_text(yaml.safe_dump(_SPEC), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tools.experiments", "run", str(spec), "--work", str(folder / "work"), "--results", str(folder / "results"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _output_of(process: asyncio.subprocess.Process) -> str:
    output, _ = await asyncio.wait_for(process.communicate(), _STARTS_S)
    return output.decode()


async def _steps_reached(folder: Path, steps: int) -> None:
    """Wait until the cell has finished `steps` steps."""
    async with asyncio.timeout(_STARTS_S):
        while True:
            events = [file.read_text(encoding="utf-8") for file in folder.glob("work/*/events.jsonl")]
            if sum(text.count('"step_finished"') for text in events) >= steps:
                return
            await asyncio.sleep(0.05)


def _result(folder: Path) -> dict[str, Any]:
    (file,) = (folder / "results").glob("*.json")
    body: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return body


async def _killed_in_the_middle(folder: Path) -> None:
    """The cell's process is killed; the runner reports it and leaves no process behind."""
    async with _started(folder) as runner:
        await _steps_reached(folder, 1)
        cell = next(child for child in psutil.Process(runner.pid).children() if "cell" in child.cmdline())
        below = cell.children(recursive=True)
        cell.send_signal(signal.SIGKILL)
        output = await _output_of(runner)
        assert runner.returncode == 1, output
        assert "failed (-9)" in output
    await asyncio.to_thread(psutil.wait_procs, below, timeout=30)
    assert not any(process.is_running() for process in below)


async def _stopped_in_the_middle(folder: Path) -> None:
    """The runner receives a signal; the cell ends at a safe point and counts as stopped."""
    async with _started(folder) as runner:
        await _steps_reached(folder, 2)
        runner.send_signal(signal.SIGTERM)
        output = await _output_of(runner)
        assert runner.returncode == 130, output
        assert "the same command goes on from here" in output
        assert ": stopped" in output
    assert not list((folder / "results").glob("*"))


async def _finished(folder: Path) -> dict[str, Any]:
    async with _started(folder) as runner:
        output = await _output_of(runner)
        assert runner.returncode == 0, output
    return _result(folder)


async def _disturbed(folder: Path) -> dict[str, Any]:
    await _killed_in_the_middle(folder)
    await _stopped_in_the_middle(folder)
    return await _finished(folder)


async def test_killed_and_stopped_cell_gives_the_result_of_an_undisturbed_one(tmp_path: Path) -> None:
    smooth, rough = await asyncio.gather(_finished(tmp_path / "smooth"), _disturbed(tmp_path / "rough"))
    assert smooth["key"] == rough["key"]
    assert smooth["series"] == rough["series"]
    assert smooth["held_out"] == rough["held_out"]
    assert [len(values) for values in smooth["series"].values()] == [4] * len(smooth["series"])
    assert [(scored["step"], scored["phase"], len(scored["asked"]), len(scored["router"])) for scored in smooth["held_out"]] == [
        (2, 1, 4, 4),
        (4, 2, 4, 4),
    ]
    assert smooth["cost"]["processes"] == 1
    assert rough["cost"]["processes"] == 3
    training = smooth["cost"]["training"]
    assert (training["prompts"], training["responses"]) == (8, 32)
    assert training["billed_calls"] <= training["help_units"]
    assert smooth["cost"]["peak_coordinator_mib"] > 0 or sys.platform != "linux"
    assert str(tmp_path) not in json.dumps(rough)

    async with _started(tmp_path / "rough") as again:
        assert "1 cell, 1 done; to do: 0 cells" in await _output_of(again)
        assert again.returncode == 0
