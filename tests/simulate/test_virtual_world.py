"""The virtual world: the seeded loop with its dead hosts, a disk that forgets, a network that loses."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from coordinator.ledger.accounts import Reserved
from coordinator.ledger.stores.buffered import CommitBatch
from coordinator.ledger.tables import CALL
from edge.core.errors import CoordinatorUnavailable
from tests.worlds.fleet import in_virtual_time
from tests.worlds.ledger_requests import NOW, reserve_request, settlement
from tools.simulate.virtual.disk import Disk, DiskError, DiskStore
from tools.simulate.virtual.loop import Deadlock, Host, SeededLoop
from tools.simulate.virtual.network import HELD_S, LinkFaults, Network, Traffic


def test_the_seed_alone_chooses_the_order_of_what_is_ready() -> None:
    def order(seed: int) -> list[int]:
        seen: list[int] = []

        async def note(number: int) -> None:
            await asyncio.sleep(0)
            seen.append(number)

        async def main(loop: SeededLoop) -> None:
            await asyncio.gather(*(note(number) for number in range(12)))

        in_virtual_time(main, seed=seed)
        return seen

    assert order(3) == order(3)
    assert len({tuple(order(seed)) for seed in range(10)}) > 5
    assert sorted(order(1)) == list(range(12))


async def _waits_for_ever(loop: SeededLoop) -> None:
    async def never_woken(event: asyncio.Event) -> None:
        await event.wait()

    await asyncio.create_task(never_woken(asyncio.Event()), name="the one who waits")


async def _goes_on(loop: SeededLoop) -> None:
    while True:
        await asyncio.sleep(1.0)


async def _runs_in_circles(loop: SeededLoop) -> None:
    while True:
        await asyncio.sleep(0.0)


@pytest.mark.parametrize(
    ("main", "says"),
    [
        (_waits_for_ever, r"the one who waits waits in Event\.wait"),
        (_goes_on, "not done after 50 virtual seconds"),
        (_runs_in_circles, "1000 steps at 0 virtual seconds: time stands still"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_an_endless_world_is_stopped_with_who_waits_for_what(
    main: Callable[[SeededLoop], Coroutine[Any, Any, None]], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.simulate.virtual.loop.MOST_STEPS_AT_ONCE", 1000)
    with pytest.raises(Deadlock, match=says):
        in_virtual_time(main, limit_s=50.0)


def test_threads_and_executors_are_refused() -> None:
    async def main(loop: SeededLoop) -> None:
        with pytest.raises(RuntimeError, match="no threads"):
            await asyncio.to_thread(print)
        with pytest.raises(RuntimeError, match="no threads"):
            loop.call_soon_threadsafe(print)

    in_virtual_time(main)


def test_nothing_of_a_dead_host_nor_what_it_started_is_run_and_the_living_go_on() -> None:
    seen: list[tuple[str, object]] = []

    async def beat(name: str, loop: SeededLoop) -> None:
        try:
            while True:
                await asyncio.sleep(1.0)
                seen.append((name, loop.time()))
        finally:
            seen.append((name, "tidied up"))

    async def parent(loop: SeededLoop) -> None:
        await asyncio.create_task(beat("doomed", loop))

    async def main(loop: SeededLoop) -> list[tuple[str, object]]:
        doomed, other = Host("doomed", loop), Host("other", loop)
        doomed.spawn(parent(loop), "parent")
        other.spawn(beat("other", loop), "beat")
        await asyncio.sleep(2.5)
        doomed.die()
        await asyncio.sleep(2.0)
        return [*seen]

    seen = in_virtual_time(main)
    assert [entry for entry in seen if entry[0] == "doomed"] == [("doomed", 1.0), ("doomed", 2.0)]
    assert ("other", 4.0) in seen


def test_a_crash_takes_back_what_was_not_synced_and_only_that() -> None:
    async def main(loop: SeededLoop) -> Disk:
        disk = Disk(loop, random.Random(0))
        host = Host("coordinator", loop)
        opening = host.spawn(DiskStore.open(disk, NOW), "open")
        await asyncio.wait([opening])
        store = opening.result()
        await asyncio.wait([host.spawn(store.reserve(reserve_request("kept")), "kept")])
        host.spawn(store.reserve(reserve_request("lost")), "lost")
        while disk._syncing is None:
            await asyncio.sleep(0)
        disk._syncing = None  # the batch was handed over and its sync has not begun
        host.die()
        disk.crash()
        return disk

    disk = in_virtual_time(main)
    assert list(disk.tables.rows[CALL]) == [("d1", "kept")]
    assert len(disk.durable_at) == len(disk.tables.journal)


def test_a_crash_in_the_middle_of_a_sync_keeps_all_or_nothing() -> None:
    kept: Counter[int] = Counter()

    async def main(loop: SeededLoop, seed: int) -> None:
        disk = Disk(loop, random.Random(seed))
        disk.tables.journal.append("first")  # type: ignore[arg-type]

        async def hand_over() -> None:
            disk.sync(CommitBatch({}, ["second", "third"], set()), lambda error: None)  # type: ignore[list-item]

        host = Host("coordinator", loop)
        host.spawn(hand_over(), "write")
        await asyncio.sleep(0.0001)
        host.die()
        disk.crash()
        kept[len(disk.tables.journal)] += 1

    for seed in range(40):
        in_virtual_time(partial(main, seed=seed), seed=seed)
    assert set(kept) == {1, 3}


def test_a_full_disk_changes_nothing_and_an_unsure_one_changes_all() -> None:
    async def main(loop: SeededLoop) -> None:
        disk = Disk(loop, random.Random(0))
        store = await DiskStore.open(disk, NOW)
        for condition, stays in (("full", False), ("unsure", True)):
            disk.condition = condition
            with pytest.raises(CoordinatorUnavailable, match="cannot be written") as caught:
                await store.reserve(reserve_request(condition))
            assert caught.value.reason == "LEDGER_UNAVAILABLE"
            assert (("d1", condition) in disk.tables.rows[CALL]) is stays
        disk.condition = "full"
        with pytest.raises(DiskError):
            await DiskStore.open(disk, NOW)
        disk.condition = "ok"
        assert isinstance(await store.reserve(reserve_request("after")), Reserved)
        assert (await store.settle(settlement("after"))).applied
        await store.aclose()

    in_virtual_time(main)


def test_messages_follow_the_faults_of_their_link() -> None:
    arrived: list[int] = []

    async def main(loop: SeededLoop) -> Traffic:
        network = Network(loop, random.Random(0))
        for number in range(200):
            network.carry(LinkFaults(drop=0.2, duplicate=0.2, late=0.2), lambda number=number: arrived.append(number))
        network.carry(LinkFaults(cut=True), lambda: arrived.append(-1))
        await asyncio.sleep(10.0)
        return network.traffic

    traffic = in_virtual_time(main)
    assert min(traffic.dropped, traffic.duplicated, traffic.late) > 20
    assert len(arrived) == traffic.sent - traffic.dropped + traffic.duplicated
    assert arrived != sorted(arrived)
    assert -1 not in arrived


def test_a_message_that_is_held_comes_right_after_the_next_one_of_its_direction_or_after_a_while() -> None:
    held, plain = LinkFaults(reorder=1.0), LinkFaults()
    held.lanes = plain.lanes  # the same link
    arrived: list[tuple[str, bool]] = []

    async def main(loop: SeededLoop) -> Traffic:
        network = Network(loop, random.Random(0))

        def send(what: str, faults: LinkFaults, *, up: bool = False) -> None:
            network.carry(faults, lambda: arrived.append((what, loop.time() >= HELD_S)), up=up)

        send("held", held)
        send("the other way", plain, up=True)
        await asyncio.sleep(0.1)
        assert arrived == [("the other way", False)]
        send("next", plain)
        send("alone", held)
        await asyncio.sleep(HELD_S + 0.1)
        return network.traffic

    traffic = in_virtual_time(main)
    assert arrived == [("the other way", False), ("next", False), ("held", False), ("alone", True)]
    assert (traffic.held, traffic.overtaken) == (2, 1)


def test_a_dead_host_sends_nothing() -> None:
    arrived: list[str] = []

    async def speak(network: Network, host: Host) -> None:
        network.carry(LinkFaults(), lambda: arrived.append("alive"))
        host.die()
        network.carry(LinkFaults(), lambda: arrived.append("dead"))

    async def main(loop: SeededLoop) -> None:
        host = Host("host", loop)
        host.spawn(speak(Network(loop, random.Random(0)), host), "speak")
        await asyncio.sleep(1.0)

    in_virtual_time(main)
    assert arrived == ["alive"]
