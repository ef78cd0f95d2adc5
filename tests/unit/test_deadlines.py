"""Many deadlines on one timer."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.deadlines import Deadlines


async def test_deadlines_are_called_in_the_order_of_their_end() -> None:
    loop, called = asyncio.get_running_loop(), list[str]()
    deadlines, now = Deadlines(loop), loop.time()
    deadlines.add(now + 0.06, lambda: called.append("last"))
    taken = deadlines.add(now + 0.01, lambda: called.append("taken out"))
    deadlines.add(now + 0.03, lambda: called.append("first"))
    deadlines.take_out(taken)
    deadlines.take_out(taken)
    await asyncio.sleep(0.12)
    assert called == ["first", "last"]


async def test_callback_can_cancel_another_deadline() -> None:
    loop, called = asyncio.get_running_loop(), list[str]()
    deadlines = Deadlines(loop)
    end = loop.time() + 0.01
    added: list[int] = []
    added.append(deadlines.add(end, lambda: deadlines.take_out(added[1])))
    added.append(deadlines.add(end, lambda: called.append("taken out")))
    await asyncio.sleep(0.05)
    assert called == []


async def test_a_block_ends_in_time_or_raises() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(loop)
    with deadlines.within(loop.time() + 5.0):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError), deadlines.within(loop.time() + 0.01):
        await asyncio.sleep(5.0)
    await asyncio.sleep(0)  # nothing is left to cancel


async def test_external_cancellation_stays_a_cancellation() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(loop)

    async def wait() -> None:
        with deadlines.within(loop.time() + 5.0):
            await asyncio.sleep(5.0)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
