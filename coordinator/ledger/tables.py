"""The ledger's tables and all that is asked of them, each declared once: how a row becomes columns and back, and each question as SQL for
a database and as a predicate for rows that it does not have yet.

Columns are a row's fields in their order. Reals are text as `float.hex()`, several with a space between, flags 0 or 1, lists JSON text,
amounts and limits one column per unit. `:name` in a question is its parameter; both databases understand the SQL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_type_hints

from coordinator.ledger.accounts import (
    STEP_PREFIX,
    UNITS,
    Amount,
    AmountLimits,
    AttemptRow,
    BudgetRow,
    CallRow,
    CallState,
    DeviceRow,
    DualMember,
    SetLimits,
    SharedDual,
    StepRow,
    TaskRow,
)
from coordinator.ledger.journal import JournalEntry

Row = TypeVar("Row")


@lru_cache(maxsize=4096)
def _list_text(texts: tuple[str, ...]) -> str:
    return json.dumps(texts)


def _list_of(stored: Any) -> tuple[str, ...]:
    """A list from its JSON text, or from an array where the database has these."""
    return tuple(stored if isinstance(stored, list) else json.loads(stored))


def _flag_of(value: int) -> bool:
    if value not in (0, 1):
        raise ValueError(f"a flag is 0 or 1, not {value}")
    return value == 1


Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]
_CODECS: Mapping[Any, Codec] = {
    float: (float.hex, float.fromhex),
    float | None: (lambda value: "" if value is None else value.hex(), lambda text: float.fromhex(text) if text else None),
    bool: (int, _flag_of),
    CallState: (str, CallState),
    tuple[str, ...]: (_list_text, _list_of),
    tuple[float, ...]: (lambda reals: " ".join(map(float.hex, reals)), lambda text: tuple(map(float.fromhex, text.split()))),
    tuple[tuple[str, int | str | None], ...]: (json.dumps, lambda text: tuple(map(tuple, json.loads(text)))),
}
"""How a field that is no column as it is becomes one, and back."""


class Table(Generic[Row]):
    """One kind of row. `key` names the columns of its primary key, `fixed` those that never change once a row is there.

    `or_changed` follows an INSERT of whole rows: what then happens to a row whose key is there already.
    """

    def __init__(self, name: str, row: type[Row], *key: str, fixed: Collection[str] = ()) -> None:
        self.name = name
        self.key = key
        self.key_of: Callable[[Row], tuple[Any, ...]] = attrgetter(*key) if len(key) > 1 else lambda row: (getattr(row, key[0]),)
        self._row = row
        self._encoders: list[tuple[int, Callable[[Any], Any]]] = []
        self._decoders: list[tuple[int, int, Callable[..., Any]]] = []  # the columns of a field, and what makes it of them
        columns: list[str] = []
        paths: list[str] = []
        for field, kind in get_type_hints(row).items():
            place = len(columns)
            if kind in (Amount, AmountLimits):
                columns += [f"{field.removesuffix('s')}_{unit}" for unit in UNITS]
                paths += [f"{field}.{unit}" for unit in UNITS]
                self._decoders.append((place, place + 3, kind))
                continue
            columns.append(field)
            paths.append(field)
            encode, decode = _CODECS.get(kind, (None, _as_it_is))
            if encode is not None:
                self._encoders.append((place, encode))
            self._decoders.append((place, place + 1, decode))
        self.columns = tuple(columns)
        changed = (f"{column} = excluded.{column}" for column in columns if column not in (*key, *fixed))
        self.or_changed = f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {', '.join(changed)}"
        self._flat: Callable[[Row], tuple[Any, ...]] = attrgetter(*paths)

    def __repr__(self) -> str:
        return self.name

    def values(self, row: Row) -> Sequence[Any]:
        """A row's columns."""
        if not self._encoders:
            return self._flat(row)
        values = list(self._flat(row))
        for place, encode in self._encoders:
            values[place] = encode(values[place])
        return values

    def row(self, columns: Sequence[Any]) -> Row:
        """A row from its columns. Raises ValueError on what only a foreign hand can have written."""
        return self._row(*(make(*columns[first:end]) for first, end, make in self._decoders))


def _as_it_is(value: Any) -> Any:
    return value


_HOLD = tuple(f"hold_{unit}" for unit in UNITS)
BUDGET = Table("budget", BudgetRow, "key")
CALL = Table("call", CallRow, "device", "key", fixed=("fingerprint", "task", "step", "prompt_id"))
ATTEMPT = Table("attempt", AttemptRow, "device", "key", "number", fixed=(*_HOLD, "budgets", "epoch", "lease_ms"))
STEP = Table("step", StepRow, "device", "task", "step")
TASK = Table("task_state", TaskRow, "device", "task")
SHARED_DUAL = Table("shared_dual", SharedDual, "key")
DUAL_MEMBER = Table("dual_member", DualMember, "shared_dual", "device")
DEVICE = Table("device", DeviceRow, "device")
SET_LIMITS = Table("set_limits", SetLimits, "scope")
JOURNAL = Table("journal", JournalEntry, "seq")
TABLES: tuple[Table[Any], ...] = (BUDGET, CALL, ATTEMPT, STEP, TASK, SHARED_DUAL, DUAL_MEMBER, DEVICE, SET_LIMITS)
"""All but the journal, whose entries are never changed."""


