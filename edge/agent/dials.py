"""The dials of all tasks, kept in the state folder. Knows which rate holds for which task; knows nothing of how a dial steers.

A dial's state is written in the transaction that keeps the answer it learned from (`save` does not commit), so that a killed agent goes on
exactly where its records end. A rate set for every task replaces those that were set for one. Clients name tasks as they like, so that of
the dials that nobody has set only those that answered last are kept; a task that comes back begins with its recorded answers again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from edge.agent.dial import WINDOW, HelpDial, check_rate
from edge.agent.state import StateFolder
from edge.agent.state_reader import StateReader
from edge.core.clock import Clock
from edge.core.errors import NotFound, UsageError

MOST_OWN_DIALS = 64
"""A dial that somebody sets for a task alone is kept until one is set for every task."""
MOST_OTHER_DIALS = 64
"""So many dials that nobody has set are kept: those that answered last."""
_DEFAULT = "dial_default"
_RATE_OF_OLDER_VERSIONS = "dial_rate"


@dataclass(frozen=True, slots=True)
class _Default:
    """The rate of tasks without one of their own; `set_at` None: the configuration's."""

    target_rate: float | None
    set_at: float | None


class DialBook:
    """Dials by task, made when they are first needed. `configured`: the rate where nobody has set one (None: no dial)."""

    def __init__(self, state: StateFolder, configured: float | None, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._configured = check_rate(configured)
        self._default = _default_of(state, configured)
        self._dials = {dial.task: dial for dial in stored_dials(state, configured)}
        self._forgotten: set[str] = set()
        self._forget_the_oldest()

    def of(self, task: str) -> HelpDial:
        """The dial of a task; a new one begins with what earlier answers to the task showed."""
        if task not in self._dials:
            dial = HelpDial(self._default.target_rate, task, set_at=self._default.set_at)
            dial.warm(_recorded(self._state, task))
            self._dials[task] = dial
            self._forgotten.discard(task)
            self._forget_the_oldest()
        return self._dials[task]

    def set(self, rate: float | None, task: str | None = None) -> None:
        """Set τ of one task, or of every task (None as the rate: the model decides alone). Raises UsageError outside [0, 1],
        and where too many tasks have a dial of their own."""
        check_rate(rate)
        if task is not None and task not in self._dials and sum(dial.own for dial in self._dials.values()) >= MOST_OWN_DIALS:
            raise UsageError(f"{MOST_OWN_DIALS} tasks have a dial of their own already", hint="set one rate for every task")
        now = self._clock.now()
        changed = [self.of(task)] if task is not None else list(self._dials.values())
        for dial in changed:
            dial.set(rate, own=task is not None, at=now)
        with self._state.database as database:
            if task is None:
                self._default = _Default(rate, now)
                default = json.dumps({"target_rate": rate, "set_at": now})
                database.execute("REPLACE INTO meta VALUES (?, ?)", (_DEFAULT, default))
            for dial in changed:
                self.save(dial)

    def save(self, dial: HelpDial) -> None:
        """Write a dial as it is now, in the transaction under way, and strike out those that are kept no longer."""
        self._dials.pop(dial.task, None)
        self._dials[dial.task] = dial  # at the end: the last to go
        self._state.database.execute("REPLACE INTO dials VALUES (?, ?)", (dial.task, dial.to_json()))
        self._state.database.executemany("DELETE FROM dials WHERE task = ?", [(task,) for task in self._forgotten])
        self._forgotten.clear()

    def _forget_the_oldest(self) -> None:
        others = [task for task, dial in self._dials.items() if not dial.own]
        for task in others[:-MOST_OTHER_DIALS]:
            del self._dials[task]
            self._forgotten.add(task)

    def forget(self, task: str) -> None:
        """Strike out a task's dial; a task that comes back begins with the rate of every task. Raises NotFound for one without."""
        if task not in self._dials:
            raise NotFound(f"no task of the label {task} has a dial", hint="edge-agent budget show lists the tasks")
        with self._state.database as database:
            database.execute("DELETE FROM dials WHERE task = ?", (task,))
            database.execute("DELETE FROM meta WHERE key = ?", (f"budget:{task}",))
        del self._dials[task]

    @property
    def default_rate(self) -> float | None:
        """τ of tasks without one of their own."""
        return self._default.target_rate

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have a dial by now."""
        return tuple(self._dials)


def stored_dials(state: StateReader, configured: float | None) -> list[HelpDial]:
    """The dials of a state folder, also while an agent uses it."""
    default = _default_of(state, configured)
    rows = state.rows("SELECT task, dial FROM dials ORDER BY task")
    dials = [HelpDial.from_json(str(task), text) for task, text in rows]
    for dial in dials:
        if not dial.own and dial.target_rate != default.target_rate:
            dial.set(default.target_rate, own=False, at=default.set_at)
    return dials


def default_rate(state: StateReader, configured: float | None) -> float | None:
    """τ of a task that has no dial yet."""
    return _default_of(state, configured).target_rate


def _default_of(state: StateReader, configured: float | None) -> _Default:
    kept = state.meta(_DEFAULT)
    if kept is not None:
        return _Default(**json.loads(kept))
    older = state.meta(_RATE_OF_OLDER_VERSIONS)
    return _Default(configured if older is None else (float(older) if older else None), None)


def _recorded(state: StateFolder, task: str) -> Iterator[tuple[int, float | None]]:
    """What the last answers to a task showed, oldest first; answers that the local model had no part in show nothing."""
    for record in reversed(state.requests(WINDOW)):
        if record.get("task") == task and record.get("local_text"):
            yield int(record["adapter_version"]), record["help_log_odds"]
