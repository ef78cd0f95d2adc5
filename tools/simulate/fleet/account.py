"""The ledger against what the devices know of it. Knows calls, charges and records; knows nothing of virtual time or networks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from coordinator.accounts import CallRow, CallState
from coordinator.stores.memory import MemoryTables
from coordinator.verify import verify
from tools.simulate.fleet.device import FleetDevice

SERVING = -1


def violations(tables: MemoryTables, devices: Sequence[FleetDevice], executed: Mapping[str, int]) -> list[str]:
    """One line each: what the ledger finds wrong with itself, answers without a record, and charges that are missing or doubled."""
    report = verify(tables)
    found = [f"the ledger does not verify: {difference}" for difference in report.differences]
    found += [f"{key} was executed {times} times" for key, times in executed.items() if times > 1]
    calls: defaultdict[str, list[CallRow]] = defaultdict(list)
    for row in tables.calls.values():
        calls[row.device].append(row)
    for device in devices:
        found += _of_device(device, calls[device.name])
    return found


def _of_device(device: FleetDevice, rows: Iterable[CallRow]) -> Iterable[str]:
    serving, training = _by_use(rows)
    records = device.charges
    if device.kept != device.figures.asked:
        yield f"{device.name}: {device.figures.asked} questions, {device.kept} records"
    for key, row in serving.items():
        charged = 0 if row.cached else row.charged.uusd
        if key not in records:
            yield f"{device.name}: the ledger has {key}, which no record knows"
        elif records[key] != charged and row.state is not CallState.REFUNDED:
            yield f"{device.name}: {key} was charged {charged} uUSD, its record says {records[key]}"
    for key, charged in records.items():
        if charged and key not in serving:
            yield f"{device.name}: {key} cost {charged} uUSD by its record, the ledger has no such call"
    paid = [row for row in training if row.state is CallState.COMPLETED and not row.cached]
    spent, doubtful = sum(row.charged.uusd for row in paid), any(row.state is not CallState.COMPLETED for row in training)
    if spent != device.figures.step_spend_uusd and not doubtful:
        yield f"{device.name}: its steps cost {device.figures.step_spend_uusd} uUSD, by the ledger {spent}"


def _by_use(rows: Iterable[CallRow]) -> tuple[dict[str, CallRow], list[CallRow]]:
    serving: dict[str, CallRow] = {}
    training: list[CallRow] = []
    for row in rows:
        if row.step == SERVING:
            serving[row.key] = row
        else:
            training.append(row)
    return serving, training
