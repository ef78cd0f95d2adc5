"""Slots and fairness: devices take turns, and none can fill the queue at the expense of others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.calls.admission import Gate, Turnstile
from edge.core.errors import CoordinatorUnavailable


@asynccontextmanager
async def slot(gate: Gate, max_wait_s: float, device: str) -> AsyncIterator[None]:
    """Hold a slot."""
    await gate.enter(max_wait_s, device)
    try:
        yield
    finally:
        gate.leave()


class Visits:
    """Calls that hold a slot until released, and the order in which they got it."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.order: list[str] = []
        self.go_on = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def queue(self, *devices: str, wait_s: float = 30.0) -> None:
        """Calls that ask for a slot, one after the other."""
        for device in devices:
            self.tasks.append(asyncio.create_task(self._visit(device, wait_s)))
            await asyncio.sleep(0)

    async def _visit(self, device: str, wait_s: float) -> None:
        async with slot(self.gate, wait_s, device):
            self.order.append(device)
            await self.go_on.wait()

    async def let_all_go(self) -> list[BaseException]:
        """Run everything to its end; returns the refusals."""
        self.go_on.set()
        outcomes = await asyncio.gather(*self.tasks, return_exceptions=True)
        return [outcome for outcome in outcomes if isinstance(outcome, BaseException)]


async def test_devices_take_turns_regardless_of_queue_lengths() -> None:
    visits = Visits(Gate("g", 1, 100))
    await visits.queue("first", *["greedy"] * 5, "a", "a", "b")
    assert await visits.let_all_go() == []
    assert visits.order == ["first", "greedy", "a", "b", "greedy", "a", "greedy", "greedy", "greedy"]


async def test_a_lone_device_may_use_the_whole_queue_and_no_more() -> None:
    visits = Visits(Gate("g", 1, 3))
    await visits.queue(*["greedy"] * 6)
    assert visits.gate.waiting == 3
    refusals = await visits.let_all_go()
    assert [(type(refusal), getattr(refusal, "reason", "")) for refusal in refusals] == [
        (CoordinatorUnavailable, "OVERLOADED")
    ] * 2
    assert visits.order == ["greedy"] * 4


async def test_a_full_queue_turns_the_newest_call_of_the_longest_line_away_for_another_device() -> None:
    visits = Visits(Gate("g", 1, 4))
    await visits.queue("running", *["greedy"] * 4, "a", "b", "a")
    refusals = await visits.let_all_go()
    assert Counter(visits.order) == {"running": 1, "greedy": 2, "a": 1, "b": 1}
    assert len(refusals) == 3
    assert all(getattr(refusal, "retry_after_s", None) for refusal in refusals)


async def test_wait_beyond_the_limit_ends_and_leaves_the_queue() -> None:
    gate = Gate("g", 1, 5)
    async with slot(gate, 1.0, "a"):
        with pytest.raises(CoordinatorUnavailable, match="no slot within"):
            async with slot(gate, 0.01, "b"):
                pytest.fail("there is one slot")
        assert gate.waiting == 0


async def test_caller_cancelled_while_receiving_its_slot_passes_it_on() -> None:
    gate = Gate("g", 1, 5)
    async with AsyncExitStack() as held:
        await held.enter_async_context(slot(gate, 1.0, "a"))
        visits = Visits(gate)
        await visits.queue("b")
        await held.aclose()  # b's turn is set but it has not run yet
        visits.tasks[0].cancel()
        await asyncio.gather(*visits.tasks, return_exceptions=True)
    async with slot(gate, 0.5, "c"):
        assert gate.waiting == 0


async def test_cancelled_waiter_does_not_take_the_freed_slot() -> None:
    gate = Gate("g", 1, 4)
    await gate.enter(1.0, "a")
    waiting = [asyncio.create_task(gate.enter(30.0, device)) for device in ("b", "c")]
    await asyncio.sleep(0)
    waiting[0].cancel()
    gate.leave()
    await waiting[1]
    assert waiting[0].cancelled()
    gate.leave()
    await asyncio.wait_for(gate.enter(1.0, "d"), 1.0)
    assert gate.waiting == 0


async def test_cancelled_waiter_makes_room_in_a_full_queue() -> None:
    gate = Gate("g", 1, 2)
    await gate.enter(1.0, "a")
    waiting = [asyncio.create_task(gate.enter(30.0, "b")) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    late = asyncio.create_task(gate.enter(30.0, "c"))
    with pytest.raises(asyncio.CancelledError):
        await waiting[1]
    for task in (waiting[0], late):
        gate.leave()
        await task
    gate.leave()
    assert gate.waiting == 0


@pytest.mark.parametrize("greedy", [2, 3, 9])
def test_many_greedy_callers_leave_a_place_for_a_new_one(greedy: int) -> None:
    turnstile, refused = Turnstile("requests run", 1000), set[int]()
    with ExitStack() as held:
        while len(refused) < greedy:
            for number in set(range(greedy)) - refused:
                try:
                    held.enter_context(turnstile.passage(f"greedy {number}"))
                except CoordinatorUnavailable:
                    refused.add(number)
        assert 1000 - turnstile.inside >= 1000 // (greedy + 1) - 1
        held.enter_context(turnstile.passage("new"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "ask", "leave", "cancel"])), max_size=40))
def test_no_more_than_the_slots_are_ever_held_and_none_is_lost(actions: list[tuple[str, str]]) -> None:
    async def play() -> None:
        gate, inside, most = Gate("g", 2, 4), 0, 0
        releases: list[asyncio.Event] = []

        async def visit(device: str, release: asyncio.Event) -> None:
            nonlocal inside, most
            async with slot(gate, 30.0, device):
                inside += 1
                most = max(most, inside)
                try:
                    await release.wait()
                finally:
                    inside -= 1

        tasks: list[asyncio.Task[None]] = []
        for device, action in actions:
            if action == "ask":
                releases.append(asyncio.Event())
                tasks.append(asyncio.create_task(visit(device, releases[-1])))
            elif action == "leave" and releases:
                releases.pop(0).set()
            elif action == "cancel" and tasks:
                tasks[-1].cancel()
            await asyncio.sleep(0)
            assert gate.waiting <= 4
        for release in releases:
            release.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most <= 2
        async with slot(gate, 0.1, "x"), slot(gate, 0.1, "y"):
            assert gate.waiting == 0

    asyncio.run(play())
