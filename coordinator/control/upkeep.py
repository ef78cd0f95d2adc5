"""Regular upkeep of a running coordinator: lease sweep, changed limits, old answers, who was seen."""

from __future__ import annotations

import asyncio
import logging

from coordinator.config import ServerConfig
from coordinator.control.devices import Fleet
from coordinator.ledger.budgets import BudgetBook
from coordinator.ledger.stores.store import LedgerStore
from edge.core.clock import Clock
from edge.core.errors import EdgeError

log = logging.getLogger(__name__)
PURGE_EVERY_TICKS = 1800
REFRESH_EVERY_TICKS = 15


class Upkeep:
    """Ticks every `sweep_interval_s`. A tick that fails is tried again at the next one, and logged unless the last one failed alike."""

    def __init__(self, store: LedgerStore, book: BudgetBook, config: ServerConfig, clock: Clock, fleet: Fleet) -> None:
        self._store = store
        self._book = book
        self._config = config
        self._clock = clock
        self._fleet = fleet
        self._failed_with = ""

    def replace_config(self, config: ServerConfig) -> None:
        """Work by this configuration from the next tick on."""
        self._config = config

    async def run(self) -> None:
        """Tick until cancelled."""
        ticks = 0
        while True:
            await self.tick(purge=ticks % PURGE_EVERY_TICKS == 0, refresh=ticks % REFRESH_EVERY_TICKS == 0)
            ticks += 1
            await asyncio.sleep(self._config.service.sweep_interval_s)

    async def tick(self, purge: bool = False, refresh: bool = True) -> None:
        """One round."""
        try:
            self._book.take_limits(await self._store.list_set_limits())
            if swept := await self._store.sweep(self._clock.now()):
                log.warning("%d calls outlived their lease and are charged as in doubt", len(swept))
            now = self._clock.now()
            if left := await self._store.leave_idle_duals(now - self._config.fleet.dual_idle_s, now):
                log.info("%d idle devices left the rounds of shared λ", len(left))
            if refresh:
                await self._fleet.refresh()
            if purge:
                await self._store.purge_results(now - self._config.service.answers_kept_s, now)
        except Exception as error:  # the sweep has to go on whatever happens: nothing else charges an expired hold
            if str(error) != self._failed_with:
                trace = None if isinstance(error, EdgeError) else error
                log.error("upkeep failed and is tried again until it succeeds: %s", error, exc_info=trace)
            self._failed_with = str(error)
        else:
            self._failed_with = ""
