"""Many items answered concurrently: one reply for each, bounded, closed without leftovers."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.calls.batch import ManyAtOnce


async def counted(numbers, taken):
    for number in numbers:
        taken.append(number)
        yield number


def failed(item):
    return f"failed {item}"


@given(pauses=st.lists(st.integers(0, 3), max_size=30), most=st.integers(1, 5))
def test_every_item_has_one_reply_and_concurrency_is_limited(pauses, most) -> None:
    async def run() -> None:
        under_way, most_seen = set(), 0

        async def answer(item):
            nonlocal most_seen
            under_way.add(item)
            most_seen = max(most_seen, len(under_way))
            for _ in range(pauses[item]):
                await asyncio.sleep(0)
            under_way.remove(item)
            return item

        replies = [reply async for reply in ManyAtOnce(answer, failed, most).replies(counted(range(len(pauses)), []))]
        assert sorted(replies) == list(range(len(pauses))) and most_seen <= most

    asyncio.run(run())


async def test_no_more_items_are_read_while_replies_are_not_taken() -> None:
    taken: list[int] = []

    async def answer(item):
        return item

    async with aclosing(ManyAtOnce(answer, failed, 3).replies(counted(range(100), taken))) as replies:
        await anext(replies)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(taken) <= 3 + 1
        rest = [reply async for reply in replies]
    assert len(rest) == 99


async def test_item_failure_is_raised_after_the_replies_before_it() -> None:
    async def failing():
        yield 1
        raise RuntimeError("cut")

    async def answer(item):
        return item

    replies = ManyAtOnce(answer, failed, 4).replies(failing())
    assert await anext(replies) == 1
    with pytest.raises(RuntimeError):
        await anext(replies)


async def test_leaving_early_cancels_the_answering_and_leaves_no_task() -> None:
    cancelled = []

    async def answer(item):
        try:
            return item if item == 0 else await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(item)
            raise

    before = asyncio.all_tasks()
    async with aclosing(ManyAtOnce(answer, failed, 4).replies(counted(range(4), []))) as replies:
        assert await anext(replies) == 0
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before and sorted(cancelled) == [1, 2, 3]
