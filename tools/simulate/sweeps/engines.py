"""Plays a sweep's runs, in processes of this machine or on Ray, and keeps what is finished.

As a program it is one such process: it reads {"player": "module:function", "scenario": {...}, "seed": 1, "out": path} from stdin and
writes the result to its place in one move, so that a process which was stopped leaves none.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from edge.core.errors import EdgeError
from edge.core.formatting import exit_name
from edge.core.install import install_extra
from tools.places import put
from tools.simulate.reports.result import FORMAT, SimulationResult
from tools.simulate.sweeps.plan import SweepRun

ENGINES = ("processes", "ray")
_ROOT = Path(__file__).resolve().parents[3]
_STOP_S = 5.0


RunScenario = Callable[[Mapping[str, Any], int], SimulationResult]


class RunFailed(EdgeError):
    """A run that gave no result; the message says why, in one line."""


class SweepEngine(Protocol):
    """Plays runs. `at_once`: how many it is given at the same time unless the command says otherwise."""

    at_once: int

    async def play(self, run: SweepRun, out: Path) -> None:
        """Play one run and write its result to `out`. Raises RunFailed; stops the run when it is cancelled."""
        ...


class ProcessEngine:
    """Each run in a process of its own on this machine."""

    def __init__(self, player: str) -> None:
        self._player = player
        self.at_once = os.cpu_count() or 1

    async def play(self, run: SweepRun, out: Path) -> None:
        """One process from its beginning to its end."""
        asked = json.dumps({"player": self._player, "scenario": run.scenario, "seed": run.seed, "out": str(out)}, default=str)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tools.simulate.sweeps.engines"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))},
        )
        try:
            _, said = await process.communicate(asked.encode())
        finally:
            await _stopped(process)
        if process.returncode:
            lines = said.decode(errors="replace").strip().splitlines()
            raise RunFailed(lines[-1] if lines else f"its process ended with {exit_name(process.returncode)} and no word")


async def _stopped(process: asyncio.subprocess.Process) -> None:
    """End a process that still runs: first it is asked to."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()


class RayEngine:
    """Each run as a task of a Ray cluster, whose machines have this project installed."""

    at_once = 1_000_000

    def __init__(self, player: str, ray: Any) -> None:
        self._player, self._ray = player, ray
        self._remote = ray.remote(num_cpus=1, max_calls=1, max_retries=1)(played)  # max_calls: a process of its own for each run

    async def play(self, run: SweepRun, out: Path) -> None:
        """One task; its result travels back as JSON."""
        task = self._remote.remote(self._player, dict(run.scenario), run.seed)
        try:
            put(await task, out)
        except asyncio.CancelledError:
            self._ray.cancel(task, force=True)
            raise
        except Exception as error:  # the run's own failure, or one of Ray's many
            raise RunFailed(str(getattr(error, "cause", None) or error).strip().splitlines()[-1]) from error


@asynccontextmanager
async def opened(engine: str, player: str) -> AsyncIterator[SweepEngine]:
    """The engine of this name, for as long as it is needed. Raises EdgeError where Ray is not installed or cannot be reached."""
    if engine == "processes":
        yield ProcessEngine(player)
        return
    ray = _ray()
    try:
        ray.init(log_to_driver=False, logging_level="error", runtime_env={"env_vars": {"PYTHONPATH": str(_ROOT)}})
    except (ConnectionError, RuntimeError, OSError) as error:
        raise EdgeError(f"Ray cannot be started or reached: {str(error).splitlines()[0]}", hint="see RAY_ADDRESS") from error
    try:
        yield RayEngine(player, ray)
    finally:
        ray.shutdown()


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise EdgeError("--engine ray needs Ray, which is not installed", hint=install_extra("ray")) from None


@dataclass(frozen=True, slots=True)
class Finished:
    """A run with its result."""

    run: SweepRun
    result: SimulationResult


@dataclass(frozen=True, slots=True)
class Failed:
    """A run without one; `why` is one line."""

    run: SweepRun
    why: str


def kept(folder: Path, run: SweepRun) -> Finished | None:
    """The result that an earlier sweep left, if it did."""
    try:
        result = SimulationResult.from_json((folder / run.file_name).read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return Finished(run, result) if result.format == FORMAT else None


async def play_all(
    runs: Sequence[SweepRun], folder: Path, engine: SweepEngine, at_once: int, ended: Callable[[Finished | Failed], None]
) -> list[Finished | Failed]:
    """Play what has no result in the folder yet; `ended` is called with each as it ends.

    Cancelled, it stops what runs and keeps what is done.
    """
    room = asyncio.Semaphore(at_once)
    ends: dict[str, Finished | Failed] = {}

    async def one(run: SweepRun) -> None:
        async with room:
            ends[run.file_name] = await _end_of(run, folder, engine)
        ended(ends[run.file_name])

    async with asyncio.TaskGroup() as group:
        for run in runs:
            group.create_task(one(run))
    return [ends[run.file_name] for run in runs]


async def _end_of(run: SweepRun, folder: Path, engine: SweepEngine) -> Finished | Failed:
    if (found := kept(folder, run)) is not None:
        return found
    try:
        await engine.play(run, folder / run.file_name)
    except RunFailed as error:
        return Failed(run, str(error))
    return kept(folder, run) or Failed(run, "it wrote no result that can be read")


def played(player: str, scenario: Mapping[str, Any], seed: int) -> bytes:
    """The JSON of a run's result. Raises what the run raises."""
    module, _, name = player.partition(":")
    play: RunScenario = getattr(importlib.import_module(module), name)
    return play(scenario, seed).to_json()


def main() -> int:
    """Play the run that is described on stdin."""
    asked = json.load(sys.stdin)
    try:
        put(played(asked["player"], asked["scenario"], asked["seed"]), Path(asked["out"]))
    except EdgeError as error:
        print(error.with_hint, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
