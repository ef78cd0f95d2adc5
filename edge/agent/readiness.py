"""Holding learning back between steps: while somebody is served, a person has paused it, or the machine is not free.

Knows the order of the reasons and keeps how long each held; knows nothing of steps. A pause outlives restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from edge.agent.conditions import LearningConditions
from edge.agent.events import LearningResumed, LearningWaits
from edge.agent.gate import ServingGate
from edge.agent.state import StateFolder
from edge.core.clock import Clock
from edge.core.events import EventSink

PAUSED = "learning_paused"
BY_YOU = "paused by you"


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
        self, gate: ServingGate, conditions: LearningConditions | None, state: StateFolder, sink: EventSink, clock: Clock
    ) -> None:
        self._gate = gate
        self._conditions = conditions
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
        if self._conditions is None:
            return ""
        told = self._conditions.waiting_for(self._clock.now(), self._gate.quiet_s)
        return f"waiting: {told}" if told else ""

    async def _next_look(self) -> None:
        self._changed.clear()
        if self._conditions is None:
            await self._changed.wait()
            return
        try:
            async with asyncio.timeout(self._conditions.check_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _note(self, reason: str) -> None:
        """Keep what is waited for and since when; a wait that a crash cuts ends with its last look."""
        now, same = self._clock.now(), _kind(reason) == _kind(self.waiting)
        if self._wait is not None:
            with self._state.database as database:
                database.execute("UPDATE waits SET ended_at = ? WHERE id = ?", (now, self._wait))
        if not same:
            self._wait = None if not reason else self._begin(reason, now)
            self._sink.emit(LearningWaits(reason, now) if reason else LearningResumed(now))
        self.waiting = reason

    def _begin(self, reason: str, now: float) -> int | None:
        with self._state.database as database:
            query = "INSERT INTO waits (began_at, ended_at, reason) VALUES (?, ?, ?)"
            return database.execute(query, (now, now, _kind(reason))).lastrowid


def _kind(reason: str) -> str:
    """A reason without its numbers, which change from look to look."""
    return reason.removeprefix("waiting: ").split(":")[0].split(" at ")[0].split(" use ")[0]