@dataclass(frozen=True, slots=True, eq=False)
class RowBucket(Generic[Row]):
    """Where rows in dictionaries are looked for."""

    size: int
    """How many of a question's first arguments say which bucket."""
    of: Callable[[Row], tuple[Any, ...] | None]
    """The bucket of a row, by the same values; None: no question finds it."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Question(Generic[Row]):
    """Some rows of a table: all that SQL `where` finds and `wanted` agrees to."""

    table: Table[Row]
    parameters: Mapping[str, str]
    """Names and SQL types."""
    where: str
    """May end with an order and a limit; whoever asks puts the rows that the database does not have yet in their place."""
    wanted: Callable[..., bool]
    """The same as a predicate, for rows that the database does not have yet."""
    bucket: RowBucket[Row] | None = None
    index: str = ""
    """The one that SQLite has to read, where it would not choose it by itself."""

    def __repr__(self) -> str:
        return f"{self.table} WHERE {self.where}"


def _is_open(row: AttemptRow) -> bool:
    return row.state is CallState.DISPATCHED


def _is_answer(row: CallRow) -> bool:
    """An answer that may be given again: not itself a copy, and its text is still there."""
    return row.state is CallState.COMPLETED and row.result is not None and row.source_key == ""


_STEP = {"device": "text", "task": "text", "step": "bigint"}
_OF_STEP = "device = :device AND task = :task AND step = :step"
_BY_STEP: RowBucket[CallRow] = RowBucket(3, lambda row: (row.device, row.task, row.step))
_OPEN: RowBucket[AttemptRow] = RowBucket(0, lambda row: () if _is_open(row) else None)
_ANSWERED = "state = 'completed' AND result IS NOT NULL AND source_key = ''"

STEP_CALLS = Question(
    CALL, _STEP, _OF_STEP, lambda row, *step: (row.device, row.task, row.step) == step, _BY_STEP, "call_by_step"
)
"""All calls of a step."""
GROUP_CALLS = Question(
    CALL,
    {**_STEP, "prompt_id": "text"},
    f"{_OF_STEP} AND prompt_id = :prompt_id AND (state = 'dispatched' OR ({_ANSWERED}))",
    lambda row, *group: (
        (row.device, row.task, row.step, row.prompt_id) == group and (row.state is CallState.DISPATCHED or _is_answer(row))
    ),
    _BY_STEP,
    "call_by_step",
)
"""A prompt group's calls that run, or have an answer."""
CACHED_CALLS = Question(
    CALL,
    {"cache_key": "text"},
    f"cache_key = :cache_key AND cache_key <> '' AND {_ANSWERED} ORDER BY updated_ms DESC, device DESC, key DESC LIMIT 1",
    lambda row, cache_key: row.cache_key == cache_key and _is_answer(row),
    RowBucket(1, lambda row: (row.cache_key,) if row.cache_key else None),
)
"""The latest answered call under a cache key, among others."""
OLD_RESULTS = Question(
    CALL,
    {"updated_ms": "bigint"},
    "result IS NOT NULL AND updated_ms < :updated_ms",
    lambda row, updated_ms: row.result is not None and row.updated_ms < updated_ms,
)
"""Calls with an answer's text that were last changed before this time."""
CALLS_AFTER = Question(
    CALL,
    {"after_device": "text", "after_key": "text", "most": "bigint"},
    "(device, key) > (:after_device, :after_key) ORDER BY device, key LIMIT :most",
    lambda row, device, key, most: (row.device, row.key) > (device, key),
)
"""A page of calls, sorted by device and key."""
DEVICE_CALLS_AFTER = Question(
    CALL,
    {"of_device": "text", "after_key": "text", "most": "bigint"},
    "device = :of_device AND key > :after_key ORDER BY key LIMIT :most",
    lambda row, device, key, most: row.device == device and row.key > key,
)
"""A page of a device's calls, sorted by key."""
EXPIRED_ATTEMPTS = Question(
    ATTEMPT,
    {"until_ms": "bigint"},
    "state = 'dispatched' AND lease_ms <= :until_ms",
    lambda row, until_ms: _is_open(row) and row.lease_ms <= until_ms,
    _OPEN,
)
"""Open attempts whose lease ended at this time or before."""
ORPHANED_ATTEMPTS = Question(
    ATTEMPT,
    {"of_epoch": "bigint"},
    "state = 'dispatched' AND epoch <> :of_epoch",
    lambda row, epoch: _is_open(row) and row.epoch != epoch,
    _OPEN,
)
"""Open attempts of process runs that are gone; the one that asks is not, nor is another that lives."""
BUDGETS_UNDER = Question(
    BUDGET,
    {"first": "text", "beyond": "text"},
    "key >= :first AND key < :beyond",
    lambda row, first, beyond: first <= row.key < beyond,
)
"""Budgets whose key lies in this range."""
BUDGETS_AFTER = Question(
    BUDGET,
    {"after_key": "text", "with_steps": "boolean", "most": "bigint"},
    f"key > :after_key AND (:with_steps OR substr(key, 1, {len(STEP_PREFIX)}) <> '{STEP_PREFIX}') ORDER BY key LIMIT :most",
    lambda row, key, with_steps, most: row.key > key and (with_steps or not row.key.startswith(STEP_PREFIX)),
)
"""A page of budgets, sorted by key; the call credits of steps only where asked for."""
IDLE_DUAL_MEMBERS = Question(
    DUAL_MEMBER,
    {"before_ms": "bigint"},
    "units > 0 AND seen_ms < :before_ms",
    lambda row, before_ms: row.units > 0 and row.seen_ms < before_ms,
)
"""Members with units that were last seen before this time."""
JOURNAL_AFTER = Question(
    JOURNAL,
    {"after_seq": "bigint", "most": "bigint"},
    "seq > :after_seq ORDER BY seq LIMIT :most",
    lambda row, seq, most: row.seq > seq,
)
"""The journal's entries after number `after_seq`, at most `most` of them; no limit: NULL in PostgreSQL, -1 in SQLite."""
