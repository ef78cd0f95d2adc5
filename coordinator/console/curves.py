"""λ, assist rate and spend over time, folded from the journal.

The journal is followed only when somebody asks, from at most BACKLOG entries before its end, so that a long history costs a page of the
store's time now and then and no memory. It covers the whole fleet, also what other replicas did, of the TASKS_KEPT tasks that closed a
step last.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coordinator.ledger.journal import JournalEntry

BACKLOG = 100_000
PAGE = 500
PAGES_PER_READ = 40
CLOSINGS_KEPT = 4000
TASKS_KEPT = 64
TARGETS_KEPT = 10_000
MINUTES_KEPT = 10_080
POINTS = 160
MINUTE_MS = 60_000
_CHARGING = frozenset({"completed", "failed", "in_doubt"})
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Closing:
    """A step that one device closed."""

    at_ms: int
    device: str
    step: int
    total_units: int
    help_units: int
    target_rate: float
    dual_after: float


@dataclass(slots=True)
class Curves:
    """The curves as far as the journal was read; both readers are the store's operations (`read_journal`)."""

    read: Callable[[int, int], Awaitable[Sequence[JournalEntry]]]
    last_entry: Callable[[], Awaitable[int]]
    _after: int = -1
    _closings: dict[str, deque[Closing]] = field(default_factory=dict)
    _targets: dict[tuple[str, str], float] = field(default_factory=dict)
    _minutes: dict[int, int] = field(default_factory=dict)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def catch_up(self) -> bool:
        """Read what is new, at most PAGES_PER_READ pages; False when more is left for the next time."""
        async with self._reading:
            if self._after < 0:
                self._after = max(0, await self.last_entry() - BACKLOG)
            for _ in range(PAGES_PER_READ):
                entries = await self.read(self._after, PAGE)
                for entry in entries:
                    self._fold(entry)
                    self._after = entry.seq
                if len(entries) < PAGE:
                    return True
            return False

    def tasks(self) -> dict[str, list[dict[str, Any]]]:
        """Per task at most POINTS points in the order of time: time, steps closed, Ĵ_c over their responses, mean τ, mean λ."""
        return {task: _points(list(rows)) for task, rows in sorted(self._closings.items())}

    def spend(self) -> list[list[int]]:
        """[minute as milliseconds, micro-USD charged so far in what was read], at most POINTS of them and the last one always."""
        total, rows = 0, []
        for minute in sorted(self._minutes):
            total += self._minutes[minute]
            rows.append([minute * MINUTE_MS, total])
        stride = max(1, -(-len(rows) // POINTS))
        return rows[::-1][::stride][::-1]

    def _fold(self, entry: JournalEntry) -> None:
        if entry.kind in _CHARGING:
            self._charge(entry)
        elif entry.kind == "open_step":
            body = entry.data()
            _put_last(self._targets, (body["device"], body["task"]), float.fromhex(body["target_rate"]), TARGETS_KEPT)
        elif entry.kind == "close_step":
            self._close(entry.at_ms, entry.data())

    def _charge(self, entry: JournalEntry) -> None:
        uusd = int(entry.data()["charge"][-1])
        minute = entry.at_ms // MINUTE_MS
        self._minutes[minute] = self._minutes.get(minute, 0) + uusd
        if len(self._minutes) > MINUTES_KEPT:
            first, second = sorted(self._minutes)[:2]
            self._minutes[second] += self._minutes.pop(first)

    def _close(self, at_ms: int, body: dict[str, Any]) -> None:
        device, task = body["device"], body["task"]
        rows = self._closings.get(task) or deque(maxlen=CLOSINGS_KEPT)
        _put_last(self._closings, task, rows, TASKS_KEPT)
        target = self._targets.get((device, task), 0.0)
        dual = float.fromhex(body["dual_after"])
        rows.append(Closing(at_ms, device, body["step"], body["total_units"], body["help_units"], target, dual))


def _put_last(rows: dict[K, V], key: K, value: V, most: int) -> None:
    """Keep the `most` that were put last."""
    rows.pop(key, None)
    rows[key] = value
    if len(rows) > most:
        del rows[next(iter(rows))]


def _points(rows: list[Closing]) -> list[dict[str, Any]]:
    """Closings in groups of equal size; λ of a group is the mean over the devices of what each had last by then."""
    stride = max(1, -(-len(rows) // POINTS))
    duals: dict[str, float] = {}
    points = []
    for start in range(0, len(rows), stride):
        group = rows[start : start + stride]
        duals.update((row.device, row.dual_after) for row in group)
        total = sum(row.total_units for row in group)
        points.append(
            {
                "at_ms": group[-1].at_ms,
                "steps": len(group),
                "assist_rate": sum(row.help_units for row in group) / total if total else None,
                "target_rate": sum(row.target_rate for row in group) / len(group),
                "dual": sum(duals.values()) / len(duals),
            }
        )
    return points
