"""What the cloud calls of one learning step take: one CompleteBatch stream against plain concurrent Complete calls.

    python -m tools.bench.batching --delay-s 0.005 --prompts 8 16 64 --rounds 15

A coordinator process on a Unix socket and a mock cloud LLM in a process of its own; the two forms take turns. Prints a line of JSON for
each number of prompts, medians of a step's calls in milliseconds with the fastest and the slowest round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from edge.core.types import Message
from edge.rpc.client import CloudCall, StepUnits
from tools.batch_client import BatchingClient
from tools.bench.coordinator import ours

GROUP_SIZE, DEADLINE_S = 8, 30.0
PROMPT = "Solve step by step: " + "a train leaves the station at noon and travels for three hours. " * 6


def step_calls(step: int, prompts: int) -> list[CloudCall]:
    """One call a prompt, none of which the coordinator has seen."""
    return [
        CloudCall(f"{step}-{index}", "math", step, f"{index}:q", 3, (Message("user", f"{PROMPT} ({step} {index})"),), 256)
        for index in range(prompts)
    ]


async def batched(client: BatchingClient, calls: Sequence[CloudCall]) -> None:
    """All on one stream."""

    async def items() -> AsyncIterator[CloudCall]:
        for call in calls:
            yield call

    answered = [reply async for reply in client.complete_batch(items(), DEADLINE_S) if not isinstance(reply.outcome, Exception)]
    assert len(answered) == len(calls)


async def concurrent(client: BatchingClient, calls: Sequence[CloudCall]) -> None:
    """Each a request of its own."""
    await asyncio.gather(*(client.complete(call, DEADLINE_S) for call in calls))


async def measure(client: BatchingClient, prompts: Sequence[int], rounds: int, delay_s: float) -> None:
    """The first round of each is not counted."""
    await client.register("bench", ["math"])
    step, forms = 0, {"batch_ms": batched, "unary_ms": concurrent}
    for count in prompts:
        taken: dict[str, list[float]] = {name: [] for name in forms}
        for number in range(rounds + 1):
            for name in sorted(forms, reverse=bool(number % 2)):
                await client.open_step("math", step, count, GROUP_SIZE, 1.0)
                calls, began = step_calls(step, count), time.perf_counter()
                await forms[name](client, calls)
                taken[name].append(1e3 * (time.perf_counter() - began))
                await client.close_step("math", step, StepUnits(count * GROUP_SIZE, count * 3))
                step += 1
        found = {name: f"{statistics.median(ms[1:]):.1f} ({min(ms[1:]):.1f}-{max(ms[1:]):.1f})" for name, ms in taken.items()}
        print(json.dumps({"delay_ms": 1e3 * delay_s, "prompts": count, "rounds": rounds, **found}), flush=True)


def _started(command: Sequence[str]) -> tuple[subprocess.Popen[str], Any]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


async def run(options: argparse.Namespace) -> None:
    """Start both processes, measure, and stop them."""
    with tempfile.TemporaryDirectory() as name:
        folder, socket = Path(name), f"unix:{name}/c.sock"
        upstream, told = _started([sys.executable, "-m", "tools.bench.coordinator.upstream", str(options.delay_s)])
        settings = ours.settings(folder / "state", told["port"], metrics_port=None)
        ours.write_settings(
            folder / "c.yaml", {**settings, "listen": [socket], "tasks": {"*": {"target_rate_from_device": True}}}
        )
        coordinator, _ = _started(ours.command(folder / "c.yaml"))
        client = BatchingClient(socket, device_id="bench")
        try:
            await measure(client, options.prompts, options.rounds, options.delay_s)
        finally:
            await client.aclose()
            for process in (coordinator, upstream):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-s", type=float, default=0.005, help="what the mock cloud LLM takes for an answer")
    parser.add_argument("--prompts", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--rounds", type=int, default=15)
    asyncio.run(run(parser.parse_args()))
