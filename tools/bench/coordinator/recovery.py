"""How long a coordinator takes to serve again after SIGKILL, with a long journal and many open holds.

    python -m tools.bench.coordinator.recovery LEDGER ENTRIES HOLDS

This fills a ledger through its store, as a coordinator would, and kills itself with the holds open. It sends no calls.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.ledger.opening import LEDGER_FILE
from tools.bench.coordinator.audit import audit
from tools.bench.coordinator.services import AMPLE, COST, serving, settings
from tools.bench.processes import REPOSITORY, memory_mib, own, scratch_folder

AT_ONCE = 256
DEVICES = 50
LEASE_S = 90.0


async def fill(ledger: Path, entries: int, holds: int) -> None:
    """Write about `entries` journal entries, the last `holds` of them open holds; never returns."""
    from coordinator.ledger.stores.sqlite import SqliteLedgerStore

    store = await SqliteLedgerStore.open(ledger, time.time())
    calls = max(0, (entries - holds) // 2)
    for first in range(0, calls, AT_ONCE):
        numbers = range(first, min(calls, first + AT_ONCE))
        await asyncio.gather(*(store.reserve(_request(number)) for number in numbers))
        await asyncio.gather(*(store.settle(_settlement(number)) for number in numbers))
    await asyncio.gather(*(store.reserve(_request(number)) for number in range(calls, calls + holds)))
    os.kill(os.getpid(), signal.SIGKILL)


def _device(number: int) -> str:
    return f"bench-{number % DEVICES}"


def _request(number: int) -> Any:
    from coordinator.ledger.accounts import Amount, AmountLimits, BudgetTerms, ReserveRequest, budget_key

    now, device = time.time(), _device(number)
    limits = AmountLimits(AMPLE, AMPLE, AMPLE)
    keys = (budget_key("device_task", device, "bench"), budget_key("device", device), budget_key("fleet"))
    return ReserveRequest(
        device=device,
        key=f"k{number}",
        fingerprint=f"{number:064x}",
        task="bench",
        step=-1,
        prompt_id=f"p{number}",
        model="mock",
        help_units=1,
        hold=Amount(*(2 * unit for unit in COST)),
        budgets=tuple(BudgetTerms(key, limits) for key in keys),
        lease_until=now + LEASE_S,
        now=now,
        cache_key=f"{number:064x}",
    )


def _settlement(number: int) -> Any:
    from coordinator.ledger.accounts import Amount, Settlement

    return Settlement(_device(number), f"k{number}", 1, Amount(*COST), 180, 96, "An answer. " * 40, "stop", "bench", time.time())


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Fill a ledger, kill the process, start a coordinator, and measure."""
    with scratch_folder(job) as scratch:
        state = scratch / "state"
        state.mkdir()
        ledger = state / LEDGER_FILE
        filling = own("coordinator.recovery", str(ledger), str(job["entries"]), str(job["holds"]))
        code = subprocess.run(filling, cwd=REPOSITORY, check=False).returncode
        if code != -signal.SIGKILL:
            raise RuntimeError(f"the filling process ended with {code}")
        with serving(settings(state, 1, metrics_port=None), scratch) as server:
            result: dict[str, Any] = {"start_s": server.start_s, "memory_mib": memory_mib(server.pid)}
        return result | {"audit": audit(ledger, [], [], COST).to_json()}


if __name__ == "__main__":
    asyncio.run(fill(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
