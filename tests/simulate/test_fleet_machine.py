"""A simulated device's time and energy: rows share it, people come first, heat slows it, a battery empties."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.worlds.fleet import in_virtual_time
from tools.simulate.fleet.hardware import SimulatedSpeed
from tools.simulate.fleet.machine import Machine
from tools.simulate.virtual.loop import SeededLoop

SPEED = SimulatedSpeed("d", "m", 1000.0, ((1, 10.0), (4, 20.0)), 100.0, 1.0, 11.0)


def worked(work: Callable[[Machine], Awaitable[None]], speed: SimulatedSpeed = SPEED) -> tuple[float, Machine]:
    async def main(loop: SeededLoop) -> tuple[float, Machine]:
        machine = Machine(loop, speed)
        await work(machine)
        machine.settle()
        return loop.time(), machine

    return in_virtual_time(main)


def test_rows_that_are_decoded_together_share_the_rate_of_so_many() -> None:
    async def work(machine: Machine) -> None:
        await asyncio.gather(machine.decode(40, 2), machine.decode(40, 2))

    assert worked(work)[0] == pytest.approx(80 / 20.0)


def test_learning_stands_still_while_somebody_is_served() -> None:
    async def work(machine: Machine) -> None:
        async def ask() -> None:
            await asyncio.sleep(1.0)
            with machine.serving():
                await machine.serve(5.0)

        await asyncio.gather(machine.decode(40, 4), machine.compute(1.0), ask())

    assert worked(work)[0] == pytest.approx(5.0 + 1.0 + 2.0)


def test_unbroken_work_slows_down_after_a_while_and_a_minute_of_rest_makes_up_for_it() -> None:
    hot = replace(SPEED, throttle_after_s=10.0, throttle_share=0.5)
    marks: list[float] = []

    async def work(machine: Machine) -> None:
        loop = asyncio.get_running_loop()
        await machine.compute(12.0)
        marks.append(loop.time())
        await asyncio.sleep(61.0)
        with machine.serving():
            await machine.serve(11.0)
        marks.append(loop.time())

    worked(work, hot)
    assert marks == pytest.approx([14.0, 14.0 + 61.0 + 12.0])


def test_a_battery_empties_at_its_time_and_is_full_when_it_was_charged() -> None:
    seen: list[bool] = []

    async def work(machine: Machine) -> None:
        await machine.compute(3600.0)
        seen.append(machine.empty)
        await asyncio.sleep(2 * 3600.0)
        seen.append(machine.empty)
        machine.recharge()
        seen.append(machine.empty)

    _, machine = worked(work, replace(SPEED, battery_wh=12.0))
    assert seen == [False, True, False]
    assert machine.energy_wh == pytest.approx(12.0)
    assert machine.empty_for_s == pytest.approx(3600.0)
