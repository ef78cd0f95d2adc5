"""Every λ as the journal moves it, own and shared. It shares no code with the ledger.

A shared λ moves with each report, in the journal's order: a `global` one with the report's whole weight, a fleet's by its share of the
units that all members last planned or reported. A task's version, as a device is shown it, grows with each change of its own and of its λ.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

Data = dict[str, Any]
TaskId = tuple[str, str]
MOST_UNITS = 2**20


@dataclass(slots=True)
class ExpectedDual:
    """A λ that several tasks or devices are held to; of a fleet's, the units and the time of each member's latest step. `waiting` is the
    task that it began with, until a step uses it. `held` is what the reports in the window added in proportion, oldest first."""

    dual: float
    moves: int = 0
    waiting: TaskId | None = None
    held: tuple[float, ...] = ()
    members: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def round_units(self) -> int:
        """The units of all members."""
        return sum(units for units, _ in self.members.values())


class Duals:
    """All of them, and under which version which λ was to be seen; a version with two of them is noted in `clashes`."""

    def __init__(self) -> None:
        self.own: dict[TaskId, float] = {}
        self.own_held: dict[TaskId, tuple[float, ...]] = {}
        self.held_to: dict[TaskId, str] = {}
        self.shared: dict[str, ExpectedDual] = {}
        self.versions: Counter[TaskId] = Counter()
        self.seen: dict[TaskId, dict[int, str]] = defaultdict(dict)
        self.clashes: list[str] = []

    def meet(self, task: TaskId, dual: float, key: str) -> bool:
        """A task's first contact; whether a shared λ begins with it."""
        begins = key != "" and key not in self.shared
        self.own[task], self.held_to[task] = dual, key
        if begins:
            self.shared[key] = ExpectedDual(dual, waiting=task)
        return begins

    def now(self, task: TaskId) -> tuple[int, float]:
        """Version and λ as a device is shown them."""
        shared = self.shared.get(self.held_to.get(task, ""))
        dual = self.own[task] if shared is None else shared.dual
        return self.versions[task] + (shared.moves if shared else 0), dual

    def touch(self, task: TaskId) -> int:
        """The task has a new version; returns its own count."""
        self.versions[task] += 1
        self._note(task)
        return self.versions[task]

    def expected_at_opening(self, task: TaskId, step: int, key: str, dual_init: float) -> float:
        """The λ that a step opens with: the one it is held to from now on, else the task's so far, else the first one."""
        if key in self.shared:
            return self.shared[key].dual
        return dual_init if step == 0 else self.now(task)[1]

    def opened(self, body: Data, at_ms: int) -> None:
        """A step was opened: its task is held to the λ of the step."""
        task, key, dual = (body["device"], body["task"]), body.get("shared_dual", ""), float.fromhex(body["dual"])
        left = self.shared.get(self.held_to.get(task, ""))
        if left is not None and self.held_to[task] != key:
            self.versions[task] += left.moves
        held = left.held if left is not None else self.own_held.get(task, ())
        held = () if body["step"] == 0 or key.startswith("fleet") else held
        self.own[task], self.own_held[task], self.held_to[task] = dual, held, key
        if key:
            self.shared.setdefault(key, ExpectedDual(dual, held=held)).waiting = None
            self._enter(key, body["device"], body["planned_prompts"] * body["group_size"], at_ms)
            self._note_others(key, task)

    def start_of_move(self, opened: Data, closed: Data, at_ms: int) -> tuple[float, int]:
        """The λ that a report starts from, and the units of the round it is a part of (0: it counts whole)."""
        key = opened.get("shared_dual", "")
        if not key:
            return float.fromhex(opened["dual"]), 0
        self._enter(key, closed["device"], closed["total_units"], at_ms)
        return self.shared[key].dual, self.shared[key].round_units if key.startswith("fleet") else 0

    def held(self, opened: Data) -> tuple[float, ...]:
        """What the λ that a step moves holds of the reports in the window."""
        key = opened.get("shared_dual", "")
        return self.shared[key].held if key else self.own_held[opened["device"], opened["task"]]

    def closed(self, opened: Data, dual: float, held: tuple[float, ...]) -> None:
        """A report moved λ."""
        task, key = (opened["device"], opened["task"]), opened.get("shared_dual", "")
        self.own[task], self.own_held[task] = dual, held
        if key:
            shared = self.shared[key]
            shared.dual, shared.held, shared.moves = dual, held, shared.moves + 1
            self._note_others(key, task)

    def leave(self, key: str, device: str) -> tuple[int, int]:
        """A member left the rounds; returns the units and the time of its latest step."""
        last = self.shared[key].members.get(device, (0, 0))
        self.shared[key].members[device] = (0, last[1])
        return last

    def _enter(self, key: str, device: str, units: int, at_ms: int) -> None:
        if key.startswith("fleet"):
            self.shared[key].members[device] = (min(units, MOST_UNITS), at_ms)

    def _note_others(self, key: str, mover: TaskId) -> None:
        for task, held_to in self.held_to.items():
            if held_to == key and task != mover:
                self._note(task)

    def _note(self, task: TaskId) -> None:
        version, dual = self.now(task)
        known = self.seen[task].setdefault(version, dual.hex())
        if known != dual.hex():
            self.clashes.append(f"version {version} of {task} has λ {known} and {dual.hex()}")


RULE_BEYOND_LR = ("dual_proportional", "dual_window", "dual_ceiling")


def weighed(lr: float, units: int, round_units: int) -> float:
    """η of a report of `units` units in a round of `round_units` (0: it counts whole)."""
    return lr if round_units == 0 else lr * (min(units, MOST_UNITS) / round_units)


def moved(before: float, held: tuple[float, ...], lr: float, missed: float, opened: Data) -> tuple[float, tuple[float, ...]]:
    """λ after a report that missed τ by so much, and what it then holds of the reports in the window, under the rule of its step."""
    gain, window = float.fromhex(opened.get("dual_proportional", "0x0p+0")), opened.get("dual_window", 1)
    holds = () if gain == 0.0 and not held else (*held, gain * missed)[-window:]
    after = before + lr * missed + (_average(holds) - _average(held))
    after = min(after if after > 0.0 else 0.0, float.fromhex(opened.get("dual_ceiling", "inf")))
    return after, holds if gain > 0.0 or any(holds) else ()


def _average(parts: tuple[float, ...]) -> float:
    """0 of none; summed from the first on, so that equal parts have their own value as average."""
    return parts[0] + math.fsum(part - parts[0] for part in parts) / len(parts) if parts else 0.0
