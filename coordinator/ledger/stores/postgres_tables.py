"""The ledger's rows in PostgreSQL: one statement that fetches what a batch can touch, rows in memory while it runs, one statement that
writes what it changed. Knows the statements; knows nothing of connections, locks or meaning.

The journal's head is the version of the whole ledger: every change moves it. What was fetched under a head is written only if the head
still stands, so a batch sees and leaves the ledger as if it had been alone. PostgreSQL's text cannot hold NUL: backslash escapes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from coordinator.ledger.accounts import (
    STEP_PREFIX,
    Amount,
    AttemptRow,
    BudgetRow,
    CallRow,
    DeviceRow,
    PriceMember,
    PriceRow,
    SetLimits,
    StepRow,
    TaskRow,
)
from coordinator.ledger.journal import GENESIS, JournalEntry
from coordinator.ledger.stores import rows as flat
from coordinator.ledger.stores.memory import MemoryTables, budget_page, call_page
from coordinator.ledger.stores.postgres_reach import Kind, Reach, Want
from coordinator.ledger.stores.rows import (
    attempt_values,
    budget_of,
    budget_values,
    call_of,
    call_values,
    device_of,
    device_values,
    member_values,
    price_of,
    price_values,
    set_limits_of,
    set_limits_values,
    step_of,
    step_values,
    task_of,
    task_values,
)

T = TypeVar("T")
CHANNEL = "edge_ledger"
_AMOUNTS = ("calls", "tokens", "uusd")


def _amounts(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}_{unit}" for name in names for unit in _AMOUNTS)


COLUMNS: Mapping[str, tuple[str, ...]] = {
    "budget": (
        *("key", *_amounts("asked", "limit", "committed", "reserved"), "floor_ppm", "members"),
        *(f"{name}_{unit}" for unit in _AMOUNTS for name in ("floor", "set_aside")),
    ),
    "call": (
        *("device", "key", "fingerprint", "task", "step", "prompt_id", "model", "help_units", "state", "attempts"),
        *(*_amounts("charged"), "input_tokens", "output_tokens", "result", "result_sha256", "finish", "upstream_id"),
        *("reason", "source_key", "cache_key", "updated_ms", "beyond_text"),
    ),
    "attempt": ("device", "key", "number", "state", *_amounts("hold", "charged"), "budgets", "epoch", "lease_ms"),
    "step": (
        *("device", "task", "step", "planned_prompts", "group_size", "dual", "target_rate", "dual_lr", "call_credit", "closed"),
        *("total_units", "help_units", "dual_after", "assist_rate", "discrepancies", "price", "dual_before", "round_units"),
        *("dual_proportional", "dual_window", "dual_ceiling", "own_rate"),
    ),
    "task_state": ("device", "task", "dual", "target_rate", "next_step", "version", *_amounts("charged"), "price", "recent"),
    "price": ("key", "dual", "updates", "units", "recent"),
    "price_member": ("price", "device", "units", "seen_ms"),
    "device": ("device", "agent_version", "tasks", "first_seen_ms", "last_seen_ms", "disabled"),
    "set_limits": ("scope", "changes", "version"),
    "journal": ("seq", "at_ms", "kind", "body", "previous", "hash"),
}
_KEYS = {  # so many of the first columns are the primary key
    "budget": 1,
    "call": 2,
    "attempt": 3,
    "step": 3,
    "task_state": 2,
    "price": 1,
    "price_member": 2,
    "device": 1,
    "set_limits": 1,
}
_ANSWERED = "c.state = 'completed' AND c.result IS NOT NULL AND c.source_key = ''"
_OPEN = "a.state = 'dispatched'"
_ORPHANED = f"""{_OPEN} AND a.epoch <> $0
  AND NOT EXISTS (SELECT 1 FROM replica r WHERE r.epoch = a.epoch AND r.lease_until > clock_timestamp())"""


def _of_attempts(condition: str) -> dict[str, str]:
    """Attempts, and all that resolving one touches."""
    attempts = f"SELECT a.* FROM attempt a WHERE {condition}"
    calls = f"SELECT DISTINCT c.* FROM ({attempts}) a JOIN call c USING (device, key)"
    tasks = f"SELECT t.* FROM task_state t WHERE (t.device, t.task) IN (SELECT device, task FROM ({calls}) c)"
    return {
        "attempt": attempts,
        "call": calls,
        "budget": f"SELECT b.* FROM budget b WHERE b.key IN (SELECT unnest(a.budgets) FROM ({attempts}) a)",
        **_with_price("task_state", tasks),
    }


def _with_price(table: str, rows: str) -> dict[str, str]:
    """Rows that name a shared λ, and these."""
    return {table: rows, "price": f"SELECT p.* FROM price p WHERE p.key IN (SELECT r.price FROM ({rows}) r)"}


def _of_steps(steps: str) -> dict[str, str]:
    """Steps, and all that closing one moves."""
    mine = f"SELECT m.* FROM price_member m WHERE (m.price, m.device) IN (SELECT s.price, s.device FROM ({steps}) s)"
    return {**_with_price("step", steps), "price_member": mine}


def _matching(table: str, names: Sequence[str], kinds: Sequence[str], rest: str = "") -> dict[str, str]:
    arrays = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(kinds, 1))
    joined = " AND ".join(f"c.{name} = w.{name}" for name in names)
    return {table: f"SELECT c.* FROM unnest({arrays}) AS w({', '.join(names)}) JOIN {table} c ON {joined}{rest}"}


_ATTEMPT = "(a.device, a.key, a.number) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[]))"
_STEP = ("device", "task", "step")
_CACHED = f"""SELECT c.* FROM unnest($1::text[]) AS w(cache_key) CROSS JOIN LATERAL (
  SELECT c.* FROM call c WHERE c.cache_key = w.cache_key AND c.cache_key <> '' AND {_ANSWERED}
  ORDER BY c.updated_ms DESC, c.device DESC, c.key DESC LIMIT 1) c"""
_BUDGETS_AFTER = f"""SELECT b.* FROM unnest($1::text[], $2::bigint[], $3::boolean[]) AS w(key, most, steps) CROSS JOIN LATERAL (
  SELECT b.* FROM budget b WHERE b.key > w.key AND (w.steps OR NOT starts_with(b.key, '{STEP_PREFIX}'))
  ORDER BY b.key LIMIT w.most) b"""
_CALLS_AFTER = """SELECT c.* FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) AS w(device, key, most, wanted)
  CROSS JOIN LATERAL (
  SELECT c.* FROM call c WHERE (c.device, c.key) > (w.device, w.key) AND w.wanted IN ('', c.device)
  ORDER BY c.device, c.key LIMIT w.most) c"""
_BUDGETS_UNDER = """SELECT b.* FROM unnest($1::text[]) AS w(prefix) JOIN budget b
  ON b.key >= w.prefix AND b.key < left(w.prefix, -1) || chr(ascii(right(w.prefix, 1)) + 1)"""
_IDLE = "SELECT m.* FROM price_member m WHERE m.units > 0 AND m.seen_ms < (SELECT max(w) FROM unnest($1::bigint[]) w)"
_QUESTIONS: Mapping[Kind, dict[str, str]] = {
    Kind.CALL: _matching("call", ("device", "key"), ("text", "text")),
    Kind.GROUP: _matching(
        "call",
        (*_STEP, "prompt_id"),
        ("text", "text", "bigint", "text"),
        f" AND c.step >= 0 AND (c.state = 'dispatched' OR ({_ANSWERED}))",
    ),
    Kind.CACHED: {"call": _CACHED},
    Kind.STEP_CALLS: _matching("call", _STEP, ("text", "text", "bigint"), " AND c.step >= 0"),
    Kind.ATTEMPT: _of_attempts(_ATTEMPT),
    Kind.EXPIRED: _of_attempts(f"{_OPEN} AND a.lease_ms <= (SELECT max(w) FROM unnest($1::bigint[]) w)"),
    Kind.ORPHANED: {**_of_attempts(_ORPHANED), "orphan": f"SELECT a.device, a.key, a.number FROM attempt a WHERE {_ORPHANED}"},
    Kind.BUDGET: _matching("budget", ("key",), ("text",)),
    Kind.BUDGETS_UNDER: {"budget": _BUDGETS_UNDER},
    Kind.BUDGETS_AFTER: {"budget": _BUDGETS_AFTER},
    Kind.CALLS_AFTER: {"call": _CALLS_AFTER},
    Kind.STEP: _of_steps(_matching("step", _STEP, ("text", "text", "bigint"))["step"]),
    Kind.TASK: _with_price("task_state", _matching("task_state", ("device", "task"), ("text", "text"))["task_state"]),
    Kind.PRICE: _matching("price", ("key",), ("text",)),
    Kind.PRICE_MEMBER: _with_price(
        "price_member", _matching("price_member", ("price", "device"), ("text", "text"))["price_member"]
    ),
    Kind.IDLE_PRICE_MEMBERS: _with_price("price_member", _IDLE),
    Kind.DEVICE: _matching("device", ("device",), ("text",)),
    Kind.SET_LIMITS: {"set_limits": "SELECT * FROM set_limits"},
    Kind.OLD_RESULTS: {
        "call": "SELECT c.* FROM call c WHERE c.result IS NOT NULL AND c.updated_ms < (SELECT max(w) FROM unnest($1::bigint[]) w)"
    },
    Kind.ALL_BUDGETS: {"budget": "SELECT * FROM budget"},
    Kind.ALL_TASKS: _with_price("task_state", "SELECT * FROM task_state"),
    Kind.ALL_STEPS: _of_steps("SELECT * FROM step"),
    Kind.ALL_PRICES: {"price": "SELECT * FROM price"},
    Kind.ALL_PRICE_MEMBERS: _with_price("price_member", "SELECT * FROM price_member"),
    Kind.ALL_DEVICES: {"device": "SELECT * FROM device"},
    Kind.ALL_CALLS: {"call": "SELECT * FROM call"},
    Kind.ALL_ATTEMPTS: {"attempt": "SELECT * FROM attempt"},
    Kind.JOURNAL: {
        "journal": """SELECT j.* FROM unnest($1::bigint[], $2::bigint[]) AS w(after, most)
          CROSS JOIN LATERAL (SELECT * FROM journal WHERE seq > w.after ORDER BY seq LIMIT w.most) j"""
    },
}
_ARITY = {
    **dict.fromkeys((Kind.CACHED, Kind.EXPIRED, Kind.BUDGET, Kind.BUDGETS_UNDER, Kind.OLD_RESULTS), 1),
    **dict.fromkeys((Kind.PRICE, Kind.IDLE_PRICE_MEMBERS, Kind.DEVICE), 1),
    **dict.fromkeys((Kind.CALL, Kind.TASK, Kind.PRICE_MEMBER, Kind.JOURNAL), 2),
    **dict.fromkeys((Kind.STEP_CALLS, Kind.ATTEMPT, Kind.STEP, Kind.BUDGETS_AFTER), 3),
    **dict.fromkeys((Kind.GROUP, Kind.CALLS_AFTER), 4),
}


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL text and its values. Texts repeat, so that the driver can keep them prepared."""

    sql: str
    values: tuple[Any, ...]


