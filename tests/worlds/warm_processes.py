"""Agents as real processes with torch and peft already loaded: forked from one process that only imported them.

For tests in which the process must be real (killed, started again) and what it imports at its start is not the point.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LOADED = ["edge.app.agents", "edge.training.torch_learner", "edge.inference.llamacpp"]


class LearningAgent:
    """An agent that learns up to `steps` steps. Its events go to `events`, its errors to `errors`: files in `folder`."""

    def __init__(self, folder: Path, steps: int, settings: Sequence[str], environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(LOADED)
        self._events, self._errors = folder / "events", folder / "errors"
        files = (str(self._events), str(self._errors))
        self._process = context.Process(target=_run, args=(steps, list(settings), dict(environment), files), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """As of a subprocess: None while it runs, negative for the signal that killed it."""
        return self._process.exitcode

    def kill(self) -> None:
        """As if the power went."""
        os.kill(self.pid, signal.SIGKILL)

    async def communicate(self) -> tuple[bytes, bytes]:
        """Wait for its end; its events and its errors."""
        await asyncio.to_thread(self._process.join)
        return self._events.read_bytes(), self._errors.read_bytes()


def _run(steps: int, settings: list[str], environment: dict[str, str], files: tuple[str, str]) -> None:
    for number, path in enumerate(files, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.environ.update(environment)
    asyncio.run(_learn(steps, settings))


async def _learn(steps: int, settings: list[str]) -> None:
    from edge.app.agents import build_agent
    from edge.config.agent import resolve_agent_config
    from edge.core.events import JsonLinesSink

    config = resolve_agent_config(sets=settings).config
    async with build_agent(config, JsonLinesSink(sys.stdout)) as agent:
        await agent.learn(steps - agent.status().steps_done)
