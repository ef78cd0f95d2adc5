"""What PostgreSQL is asked for a batch: one statement that fetches what it can touch, and one that writes what it changed.

The journal's head is the version of the whole ledger: every change moves it. What was fetched under a head is written only if the head
is unchanged, so a batch sees and leaves the ledger as if it had been alone. PostgreSQL's text cannot hold NUL: backslash escapes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from coordinator.ledger.accounts import (
    SERVING_STEP,
    BudgetTerms,
    CloseStepRequest,
    OpenStepRequest,
    ReserveRequest,
    Settlement,
    share_key,
    step_budget_key,
)
from coordinator.ledger.journal import GENESIS, JournalEntry
from coordinator.ledger.stores.buffered import CommitBatch
from coordinator.ledger.stores.store import NoAnswer
from coordinator.ledger.tables import (
    ATTEMPT,
    BUDGET,
    CACHED_CALLS,
    CALL,
    DEVICE,
    DUAL_MEMBER,
    EXPIRED_ATTEMPTS,
    GROUP_CALLS,
    JOURNAL,
    JOURNAL_AFTER,
    ORPHANED_ATTEMPTS,
    SET_LIMITS,
    SHARED_DUAL,
    STEP,
    STEP_CALLS,
    TABLES,
    TASK,
    Question,
    Table,
)
from coordinator.ledger.transitions import milliseconds

Row = TypeVar("Row")
CHANNEL = "edge_ledger"
Want = tuple[Any, ...]
"""A row as (its table, *key), all of a table as (table,), what a question finds as (question, *parameters)."""
Reach = frozenset[Want]
NOTHING: Reach = frozenset()


# What an operation can touch ------------------------------------------------------------------------------------------------------


def _reserve(request: ReserveRequest) -> Iterator[Want]:
    device, task, step = request.device, request.task, request.step
    yield from ((CALL, device, request.key), (TASK, device, task), (DEVICE, device), (SET_LIMITS,))
    for terms in request.budgets:
        yield BUDGET, terms.key
        if terms.floor_ppm > 0:
            yield BUDGET, share_key(terms.key, device)
    if request.cache_key:
        yield CACHED_CALLS, request.cache_key
    if step != SERVING_STEP:
        yield from ((GROUP_CALLS, device, task, step, request.prompt_id), (STEP, device, task, step))
        yield BUDGET, step_budget_key(device, task, step)


def _attempt(device: str, key: str, number: int, *_: object) -> Iterator[Want]:
    yield ATTEMPT, device, key, number


def _settle(settlement: Settlement) -> Iterator[Want]:
    yield from ((ATTEMPT, settlement.device, settlement.key, settlement.attempt), (SET_LIMITS,))
    yield from ((BUDGET, terms.key) for terms in settlement.budgets)


def _open_step(request: OpenStepRequest) -> Iterator[Want]:
    device, task = request.device, request.task
    yield from ((STEP, device, task, request.step), (TASK, device, task), (DEVICE, device))
    if request.shared_dual:
        yield from ((SHARED_DUAL, request.shared_dual), (DUAL_MEMBER, request.shared_dual, device))


def _close_step(request: CloseStepRequest) -> Iterator[Want]:
    step = (request.device, request.task, request.step)
    yield from ((STEP, *step), (STEP_CALLS, *step), (TASK, request.device, request.task))


def _get_budget(device: str, task: str, budgets: Iterable[BudgetTerms]) -> Iterator[Want]:
    yield from ((TASK, device, task), (SET_LIMITS,))
    yield from ((BUDGET, terms.key) for terms in budgets)


_REACHES: Mapping[str, Callable[..., Iterable[Want]]] = {
    "reserve": _reserve,
    "settle": _settle,
    "refund": _attempt,
    "fail": _attempt,
    "doubt": _attempt,
    "sweep": lambda now: ((EXPIRED_ATTEMPTS, milliseconds(now)),),
    "open_step": _open_step,
    "close_step": _close_step,
    "get_budget": _get_budget,
    "get_call": lambda device, key: ((CALL, device, key),),
    "get_task": lambda device, task: ((TASK, device, task),),
    "register_device": lambda device, *_: ((DEVICE, device),),
    "saw_devices": lambda seen: ((DEVICE, device) for device in seen),
}


def reach_of(operation: str, *args: Any, **kwargs: Any) -> Reach:
    """What an operation with these arguments can touch, as far as is known before it runs; what was left out costs another round trip."""
    return frozenset(_REACHES[operation](*args, **kwargs)) if operation in _REACHES else NOTHING


# Fetching -------------------------------------------------------------------------------------------------------------------------


class Missing(NoAnswer):
    """A transaction asked for something that was not fetched."""

    def __init__(self, want: Want) -> None:
        self.want = want


@dataclass(slots=True)
class Fetched:
    """RowSource of what was read under one head. A question that it was not asked before raises Missing."""

    head: tuple[int, str] = (0, GENESIS)
    known: set[Want] = field(default_factory=set)
    """What the rows answer."""
    rows: dict[Table[Any], dict[tuple[Any, ...], Any]] = field(
        default_factory=lambda: {table: {} for table in (*TABLES, JOURNAL)}
    )
    orphans: set[tuple[Any, ...]] = field(default_factory=set)
    """Keys of attempts whose replica is gone."""

    def add(self, wants: Reach, asked: Sequence[tuple[Any, Table[Any]]], answers: Sequence[str | None]) -> None:
        """Take in the answer to `read_statement(wants)`."""
        for (subject, table), answer in zip(asked, answers, strict=True):
            as_was: Callable[[Any], Any] = restored if table is not JOURNAL else lambda value: value
            for record in msgspec.json.decode(answer) if answer else ():
                row = table.row([as_was(record[name]) for name in table.columns])
                key = table.key_of(row)
                self.rows[table][key] = row
                if subject is ORPHANED_ATTEMPTS and table is ATTEMPT:
                    self.orphans.add(key)
        self.known |= wants

    def get(self, table: Table[Row], *key: Any) -> Row | None:
        """A row by its key."""
        row = self.rows[table].get(key)
        if row is None and (table,) not in self.known:
            self._need(table, *key)
        return row

    def ask(self, question: Question[Row], *parameters: Any) -> Iterable[Row]:
        """The rows that a question finds."""
        self._need(question, *parameters)
        rows = self.rows[question.table]
        if question is ORPHANED_ATTEMPTS:  # whether a replica lives, only the database knows
            return [rows[key] for key in self.orphans]
        found = (row for row in rows.values() if question.wanted(row, *parameters))
        return sorted(found, key=question.table.key_of)

    def all(self, table: Table[Row]) -> Iterable[Row]:
        """All rows of a table, sorted by key."""
        self._need(table)
        return [row for _, row in sorted(self.rows[table].items())]

    def journal_after(self, seq: int, limit: int | None = None) -> Iterable[JournalEntry]:
        """Entries after this one."""
        return list(self.ask(JOURNAL_AFTER, seq, limit))[:limit]

    def journal_head(self) -> tuple[int, str]:
        """The last entry's number and hash."""
        return self.head

    def _need(self, *want: Any) -> None:
        if want not in self.known:
            raise Missing(want)


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL text and its values."""

    sql: str
    """Texts repeat, so that the driver can keep them prepared."""
    values: tuple[Any, ...]


def read_statement(wants: Reach) -> tuple[Statement, list[tuple[Any, Table[Any]]]]:
    """One SELECT that gives the head's number and hash and then JSON arrays of rows: for each, what was asked and the rows' table."""
    of_subject: dict[tuple[str, bool], list[Want]] = {}
    for want in wants:
        of_subject.setdefault((repr(want[0]), len(want) > 1), []).append(want)
    values: list[Any] = []
    parts, asked = ["h.seq", "h.hash"], []
    for _, alike in sorted(of_subject.items()):
        subject = alike[0][0]
        rows = _rows_of(subject, len(alike[0]) > 1, len(values) + 1)
        values += [list(map(_stored, column)) for column in list(zip(*alike, strict=True))[1:]]
        for table, sql in _with_linked(subject.table if isinstance(subject, Question) else subject, rows):
            parts.append(f"(SELECT json_agg(x) FROM ({sql}) x)")
            asked.append((subject, table))
    return Statement(f"SELECT {', '.join(parts)} FROM journal_head h", tuple(values)), asked


def _rows_of(subject: Table[Any] | Question[Any], asked: bool, first: int) -> str:
    """The rows that many of the same question find together; its parameters are arrays from `$first` on."""
    if isinstance(subject, Question):
        table, parameters, where = subject.table, subject.parameters, subject.where
        if subject is ORPHANED_ATTEMPTS:
            living = "SELECT 1 FROM replica r WHERE r.epoch = attempt.epoch AND r.lease_until > clock_timestamp()"
            where += f" AND NOT EXISTS ({living})"
    else:
        table, parameters = subject, {name: "bigint" if name in ("number", "step") else "text" for name in subject.key}
        where = " AND ".join(f"{name} = :{name}" for name in subject.key)
    if not asked:
        return f"SELECT * FROM {table.name}"
    arrays = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(parameters.values(), first))
    each = f"SELECT * FROM {table.name} WHERE " + re.sub(r":(\w+)", r"w.\1", where)
    return f"SELECT r.* FROM unnest({arrays}) AS w({', '.join(parameters)}) CROSS JOIN LATERAL ({each}) r"


def _with_linked(table: Table[Any], rows: str) -> Iterator[tuple[Table[Any], str]]:
    """Rows, and those that whoever asked for them touches with them: an attempt's call, budgets and task, the shared λ of a task, of a step
    and of a member of a round."""
    yield table, rows
    if table is ATTEMPT:
        calls = f"SELECT DISTINCT c.* FROM ({rows}) a JOIN call c USING (device, key)"
        tasks = f"SELECT t.* FROM task_state t WHERE (t.device, t.task) IN (SELECT device, task FROM ({calls}) c)"
        yield CALL, calls
        yield BUDGET, f"SELECT b.* FROM budget b WHERE b.key IN (SELECT unnest(a.budgets) FROM ({rows}) a)"
        yield from _with_linked(TASK, tasks)
    elif table in (STEP, TASK, DUAL_MEMBER):
        yield SHARED_DUAL, f"SELECT p.* FROM shared_dual p WHERE p.key IN (SELECT r.shared_dual FROM ({rows}) r)"
        if table is STEP:
            mine = f"SELECT r.shared_dual, r.device FROM ({rows}) r"
            yield DUAL_MEMBER, f"SELECT m.* FROM dual_member m WHERE (m.shared_dual, m.device) IN ({mine})"


# Writing --------------------------------------------------------------------------------------------------------------------------


def write_statement(batch: CommitBatch, head: tuple[int, str]) -> Statement | None:
    """One statement that moves the head and writes a batch, if the head is unchanged: gives 1, else 0. None: nothing to write."""
    changes = dict(batch.rows)
    if batch.journal:
        changes[JOURNAL] = batch.journal
    if not changes:
        return None
    last = (batch.journal[-1].seq, batch.journal[-1].hash) if batch.journal else head
    values: list[Any] = [head[0], *last]
    parts = ["head AS (UPDATE journal_head SET seq = $2, hash = $3 WHERE seq = $1 RETURNING 1)"]
    for table, rows in changes.items():
        values.append(msgspec.json.encode([_object(table, row) for row in sorted(rows, key=table.key_of)]).decode())
        parts.append(f"new_{table} AS ({_upsert(table, len(values))})")
    values.append([_notice(pair) for pair in sorted(batch.changed)])
    notices = f"SELECT count(pg_notify('{CHANNEL}', n)) FROM head, unnest(${len(values)}::text[]) n"
    return Statement(f"WITH {', '.join(parts)} SELECT (SELECT count(*) FROM head), ({notices})", tuple(values))


def _object(table: Table[Any], row: Any) -> dict[str, Any]:
    columns = dict(zip(table.columns, table.values(row), strict=True))
    if table is JOURNAL:
        return columns
    if table is ATTEMPT:
        columns["budgets"] = row.budgets  # an array here
    return {name: _stored(value) for name, value in columns.items()}


def _upsert(table: Table[Any], place: int) -> str:
    names = ", ".join(table.columns)
    read = ", ".join(f"r.{name}" for name in table.columns)
    rows = f"SELECT {read} FROM head, json_populate_recordset(NULL::{table}, ${place}::json) r"
    insert = f"INSERT INTO {table} ({names}) {rows}"
    return insert if table is JOURNAL else f"{insert} {table.or_changed}"


def _notice(pair: tuple[str, str]) -> str:
    """A notification's payload; a pair too long for one says that any may have changed."""
    text = msgspec.json.encode(pair).decode()
    return text if len(text.encode()) < 7_900 else '["",""]'


def _stored(value: Any) -> Any:
    """A value as PostgreSQL can hold it."""
    if isinstance(value, str):
        return value.replace("\\", "\\\\").replace("\0", "\\0") if "\\" in value or "\0" in value else value
    return [_stored(part) for part in value] if isinstance(value, tuple | list) else value


def restored(value: Any) -> Any:
    """A stored value as it was."""
    if isinstance(value, str) and "\\" in value:
        return "\\".join(part.replace("\\0", "\0") for part in value.split("\\\\"))
    return [restored(part) for part in value] if isinstance(value, list) else value