@dataclass(slots=True)
class Fetched:
    """What was read under one head: the rows, by table, and the questions they answer."""

    head: tuple[int, str] = (0, GENESIS)
    known: set[Want] = field(default_factory=set)
    rows: dict[str, list[Sequence[Any]]] = field(default_factory=dict)

    def add(self, wants: Reach, record: Sequence[Any], tables: Sequence[str]) -> None:
        """Take in the answer to `read_statement(wants)`."""
        for table, text in zip(tables, record, strict=True):
            for row in msgspec.json.decode(text) if text else ():
                self.rows.setdefault(table, []).append(
                    tuple(map(told, row.values())) if table != "journal" else tuple(row.values())
                )
        self.known |= wants


class Missing(Exception):
    """A transaction asked for a row that was not fetched."""

    def __init__(self, want: Want) -> None:
        self.want = want


def read_statement(wants: Reach, epoch: int) -> tuple[Statement, tuple[str, ...]]:
    """One SELECT that gives the head's number and hash and, per returned table name, a JSON array of rows."""
    by_kind: dict[Kind, list[Want]] = {}
    for want in sorted(wants, key=repr):
        by_kind.setdefault(want[0], []).append(want)
    values: list[Any] = []
    parts, tables = ["h.seq", "h.hash"], []
    for kind in sorted(by_kind):
        first = len(values)
        arity = _ARITY.get(kind, 0)
        values += [[_stored(want[place]) for want in by_kind[kind]] for place in range(1, arity + 1)]
        for table, sql in _QUESTIONS[kind].items():
            parts.append(f"(SELECT json_agg(x) FROM ({_numbered(sql, first, arity, epoch)}) x)")
            tables.append(table)
    return Statement(f"SELECT {', '.join(parts)} FROM journal_head h", tuple(values)), tuple(tables)


