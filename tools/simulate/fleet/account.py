"""The ledger against what the devices know of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from coordinator.ledger.accounts import CallRow, CallState
from coordinator.ledger.stores.memory import MemoryRows
from coordinator.ledger.tables import CALL
from coordinator.ledger.verify import verify
from tools.simulate.fleet.device import FleetDevice


def calls_by_device(tables: MemoryRows) -> dict[str, list[CallRow]]:
    """The ledger's calls of each device."""
    calls: defaultdict[str, list[CallRow]] = defaultdict(list)
    for row in tables.all(CALL):
        calls[row.device].append(row)
    return calls


def charged_to(rows: Sequence[CallRow]) -> tuple[int, int]:
    """Billed calls and micro-USD."""
    return sum(row.charged.calls for row in rows), sum(row.charged.uusd for row in rows)


def violations(tables: MemoryRows, devices: Sequence[FleetDevice], executed: Mapping[str, int]) -> list[str]:
    """One line each: what the ledger finds wrong with itself, answers without a record, and charges that are missing or doubled."""
    report = verify(tables)
    found = [f"the ledger does not verify: {difference}" for difference in report.differences]
    found += [f"{key} was executed {times} times" for key, times in executed.items() if times > 1]
    calls = calls_by_device(tables)
    for device in devices:
        found += _of_device(device, {row.key: row for row in calls.get(device.name, ())})
    return found


def _of_device(device: FleetDevice, rows: Mapping[str, CallRow]) -> Iterator[str]:
    if device.kept != device.figures.asked:
        yield f"{device.name}: {device.figures.asked} questions, {device.kept} records"
    for key, row in rows.items():
        if key not in device.charges:
            if row.state is not CallState.REFUNDED:
                yield f"{device.name}: the ledger has {key}, of which the device knows nothing"
        elif (known := device.charges[key]) is not None and known != row.charged.uusd:
            yield f"{device.name}: {key} was charged {row.charged.uusd} uUSD, the device knows of {known}"
    for key, charged in device.charges.items():
        if charged and key not in rows:
            yield f"{device.name}: {key} cost {charged} uUSD by its record, the ledger has no such call"
