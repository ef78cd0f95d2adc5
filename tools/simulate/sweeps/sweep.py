"""Plays a sweep's runs and keeps what is finished. Knows folders, how many run at once and what progress is told; knows nothing of how one
run is played or shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tools.simulate.reports.result import FORMAT, SimulationResult
from tools.simulate.sweeps.engines import RunFailed, SweepEngine
from tools.simulate.sweeps.plan import Job


@dataclass(frozen=True, slots=True)
class Finished:
    """A run with its result."""

    job: Job
    result: SimulationResult


@dataclass(frozen=True, slots=True)
class Failed:
    """A run without one; `why` is one line."""

    job: Job
    why: str


def kept(folder: Path, job: Job) -> Finished | None:
    """The result that an earlier sweep left, if it did."""
    try:
        result = SimulationResult.from_json((folder / job.file_name).read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return Finished(job, result) if result.format == FORMAT else None


async def play_all(
    jobs: Sequence[Job], folder: Path, engine: SweepEngine, at_once: int, ended: Callable[[Finished | Failed], None]
) -> list[Finished | Failed]:
    """Play what has no result in the folder yet; `ended` is told of each as it ends.

    Cancelled, it stops what runs and keeps what is done.
    """
    room = asyncio.Semaphore(at_once)
    ends: dict[str, Finished | Failed] = {}

    async def one(job: Job) -> None:
        async with room:
            ends[job.file_name] = await _end_of(job, folder, engine)
        ended(ends[job.file_name])

    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(one(job))
    return [ends[job.file_name] for job in jobs]


async def _end_of(job: Job, folder: Path, engine: SweepEngine) -> Finished | Failed:
    if (found := kept(folder, job)) is not None:
        return found
    try:
        await engine.play(job, folder / job.file_name)
    except RunFailed as error:
        return Failed(job, str(error))
    return kept(folder, job) or Failed(job, "it wrote no result that can be read")
