"""Holding learning back between steps: while somebody is served, a person has paused it, or the machine is not free.

Knows the order of the reasons and keeps how long each held; knows nothing of steps. A pause outlives restarts.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress

from edge.agent.conditions import LearningConditions
from edge.agent.events import LearningResumed, LearningWaits
from edge.agent.gate import ServingGate
from edge.agent.room import DiskRoom
from edge.agent.state import StateFolder
from edge.core.clock import Clock
from edge.core.events import EventSink

PAUSED = "learning_paused"
BY_YOU = "paused by you"
_CHECK_S = 5.0
"""Seconds from look to look where no conditions name them."""


def is_paused(state: StateFolder) -> bool:
    """Whether a person has paused learning."""
    return state.meta(PAUSED) == "1"


def set_paused(state: StateFolder, paused: bool) -> None:
    """Pause or resume learning, for good; a running agent's `Readiness` must be told, too."""
    state.set_meta(PAUSED, "1" if paused else "")


async def _nothing() -> None:
    return None


class Readiness:
    """Says when the next step may begin."""

    def __init__(
        self,
        gate: ServingGate,
        conditions: LearningConditions | None,
        room: DiskRoom,
        state: StateFolder,
        sink: EventSink,
        clock: Clock,
    ) -> None:
        """`conditions`: None where learning may always use the machine."""
        self._gate = gate
        self._conditions = conditions
        self._room = room
        self._state = state
        self._sink = sink
        self._clock = clock
        self._changed = asyncio.Event()
        self._wait: int | None = None
        self.waiting = ""
        self.waits = 0
        """How often it was found that no step may begin."""

    def pause(self, paused: bool) -> None:
        """Pause or resume, durably; takes effect before the next step."""
        set_paused(self._state, paused)
        self._changed.set()

    @property
    def held_back(self) -> bool:
        """Somebody is served, or the next step waits."""
        return self._gate.busy or bool(self.waiting)

    def told(self) -> str:
        """Why the next step waits, or would; a pause and its end are told at once."""
        if is_paused(self._state):
            return BY_YOU
        return "" if self.waiting == BY_YOU else self.waiting

    async def ready(self, at_each_look: Callable[[], Awaitable[None]] = _nothing) -> None:
        """Return when nothing holds learning back; looked at again every few seconds, and at once when a pause ends.

        `at_each_look` is awaited while it is waited: what must be seen to although no step is made.
        """
        try:
            await self._gate.idle()
            while reason := self._reason():
                self.waits += 1
                self._note(reason)
                await at_each_look()
                await self._next_look()
                await self._gate.idle()
        finally:
            self._note("")

    def _reason(self) -> str:
        if is_paused(self._state):
            return BY_YOU
        told = self._room.shortage()
        if not told and self._conditions is not None:
            told = self._conditions.waiting_for(self._clock.now(), self._gate.quiet_s)
        return f"waiting: {told}" if told else ""

    async def _next_look(self) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(_CHECK_S if self._conditions is None else self._conditions.check_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _note(self, reason: str) -> None:
        """Keep what is waited for and since when; a wait that a crash cuts ends with its last look. A full disk keeps none."""
        now, same = self._clock.now(), _kind(reason) == _kind(self.waiting)
        with suppress(sqlite3.Error):
            self._keep(reason, now, same=same)
        if not same:
            self._sink.emit(LearningWaits(reason, now) if reason else LearningResumed(now))
        self.waiting = reason

    def _keep(self, reason: str, now: float, *, same: bool) -> None:
        wait = self._wait
        self._wait = wait if same else None
        if wait is not None:
            with self._state.database as database:
                database.execute("UPDATE waits SET ended_at = ? WHERE id = ?", (now, wait))
        if reason and self._wait is None:
            self._wait = self._begin(reason, now)

    def _begin(self, reason: str, now: float) -> int | None:
        with self._state.database as database:
            query = "INSERT INTO waits (began_at, ended_at, reason) VALUES (?, ?, ?)"
            return database.execute(query, (now, now, _kind(reason))).lastrowid


def _kind(reason: str) -> str:
    """A reason without its numbers, which change from look to look."""
    return reason.removeprefix("waiting: ").split(":")[0].split(" at ")[0].split(" use ")[0]
