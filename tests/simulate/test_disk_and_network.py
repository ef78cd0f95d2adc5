"""The models that faults are made of: a disk that forgets, a network that loses, a clock that jumps."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from coordinator.ledger.accounts import Reserved
from coordinator.ledger.stores.buffered import Batch
from coordinator.ledger.tables import CALL
from edge.core.errors import CoordinatorUnavailable
from tests.unit.ledger_requests import NOW, reserve_request, settlement
from tools.simulate.virtual.clock import EPOCH, VirtualClock
from tools.simulate.virtual.disk import Disk, DiskError, DiskStore
from tools.simulate.virtual.loop import Host, SeededLoop
from tools.simulate.virtual.network import HELD_S, LinkFaults, Network


def _run(loop: SeededLoop, main: Coroutine[Any, Any, Any]) -> Any:
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def test_a_crash_takes_back_what_was_not_synced_and_only_that() -> None:
    loop = SeededLoop(0)
    disk = Disk(loop, random.Random(0))

    async def main() -> None:
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

    _run(loop, main())
    assert list(disk.tables.rows[CALL]) == [("d1", "kept")]
    assert len(disk.durable_at) == len(disk.tables.journal)


def test_a_crash_in_the_middle_of_a_sync_keeps_all_or_nothing() -> None:
    kept = Counter()
    for seed in range(40):
        loop = SeededLoop(seed)
        disk = Disk(loop, random.Random(seed))
        disk.tables.journal.append("first")  # type: ignore[arg-type]

        async def main(loop: SeededLoop = loop, disk: Disk = disk) -> None:
            host = Host("coordinator", loop)
            batch = Batch({}, ["second", "third"], set())  # type: ignore[list-item]
            host.spawn(_handed_over(disk, batch), "write")
            await asyncio.sleep(0.0001)
            host.die()
            disk.crash()

        _run(loop, main())
        kept[len(disk.tables.journal)] += 1
    assert set(kept) == {1, 3}


async def _handed_over(disk: Disk, batch: Batch) -> None:
    disk.sync(batch, lambda error: None)


def test_a_full_disk_changes_nothing_and_an_unsure_one_changes_all() -> None:
    loop = SeededLoop(0)
    disk = Disk(loop, random.Random(0))

    async def main() -> None:
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

    _run(loop, main())


def test_messages_are_lost_doubled_late_and_out_of_order_as_their_link_says() -> None:
    loop = SeededLoop(0)
    network = Network(loop, random.Random(0))
    arrived: list[int] = []

    async def main() -> None:
        for number in range(200):
            network.carry(LinkFaults(drop=0.2, duplicate=0.2, late=0.2), lambda number=number: arrived.append(number))
        network.carry(LinkFaults(cut=True), lambda: arrived.append(-1))
        await asyncio.sleep(10.0)

    _run(loop, main())
    traffic = network.traffic
    assert min(traffic.dropped, traffic.duplicated, traffic.late) > 20
    assert len(arrived) == traffic.sent - traffic.dropped + traffic.duplicated
    assert arrived != sorted(arrived)
    assert -1 not in arrived


def test_a_message_that_is_held_comes_right_after_the_next_one_of_its_direction_or_after_a_while() -> None:
    loop = SeededLoop(0)
    network = Network(loop, random.Random(0))
    held, plain = LinkFaults(reorder=1.0), LinkFaults()
    held.lanes = plain.lanes  # the same link
    arrived: list[tuple[str, bool]] = []

    def send(what: str, faults: LinkFaults, *, up: bool = False) -> None:
        network.carry(faults, lambda: arrived.append((what, loop.time() >= HELD_S)), up=up)

    async def main() -> None:
        send("held", held)
        send("the other way", plain, up=True)
        await asyncio.sleep(0.1)
        assert arrived == [("the other way", False)]
        send("next", plain)
        send("alone", held)
        await asyncio.sleep(HELD_S + 0.1)

    _run(loop, main())
    assert arrived == [("the other way", False), ("next", False), ("held", False), ("alone", True)]
    assert (network.traffic.held, network.traffic.overtaken) == (2, 1)


def test_a_dead_host_sends_nothing() -> None:
    loop = SeededLoop(0)
    network = Network(loop, random.Random(0))
    arrived: list[str] = []

    async def speak(host: Host) -> None:
        network.carry(LinkFaults(), lambda: arrived.append("alive"))
        host.die()
        network.carry(LinkFaults(), lambda: arrived.append("dead"))

    async def main() -> None:
        host = Host("host", loop)
        host.spawn(speak(host), "speak")
        await asyncio.sleep(1.0)

    _run(loop, main())
    assert arrived == ["alive"]


def test_a_clock_jumps_in_its_calendar_and_never_in_its_durations() -> None:
    loop = SeededLoop(0)
    clock = VirtualClock(loop)

    async def main() -> None:
        await asyncio.sleep(5.0)
        clock.jump(-60.0)
        assert (clock.now(), clock.monotonic()) == (EPOCH - 55.0, 5.0)

    _run(loop, main())