def _numbered(sql: str, first: int, arity: int, epoch: int) -> str:
    """A question's own $1, $2, ... as the statement's; $0 is this process's epoch."""
    for place in range(arity, 0, -1):
        sql = sql.replace(f"${place}::", f"${first + place}::")
    return sql.replace("$0", str(epoch))


class PostgresTables(MemoryTables):
    """The ledger's `Tables` over fetched rows. A question that was not fetched raises Missing; `changes` tells what is to be written."""

    def __init__(self, fetched: Fetched) -> None:
        super().__init__()
        self._fetched = fetched
        self._known = set(fetched.known)
        self._stored_journal = [JournalEntry(*row) for row in fetched.rows.get("journal", ())]
        self._load(fetched.rows)
        self.keep()
        self.changed.clear()
        self._loaded: dict[str, dict[Any, Any]] = {table: dict(rows) for table, rows in self._by_table().items()}

    def _load(self, rows: Mapping[str, list[Sequence[Any]]]) -> None:
        for row in rows.get("budget", ()):
            self.put_budget(budget_of(row))
        for row in rows.get("call", ()):
            self.put_call(call := call_of(row))
            self._known.add((Kind.CALL, call.device, call.key))
        for row in rows.get("attempt", ()):
            self.put_attempt(attempt := attempt_of(row))
            self._know_all_of(attempt)
        for row in rows.get("step", ()):
            self.put_step(step := step_of(row))
            self._known |= {(Kind.PRICE, step.price), (Kind.PRICE_MEMBER, step.price, step.device)}
        for row in rows.get("task_state", ()):
            self.put_task(task := task_of(row))
            self._known |= {(Kind.TASK, task.device, task.task), (Kind.PRICE, task.price)}
        self._load_fleet(rows)

    def _load_fleet(self, rows: Mapping[str, list[Sequence[Any]]]) -> None:
        for row in rows.get("price", ()):
            self.put_price(price_of(row))
        for row in rows.get("price_member", ()):
            self.put_price_member(member := PriceMember(*row))
            self._known.add((Kind.PRICE, member.price))
        for row in rows.get("device", ()):
            self.put_device(device_of(row))
        for row in rows.get("set_limits", ()):
            self.put_set_limits(set_limits_of(row))

    def _know_all_of(self, attempt: AttemptRow) -> None:
        self._known.add((Kind.ATTEMPT, attempt.device, attempt.key, attempt.number))
        self._known |= {(Kind.BUDGET, key) for key in attempt.budgets}

    def _need(self, *want: Any) -> None:
        if want not in self._known:
            raise Missing(want)

    def _by_table(self) -> dict[str, dict[Any, Any]]:
        tables: dict[str, dict[Any, Any]] = {"budget": self.budgets, "call": self.calls, "attempt": self.attempts}
        fleet: dict[str, dict[Any, Any]] = {"price": self.prices, "price_member": self.price_members, "device": self.devices}
        return {**tables, "step": self.steps, "task_state": self.tasks, **fleet, "set_limits": self.limits}

    def changes(self) -> dict[str, list[tuple[Any, ...]]]:
        """Rows to be written, by table, as values in the order of COLUMNS."""
        found: dict[str, list[tuple[Any, ...]]] = {}
        for table, rows in self._by_table().items():
            before = self._loaded[table]
            if changed := [_VALUES[table](row) for key, row in sorted(rows.items()) if before.get(key) != row]:
                found[table] = changed
        if self.journal:
            found["journal"] = [
                (entry.seq, entry.at_ms, entry.kind, entry.body, entry.previous, entry.hash) for entry in self.journal
            ]
        return found

    def call(self, device: str, key: str) -> CallRow | None:
        """A call by its key."""
        found = super().call(device, key)
        if found is None and not any(want[:3] == (Kind.ATTEMPT, device, key) for want in self._fetched.known):
            self._need(Kind.CALL, device, key)
        return found

    def group_call(self, device: str, task: str, step: int, prompt_id: str) -> CallRow | None:
        """A prompt group's running or answered call."""
        self._need(Kind.GROUP, device, task, step, prompt_id)
        return super().group_call(device, task, step, prompt_id)

    def cached_call(self, cache_key: str) -> CallRow | None:
        """The latest answered call under a cache key."""
        self._need(Kind.CACHED, cache_key)
        return super().cached_call(cache_key)

    def step_calls(self, device: str, task: str, step: int) -> Sequence[CallRow]:
        """All calls of a step."""
        self._need(Kind.STEP_CALLS, device, task, step)
        return super().step_calls(device, task, step)

    def attempt(self, device: str, key: str, number: int) -> AttemptRow | None:
        """One attempt."""
        found = super().attempt(device, key, number)
        if found is None:
            self._need(Kind.ATTEMPT, device, key, number)
        return found

    def expired_attempts(self, lease_until_ms: int) -> Sequence[AttemptRow]:
        """Open attempts whose lease ended."""
        self._need(Kind.EXPIRED, lease_until_ms)
        return super().expired_attempts(lease_until_ms)

    def orphaned_attempts(self, epoch: int) -> Sequence[AttemptRow]:
        """Open attempts of processes that are gone: those the database said so of and that nothing has resolved since."""
        self._need(Kind.ORPHANED)
        gone = set(self._fetched.rows.get("orphan", ()))
        return self._open_attempts(lambda row: (row.device, row.key, row.number) in gone)

    def budget(self, key: str) -> BudgetRow | None:
        """A budget."""
        found = super().budget(key)
        if found is None:
            self._need(Kind.BUDGET, key)
        return found

    def budgets_under(self, prefix: str) -> Sequence[BudgetRow]:
        """Budgets whose key begins with this."""
        self._need(Kind.BUDGETS_UNDER, prefix)
        return super().budgets_under(prefix)

    def hold(self, key: str, amount: Amount, from_aside: Amount) -> bool:
        """Reserve if it fits."""
        return self.budget(key) is not None and super().hold(key, amount, from_aside)

    def resolve(self, key: str, hold: Amount, charge: Amount, to_aside: Amount) -> None:
        """Turn a hold into a charge."""
        self.budget(key)
        super().resolve(key, hold, charge, to_aside)

    def step(self, device: str, task: str, step: int) -> StepRow | None:
        """A step."""
        found = super().step(device, task, step)
        if found is None:
            self._need(Kind.STEP, device, task, step)
        return found

    def task(self, device: str, task: str) -> TaskRow | None:
        """A task."""
        found = super().task(device, task)
        if found is None:
            self._need(Kind.TASK, device, task)
        return found

    def price(self, key: str) -> PriceRow | None:
        """A shared λ."""
        found = super().price(key)
        if found is None:
            self._need(Kind.PRICE, key)
        return found

    def price_member(self, price: str, device: str) -> PriceMember | None:
        """A device's part in a fleet's price."""
        found = super().price_member(price, device)
        if found is None:
            self._need(Kind.PRICE_MEMBER, price, device)
        return found

    def idle_price_members(self, seen_ms: int) -> Sequence[PriceMember]:
        """Members last seen before this time."""
        self._need(Kind.IDLE_PRICE_MEMBERS, seen_ms)
        return super().idle_price_members(seen_ms)

    def device(self, device: str) -> DeviceRow | None:
        """A registered device."""
        found = super().device(device)
        if found is None:
            self._need(Kind.DEVICE, device)
        return found

    def set_limits(self) -> Sequence[SetLimits]:
        """What was set at run time."""
        self._need(Kind.SET_LIMITS)
        return super().set_limits()

    def results_before(self, updated_ms: int) -> Sequence[CallRow]:
        """Answered calls last changed before this time."""
        self._need(Kind.OLD_RESULTS, updated_ms)
        return super().results_before(updated_ms)

    def all_budgets(self) -> Iterable[BudgetRow]:
        """All budgets."""
        self._need(Kind.ALL_BUDGETS)
        return super().all_budgets()

    def budgets_after(self, key: str, limit: int, *, with_steps: bool) -> Sequence[BudgetRow]:
        """A page of budgets."""
        self._need(Kind.BUDGETS_AFTER, key, limit, with_steps)
        return budget_page(super().all_budgets(), key, limit, with_steps)

    def calls_after(self, device: str, key: str, limit: int, *, only_device: str) -> Sequence[CallRow]:
        """A page of calls."""
        self._need(Kind.CALLS_AFTER, device, key, limit, only_device)
        return call_page(super().all_calls(), device, key, limit, only_device)

    def all_calls(self) -> Iterable[CallRow]:
        """All calls."""
        self._need(Kind.ALL_CALLS)
        return super().all_calls()

    def all_attempts(self) -> Iterable[AttemptRow]:
        """All attempts."""
        self._need(Kind.ALL_ATTEMPTS)
        return super().all_attempts()

    def all_steps(self) -> Iterable[StepRow]:
        """All steps."""
        self._need(Kind.ALL_STEPS)
        return super().all_steps()

    def all_tasks(self) -> Iterable[TaskRow]:
        """All tasks."""
        self._need(Kind.ALL_TASKS)
        return super().all_tasks()

    def all_prices(self) -> Iterable[PriceRow]:
        """All shared λ."""
        self._need(Kind.ALL_PRICES)
        return super().all_prices()

    def all_price_members(self) -> Iterable[PriceMember]:
        """All members of fleets' prices."""
        self._need(Kind.ALL_PRICE_MEMBERS)
        return super().all_price_members()

    def all_devices(self) -> Iterable[DeviceRow]:
        """All devices."""
        self._need(Kind.ALL_DEVICES)
        return super().all_devices()

    def journal_after(self, seq: int, limit: int | None = None) -> Iterable[JournalEntry]:
        """Entries after this one; those of this batch come last."""
        self._need(Kind.JOURNAL, seq, limit)
        entries = [entry for entry in (*self._stored_journal, *self.journal) if entry.seq > seq]
        unique = {entry.seq: entry for entry in entries}
        return [unique[number] for number in sorted(unique)][:limit]

    def journal_head(self) -> tuple[int, str]:
        """The last entry's number and hash."""
        return super().journal_head() if self.journal else self._fetched.head


