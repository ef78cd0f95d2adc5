"""The seeded loop: virtual time, chosen order, dead hosts, and what it refuses."""

from __future__ import annotations

import asyncio

import pytest

from tools.simulate.virtual.loop import Deadlock, Host, SeededLoop


def test_hours_pass_at_once_and_time_is_what_the_timers_say() -> None:
    loop = SeededLoop(0)

    async def main() -> float:
        await asyncio.sleep(3000.5)
        return loop.time()

    assert loop.run_until_complete(main()) == 3000.5
    loop.close()


def _order(seed: int) -> list[int]:
    loop, seen = SeededLoop(seed), []

    async def note(number: int) -> None:
        await asyncio.sleep(0)
        seen.append(number)

    async def main() -> None:
        await asyncio.gather(*(note(number) for number in range(12)))

    loop.run_until_complete(main())
    loop.close()
    return seen


def test_the_seed_alone_chooses_the_order_of_what_is_ready() -> None:
    assert _order(3) == _order(3)
    assert len({tuple(_order(seed)) for seed in range(10)}) > 5
    assert sorted(_order(1)) == list(range(12))


def test_a_deadlock_tells_who_waits_for_what() -> None:
    loop = SeededLoop(0)

    async def never_told(event: asyncio.Event) -> None:
        await event.wait()

    async def main() -> None:
        await asyncio.create_task(never_told(asyncio.Event()), name="the one who waits")

    with pytest.raises(Deadlock, match=r"the one who waits waits in Event\.wait"):
        loop.run_until_complete(main())
    loop.close()


def test_a_loop_that_goes_on_for_ever_is_stopped_at_its_limit() -> None:
    loop = SeededLoop(0)

    async def main() -> None:
        while True:
            await asyncio.sleep(1.0)

    with pytest.raises(Deadlock, match="not done after 50 virtual seconds"):
        loop.run_until_complete(main(), 50.0)
    loop.close()


def test_a_world_in_which_time_stands_still_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def circle() -> None:
        while True:
            await asyncio.sleep(0.0)

    monkeypatch.setattr("tools.simulate.virtual.loop.MOST_STEPS_AT_ONCE", 1000)
    loop = SeededLoop(0)
    with pytest.raises(Deadlock, match="1000 steps at 0 virtual seconds: time stands still"):
        loop.run_until_complete(circle())
    loop.close()


def test_threads_and_executors_are_refused() -> None:
    loop = SeededLoop(0)

    async def main() -> None:
        with pytest.raises(RuntimeError, match="no threads"):
            await asyncio.to_thread(print)
        with pytest.raises(RuntimeError, match="no threads"):
            loop.call_soon_threadsafe(print)

    loop.run_until_complete(main())
    loop.close()


def test_nothing_of_a_dead_host_is_run_and_the_living_go_on() -> None:
    loop, seen = SeededLoop(0), []

    async def beat(name: str) -> None:
        try:
            while True:
                await asyncio.sleep(1.0)
                seen.append((name, loop.time()))
        finally:
            seen.append((name, "tidied up"))

    async def main() -> None:
        doomed, other = Host("doomed", loop), Host("other", loop)
        doomed.spawn(beat("doomed"), "beat")
        other.spawn(beat("other"), "beat")
        await asyncio.sleep(2.5)
        doomed.die()
        await asyncio.sleep(2.0)

    loop.run_until_complete(main())
    assert [entry for entry in seen if entry[0] == "doomed"] == [("doomed", 1.0), ("doomed", 2.0)]
    assert ("other", 4.0) in seen
    loop.close()


def test_what_a_host_starts_dies_with_it() -> None:
    loop, seen = SeededLoop(0), []

    async def child() -> None:
        await asyncio.sleep(5.0)
        seen.append("child")

    async def parent() -> None:
        asyncio.create_task(child())  # noqa: RUF006
        await asyncio.sleep(1.0)

    async def main() -> None:
        host = Host("parent", loop)
        host.spawn(parent(), "parent")
        await asyncio.sleep(2.0)
        host.die()
        await asyncio.sleep(10.0)

    loop.run_until_complete(main())
    assert seen == []
    loop.close()
