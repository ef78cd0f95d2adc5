"""Reading a state folder, also while an agent uses it; changes nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from edge.core.errors import NotFound, StateError
from edge.rpc.client import StepUnits
from edge.state.events import StepFinished
from edge.state.rows import HelpRecord, Lineage, Position, Report, StoredTerms
from edge.state.schema import open_in_memory, open_to_read

POSITION = "position"
PLAN = "plan"
LINE = "line"
BEST_VERSION = "guard_best"
MODEL = "model"
HELP_RECORD = "help_record:"
"""Names of small values that more than one module uses; this one's goes on with the task."""
LAST_ANSWER = "last"
"""In place of an answer's id: the newest answer."""


class StateReader:
    """What is asked of a state folder without changing it."""

    folder: Path
    _db: sqlite3.Connection

    @property
    def database(self) -> sqlite3.Connection:
        """The open database, for the modules that keep a table of their own in it; use it as a context manager to commit."""
        return self._db

    def position(self) -> Position:
        """How far learning has come."""
        text = self.meta(POSITION)
        return Position(**json.loads(text)) if text else Position()

    def phases(self) -> int:
        """How many phases the learning here has; 0 before it began."""
        return len(json.loads(self.meta(PLAN) or "[]"))

    def meta(self, key: str) -> str | None:
        """A small named value, or None."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def lineage(self) -> Lineage:
        """Which adapter serves and which one training goes on from; the last step's where nobody has chosen otherwise."""
        text = self.meta(LINE)
        if text:
            return Lineage.from_json(text)
        steps_done = self.position().steps_done
        return Lineage(steps_done, steps_done)

    def best_version(self) -> int:
        """The version that did best in the last exam, which is kept to go back to; 0: the bare model, or none was held."""
        return int(self.meta(BEST_VERSION) or 0)

    def ancestors(self, version: int) -> Iterator[int]:
        """The version and those it was trained from, newest first, without the bare model."""
        while version > 0:
            yield version
            step = self.step_at(version)
            version = step.adapter.base_version if step is not None and step.adapter.base_version >= 0 else version - 1

    def step_at(self, step: int) -> StepFinished | None:
        """One committed step."""
        return next(self._steps("WHERE step = ?", step), None)

    def first_step(self, phase: int, source: str) -> StepFinished | None:
        """The first committed step of a source in a phase, of its last time where the phases began again."""
        query = (
            "WHERE json_extract(event, '$.phase') = ? AND json_extract(event, '$.source') = ?"
            " ORDER BY json_extract(event, '$.phase_step'), step DESC LIMIT 1"
        )
        return next(self._steps(query, phase, source), None)

    def terms(self, task: str) -> StoredTerms | None:
        """What the task was last held to, or None before its first step."""
        row = self._db.execute("SELECT task, target_rate, dual, next_step FROM terms WHERE task = ?", (task,)).fetchone()
        return None if row is None else StoredTerms(*row)

    def help_record(self, task: str) -> HelpRecord:
        """What the task's next help bias is solved on."""
        text = self.meta(f"{HELP_RECORD}{task}")
        return HelpRecord(*map(tuple, json.loads(text))) if text else HelpRecord()

    def tasks_with_help_record(self) -> list[str]:
        """The tasks that have one."""
        rows = self._db.execute(
            "SELECT substr(key, ?2) FROM meta WHERE substr(key, 1, ?2 - 1) = ?1", (HELP_RECORD, len(HELP_RECORD) + 1)
        )
        return [row[0] for row in rows]

    def steps(self, last: int | None = None, task: str | None = None) -> list[StepFinished]:
        """The last committed steps (None: all), of one task or of all, oldest first."""
        condition = "WHERE ?1 IS NULL OR task = ?1 ORDER BY step DESC LIMIT ?2"
        return list(self._steps(condition, task, -1 if last is None else last))[::-1]

    def steps_led_here(self, last: int, task: str) -> list[StepFinished]:
        """The last committed steps of a task that led to the version in training, oldest first."""
        wanted, found = self.lineage().latest, list[StepFinished]()
        query = "SELECT step, task, coalesce(json_extract(event, '$.base_version'), -1), event FROM steps ORDER BY step DESC"
        for step, of_task, base, event in self._db.execute(query):
            if step > wanted:
                continue
            wanted = base if base >= 0 else step - 1
            if of_task == task:
                found.append(StepFinished.from_json(json.loads(event)))
            if len(found) == last:
                break
        return found[::-1]

    def _steps(self, condition: str, *values: object) -> Iterator[StepFinished]:
        rows = self._db.execute(f"SELECT event FROM steps {condition}", values).fetchall()  # noqa: S608 - of constants
        return (StepFinished.from_json(json.loads(row[0])) for row in rows)

    def drawn_questions(self, source: str, last: int) -> list[tuple[int, str, int, int]]:
        """(step, question, responses, right alone) of the questions of a source that its steps among the last ones drew by what they can
        teach."""
        query = (
            "SELECT step, json_extract(one.value, '$.question'), json_extract(one.value, '$.responses'),"
            " json_extract(one.value, '$.right') FROM steps, json_each(steps.event, '$.drawn') AS one"
            " WHERE json_extract(event, '$.source') = ? AND step > (SELECT max(step) FROM steps) - ? ORDER BY step, one.key"
        )
        return self._db.execute(query, (source, last)).fetchall()

    def waiting_reports(self) -> list[tuple[int, Report]]:
        """Step reports that the coordinator has not taken, oldest first, with their row ids."""
        rows = self._db.execute("SELECT * FROM waiting_reports ORDER BY id")
        return [
            (row_id, Report(task, step, planned, size, rate, StepUnits(*units), refused))
            for row_id, task, step, planned, size, rate, *units, refused in rows
        ]

    def request(self, request_id: str) -> dict[str, Any]:
        """The record of an answer, or of the last one. Raises NotFound."""
        if request_id == LAST_ANSWER:
            newest = self._db.execute("SELECT record FROM requests ORDER BY created_at DESC, rowid DESC LIMIT 1").fetchone()
            if newest is not None:
                found: dict[str, Any] = json.loads(newest[0])
                return found
            raise NotFound(f"there is no answer in {self.folder} yet", hint="edge-agent ask gives one")
        row = self._db.execute("SELECT record FROM requests WHERE id = ?", (request_id,)).fetchone()
        if row is None:
            raise NotFound(f"no answer with id {request_id} in {self.folder}", hint="the id is on the line below each answer")
        record: dict[str, Any] = json.loads(row[0])
        return record

    def requests(self, last: int) -> list[dict[str, Any]]:
        """The records of the last answers, newest first."""
        rows = self._db.execute("SELECT record FROM requests ORDER BY created_at DESC, id LIMIT ?", (last,)).fetchall()
        return [json.loads(row[0]) for row in rows]

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """What a query finds, for the modules that keep a table of their own."""
        return self._db.execute(query, tuple(values)).fetchall()