def write_statement(tables: PostgresTables, head: tuple[int, str]) -> Statement | None:
    """One statement that moves the head and writes all changes, if the head still stands: gives 1, else 0. None: nothing to write."""
    changes = tables.changes()
    if not changes:
        return None
    last, last_hash = tables.journal_head()
    values: list[Any] = [head[0], last, last_hash]
    parts = ["head AS (UPDATE journal_head SET seq = $2, hash = $3 WHERE seq = $1 RETURNING 1)"]
    for table, rows in changes.items():
        values.append(_json(table, rows))
        parts.append(f"new_{table} AS ({_upsert(table, len(values))})")
    values.append([_notice(pair) for pair in sorted(tables.changed)])
    told = f"SELECT count(pg_notify('{CHANNEL}', n)) FROM head, unnest(${len(values)}::text[]) n"
    return Statement(f"WITH {', '.join(parts)} SELECT (SELECT count(*) FROM head), ({told})", tuple(values))


def _upsert(table: str, place: int) -> str:
    names, keys = COLUMNS[table], COLUMNS[table][: _KEYS.get(table, 0)]
    rows = (
        f"SELECT {', '.join(f'r.{name}' for name in names)} FROM head, json_populate_recordset(NULL::{table}, ${place}::json) r"
    )
    insert = f"INSERT INTO {table} ({', '.join(names)}) {rows}"
    if not keys:
        return insert
    changed = ", ".join(f"{name} = excluded.{name}" for name in names[len(keys) :])
    return f"{insert} ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changed}"


