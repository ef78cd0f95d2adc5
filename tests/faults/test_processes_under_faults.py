"""`edge-coordinator serve` under load as a real process: killed at every failpoint and at random, a full disk, a locked database, a cut
network, an upstream with wrong usage. After healing every call is terminal, the ledger verifies, and the independent checker finds
nothing.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from coordinator.failpoints import NAMES
from tests.faults.rig import Rig, locked, rig
from tests.until import until
from tests.worlds.loopback import proxied

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals, sockets and limits of POSIX")
LIES = ("break", "garbage", "error", "reject", "busy", "no_usage", "hang")
MORE_LIES = (*LIES, "overstate", "understate")
# Before T1, after T1 and before dispatch, before T2, after T2 and before the reply, inside of CloseStep.
EVERY_RUN = ("before_reserve", "after_reserve", "answered", "settled", "in_close_step")


async def _outage_is_seen(made: Rig, since: int) -> None:
    """Wait until some device received the error that the ledger cannot be written."""
    await until(lambda: any(event.outcome == "LEDGER_UNAVAILABLE" for event in made.log[since:]))


async def _work_is_done(made: Rig, calls: int) -> None:
    """Wait for `calls` more answers."""
    wanted = _answers(made) + calls
    await until(lambda: _answers(made) >= wanted)


def _answers(made: Rig) -> int:
    return sum(event.outcome == "completed" for event in made.log)


async def _kills_at(folder: Path, names: Sequence[str], rounds: int = 1) -> None:
    async with rig(folder) as made:
        made.load()
        for number, name in enumerate(names * rounds):
            await made.dies_at(f"{name}=kill@{1 + number % 3}")
        made.upstream.on_request = lambda number: made.process.process.kill() if number % 7 == 0 else None
        await made.start()
        await made.is_killed("after dispatch")
        made.upstream.on_request = lambda _: None
        await made.start()
        verdict = await made.settle_down()
    assert verdict.ok, verdict.violations[:10]
    assert made.kills == len(names) * rounds + 1


async def test_kill_at_failpoints_and_after_dispatch_loses_nothing(tmp_path) -> None:
    await _kills_at(tmp_path, EVERY_RUN)


@pytest.mark.long
async def test_kill_at_every_failpoint_five_times_loses_nothing(tmp_path) -> None:
    await _kills_at(tmp_path, NAMES, rounds=5)


async def test_faulty_upstream_full_disk_and_locked_database_cause_no_wrong_charge(tmp_path) -> None:
    async with rig(tmp_path, seed=2) as made:
        made.upstream.mood = MORE_LIES
        await made.start()
        made.load()
        await _work_is_done(made, 20)
        pid, since = made.process.process.pid, len(made.log)
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(
            pid, resource.RLIMIT_FSIZE, (4096, before[1])
        )  # every write after the first page fails, as on a full disk
        await _outage_is_seen(made, since)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        made.injected["full disk"] += 1
        await _work_is_done(made, 10)
        since = len(made.log)
        with locked(made.process.state / "ledger.sqlite3"):
            await _outage_is_seen(made, since)
        made.injected["locked database"] += 1
        async with asyncio.timeout(60.0):
            while not set(MORE_LIES) <= set(made.upstream.acts):
                await _work_is_done(made, 1)
        verdict = await made.settle_down()
    assert verdict.ok, verdict.violations[:10]


async def test_stalled_and_cut_partitions_lose_no_reply_and_charge_nothing_twice(tmp_path) -> None:
    async with rig(tmp_path, seed=3) as made, proxied(Path(made.address.removeprefix("unix:"))) as proxy:
        made.address = proxy.address
        made.upstream.mood = LIES
        await made.start()
        made.load()
        for _ in range(2):
            await _work_is_done(made, 5)
            proxy.passing.clear()
            await asyncio.sleep(0.5)
            proxy.heal()
            made.injected["partition that stalls"] += 1
            await _work_is_done(made, 5)
            proxy.cut()
            await asyncio.sleep(0.3)
            proxy.heal()
            made.injected["partition that cuts"] += 1
        verdict = await made.settle_down()
    assert verdict.ok, verdict.violations[:10]


async def _random_kills(folder: Path, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    async with rig(folder, seed, devices=4) as made:
        made.upstream.mood = LIES
        made.load()
        for _ in range(kills):
            await made.start()
            await asyncio.sleep(rng.uniform(0.0, 1.5))
            made.process.process.kill()
            await made.is_killed("at a random time")
        await made.start()
        verdict = await made.settle_down()
    assert verdict.ok, verdict.violations[:10]


async def test_kill_at_random_times_under_load_loses_nothing(tmp_path) -> None:
    await _random_kills(tmp_path, seed=4, kills=2)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 104))
async def test_kill_at_random_times_fifty_times(tmp_path, seed: int) -> None:
    await _random_kills(tmp_path, seed, kills=50)
