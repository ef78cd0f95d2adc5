"""Seeds, events, registries and the engine worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.core.rng import derive_seed
from edge.core.worker import EngineWorker, Priority

NAMES = st.lists(st.one_of(st.text(max_size=8), st.integers()), max_size=4)


@given(st.integers(), NAMES, NAMES)
def test_streams_differ_by_name_and_repeat_for_the_same_name(root: int, a: list[str | int], b: list[str | int]) -> None:
    assert derive_seed(root, *a) == derive_seed(root, *a)
    if a != b and "\x1f" not in "".join(str(name) for name in a + b):
        assert derive_seed(root, *a) != derive_seed(root, *b)


def test_seeds_are_the_same_on_every_platform() -> None:
    assert derive_seed(7, "rollout", 3) == 8662171316397236066


def _job(log: list[str], name: str, slices: int, gate: threading.Event | None = None) -> Generator[None, None, str]:
    for number in range(slices):
        if gate is not None and number == 0:
            gate.wait(10)
        log.append(f"{name}{number}")
        yield
    return name


async def test_a_served_request_waits_for_at_most_one_slice_of_training() -> None:
    worker, log, gate = EngineWorker(), [], threading.Event()
    try:
        training = asyncio.ensure_future(worker.run(_job(log, "t", 3, gate), Priority.TRAINING))
        await asyncio.sleep(0)
        serving = worker.submit(_job(log, "s", 2), Priority.SERVING)
        gate.set()
        assert await training == "t" and serving.result(10) == "s"
        first_served = log.index("s0")
        assert first_served <= 1 and log[first_served : first_served + 2] == ["s0", "s1"]
    finally:
        worker.close()


async def test_job_failure_reaches_its_caller_and_the_worker_continues() -> None:
    worker = EngineWorker()

    def fail() -> None:
        raise KeyError("broken")

    try:
        with pytest.raises(KeyError, match="broken"):
            await worker.call(fail, Priority.ROLLOUT)
        assert await worker.call(lambda: 4, Priority.ROLLOUT) == 4
    finally:
        worker.close()


async def test_cancelling_closes_the_job_on_the_worker() -> None:
    worker, closed, started = EngineWorker(), threading.Event(), threading.Event()

    def endless() -> Generator[None, None, None]:
        try:
            while True:
                started.set()
                yield
        finally:
            closed.set()

    try:
        task = asyncio.ensure_future(worker.run(endless(), Priority.TRAINING))
        await asyncio.to_thread(started.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(closed.wait, 10)
    finally:
        worker.close()


def test_closing_cancels_queued_jobs_and_refuses_more() -> None:
    worker, gate, log = EngineWorker(), threading.Event(), []
    worker.submit(_job(log, "a", 1, gate), Priority.ROLLOUT)
    queued = worker.submit(_job(log, "b", 1), Priority.TRAINING)
    closing = threading.Thread(target=worker.close)
    closing.start()
    gate.set()
    closing.join(10)
    assert not closing.is_alive()
    assert queued.cancelled() or queued.done()
    with pytest.raises(RuntimeError, match="closed"):
        worker.submit(_job(log, "c", 1), Priority.ROLLOUT)


def test_no_hint_installs_the_project_from_an_index_where_its_name_is_anothers() -> None:
    root = Path(__file__).parents[2]
    named = [
        file for part in ("edge", "coordinator") for file in (root / part).rglob("*.py") if "edge-agent[" in file.read_text()
    ]
    assert named == []