def _json(table: str, rows: Iterable[Sequence[Any]]) -> str:
    stored: Callable[[Any], Any] = _stored if table != "journal" else lambda value: value
    objects = [dict(zip(COLUMNS[table], map(stored, row), strict=True)) for row in rows]
    return msgspec.json.encode(objects).decode()


def _notice(pair: tuple[str, str]) -> str:
    """A notification's payload; a pair too long for one says that any may have changed."""
    text = msgspec.json.encode(pair).decode()
    return text if len(text.encode()) < 7_900 else '["",""]'


def _stored(value: Any) -> Any:
    """A value as PostgreSQL can hold it."""
    if isinstance(value, str):
        return value.replace("\\", "\\\\").replace("\0", "\\0") if "\\" in value or "\0" in value else value
    return [_stored(part) for part in value] if isinstance(value, tuple | list) else value


def told(value: Any) -> Any:
    """A stored value as it was."""
    if isinstance(value, str) and "\\" in value:
        return "\\".join(part.replace("\\0", "\0") for part in value.split("\\\\"))
    return [told(part) for part in value] if isinstance(value, list) else value


def attempt_of(row: Sequence[Any]) -> AttemptRow:
    """An attempt from its columns, its budgets being a list."""
    return flat.attempt_of((*row[:10], json.dumps(row[10]), *row[11:]))


def _attempt_values(row: AttemptRow) -> tuple[Any, ...]:
    values = attempt_values(row)
    return (*values[:10], row.budgets, *values[11:])


_VALUES: Mapping[str, Callable[[Any], tuple[Any, ...]]] = {
    "budget": budget_values,
    "call": call_values,
    "attempt": _attempt_values,
    "step": step_values,
    "task_state": task_values,
    "price": price_values,
    "price_member": member_values,
    "device": device_values,
    "set_limits": set_limits_values,
}
