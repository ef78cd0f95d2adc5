"""The prices λ as the journal moves them, own and shared. Knows tasks, the λ each is held to, and whose reports move it; shares no code
with the ledger.

A shared λ moves with each report, in the journal's order: a `global` one with the report's whole weight, a fleet's by its share of the
units that all members last planned or reported. A task's version, as a device is told it, grows with each change of its own and of its λ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

Data = dict[str, Any]
TaskId = tuple[str, str]
MOST_UNITS = 2**20


@dataclass(slots=True)
class SharedDual:
    """A λ that several tasks or devices are held to; of a fleet's, the units and the time of each member's latest step. `waiting` is the
    task that it began with, until a step uses it."""

    dual: float
    moves: int = 0
    waiting: TaskId | None = None
    members: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def round_units(self) -> int:
        """The units of all members."""
        return sum(units for units, _ in self.members.values())


class Duals:
    """All of them, and under which version which λ was to be seen; a version that stands for two is noted in `clashes`."""

    def __init__(self) -> None:
        self.own: dict[TaskId, float] = {}
        self.held_to: dict[TaskId, str] = {}
        self.shared: dict[str, SharedDual] = {}
        self.versions: Counter[TaskId] = Counter()
        self.seen: dict[TaskId, dict[int, str]] = defaultdict(dict)
        self.clashes: list[str] = []

    def meet(self, task: TaskId, dual: float, price: str) -> bool:
        """A task's first contact; whether a shared λ begins with it."""
        begins = price != "" and price not in self.shared
        self.own[task], self.held_to[task] = dual, price
        if begins:
            self.shared[price] = SharedDual(dual, waiting=task)
        return begins

    def now(self, task: TaskId) -> tuple[int, float]:
        """Version and λ as a device is told them."""
        shared = self.shared.get(self.held_to.get(task, ""))
        dual = self.own[task] if shared is None else shared.dual
        return self.versions[task] + (shared.moves if shared else 0), dual

    def touch(self, task: TaskId) -> int:
        """The task has a new version; returns its own count."""
        self.versions[task] += 1
        self._note(task)
        return self.versions[task]

    def expected_at_opening(self, task: TaskId, step: int, price: str, dual_init: float) -> float:
        """The λ that a step opens with: the one it is held to from now on, else the task's so far, else the first one."""
        if price in self.shared:
            return self.shared[price].dual
        return dual_init if step == 0 else self.now(task)[1]

    def opened(self, body: Data, at_ms: int) -> None:
        """A step was opened: its task is held to the λ of the step."""
        task, price, dual = (body["device"], body["task"]), body.get("price", ""), float.fromhex(body["dual"])
        left = self.shared.get(self.held_to.get(task, ""))
        if left is not None and self.held_to[task] != price:
            self.versions[task] += left.moves
        self.own[task], self.held_to[task] = dual, price
        if price:
            self.shared.setdefault(price, SharedDual(dual)).waiting = None
            self._enter(price, body["device"], body["planned_prompts"] * body["group_size"], at_ms)
            self._note_others(price, task)

    def start_of_move(self, opened: Data, closed: Data, at_ms: int) -> tuple[float, int]:
        """The λ that a report starts from, and the units of the round it is a part of (0: it counts whole)."""
        price = opened.get("price", "")
        if not price:
            return float.fromhex(opened["dual"]), 0
        self._enter(price, closed["device"], closed["total_units"], at_ms)
        return self.shared[price].dual, self.shared[price].round_units if price.startswith("fleet") else 0

    def closed(self, opened: Data, dual: float) -> None:
        """A report moved λ."""
        task, price = (opened["device"], opened["task"]), opened.get("price", "")
        self.own[task] = dual
        if price:
            shared = self.shared[price]
            shared.dual, shared.moves = dual, shared.moves + 1
            self._note_others(price, task)

    def leave(self, price: str, device: str) -> tuple[int, int]:
        """A member left the rounds; returns the units and the time of its latest step."""
        last = self.shared[price].members.get(device, (0, 0))
        self.shared[price].members[device] = (0, last[1])
        return last

    def _enter(self, price: str, device: str, units: int, at_ms: int) -> None:
        if price.startswith("fleet"):
            self.shared[price].members[device] = (min(units, MOST_UNITS), at_ms)

    def _note_others(self, price: str, mover: TaskId) -> None:
        for task, held_to in self.held_to.items():
            if held_to == price and task != mover:
                self._note(task)

    def _note(self, task: TaskId) -> None:
        version, dual = self.now(task)
        known = self.seen[task].setdefault(version, dual.hex())
        if known != dual.hex():
            self.clashes.append(f"version {version} of {task} stands for λ {known} and for {dual.hex()}")


def moved(before: float, lr: float, rate: float, target: float, units: int, round_units: int) -> float:
    """λ after a report of `units` units in a round of `round_units` (0: it counts whole)."""
    weight = lr if round_units == 0 else lr * (min(units, MOST_UNITS) / round_units)
    after = before + weight * (rate - target)
    return after if after > 0.0 else 0.0