def serving_versions(folder: Path) -> tuple[int, ...]:
    """The version that serves and those it was trained from, newest first, without the bare model; also while an agent uses the folder.

    () where the bare model serves and where nothing was learned. Raises StateError for a folder that cannot be read.
    """
    try:
        with reading(folder) as state:
            return () if state is None else tuple(state.ancestors(state.lineage().serving))
    except StateError as error:
        raise StateError(str(error), hint="name an adapter folder with --adapter") from error


@contextmanager
def reading(folder: Path) -> Iterator[StateReader | None]:
    """A state folder to read, also while an agent uses it; None where there is none. Raises StateError for one that cannot be read."""
    path = folder / "agent.sqlite"
    if not path.is_file():
        yield None
        return
    reader = StateReader()
    reader.folder = folder
    try:
        with closing(open_to_read(path)) as reader._db:
            yield reader
    except (sqlite3.Error, ValueError) as error:
        raise StateError(f"{path}: cannot be read: {error}", hint="move the file away to start afresh") from error


@contextmanager
def reading_or_nothing(folder: Path) -> Iterator[StateReader]:
    """Likewise; where there is no state, one without any records."""
    with ExitStack() as stack:
        state = stack.enter_context(reading(folder))
        if state is None:
            state = StateReader()
            state.folder, state._db = folder, stack.enter_context(closing(open_in_memory()))
        yield state


def no_state_in(folder: Path) -> StateError:
    """What is raised where a folder is to be read that no agent has used."""
    return StateError(f"{folder}: there is no agent's state here", hint="name it with --state, or run edge-agent run first")


def kept_meta(folder: Path, key: str) -> str | None:
    """A small named value of a folder, also while an agent uses it; None where there is none. Raises StateError."""
    with reading(folder) as state:
        return None if state is None else state.meta(key)
