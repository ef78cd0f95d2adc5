"""Work in the background: it outlives what fails, and is logged once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.app import Coordinator
from coordinator.config import ServerConfig
from coordinator.control.devices import Fleet
from coordinator.control.upkeep import Upkeep
from coordinator.ledger.budgets import BudgetBook
from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.ledger.stores.trouble import not_written
from coordinator.service.telemetry import Telemetry
from edge.core.clock import SystemClock
from tests.until import until


class Faulty(MemoryLedgerStore):
    """A ledger whose sweeps raise what `errors` holds, one after another, and whose tasks cannot be listed while `unread`."""

    def __init__(self, *errors: Exception, unread: bool = False) -> None:
        super().__init__()
        self.errors = list(errors)
        self.unread = unread

    def perform(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Run it, or fail as scripted."""
        if operation.name == "sweep" and self.errors:
            raise self.errors.pop(0)
        if operation.name == "list_tasks" and self.unread:
            raise not_written()
        return super().perform(operation, *args, **kwargs)


async def test_upkeep_that_keeps_failing_is_logged_once_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    config, clock = ServerConfig(), SystemClock()
    store = Faulty(not_written(), not_written(), ValueError("bug"), ValueError("bug"))
    upkeep = Upkeep(store, BudgetBook(config.budgets, 0.0), config, clock, Fleet(store, clock))
    for _ in range(5):
        await upkeep.tick()
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert [bool(record.exc_info or record.exc_text) for record in caplog.records] == [False, True]
    store.errors = [not_written()]
    await upkeep.tick()
    assert len(caplog.records) == 3


async def test_service_manager_hears_of_a_coordinator_whose_ledger_cannot_be_read_yet() -> None:
    beats = asyncio.Event()
    measuring = asyncio.create_task(Telemetry(ServerConfig(), SystemClock()).run(Faulty(unread=True), beats.set))
    await asyncio.wait_for(beats.wait(), 10.0)
    measuring.cancel()


async def test_background_work_that_breaks_is_logged_when_it_breaks(
    tmp_path: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Telemetry, *args: Any) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(Telemetry, "run", broken)
    config = ServerConfig(listen=(f"unix:{tmp_path}/c.sock",), state_dir=str(tmp_path))
    with pytest.raises(RuntimeError):
        async with Coordinator(config, store=MemoryLedgerStore(), upstreams={}):
            await until(lambda: any("telemetry" in record.getMessage() for record in caplog.records))
