"""The log of every request that was sent from the device, in the state folder, and its messages for people."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as WireMessage

from edge.core.clock import Clock
from edge.core.errors import NotFound, Withheld
from edge.rpc.v1 import budget_pb2, call_pb2, device_pb2, step_pb2

SentKind = Literal["answering", "learning", "evaluation", "step report", "registration", "inquiry"]
SENT_KINDS: tuple[SentKind, ...] = get_args(SentKind)
_DROPPED = "sent_dropped"
_DAY_S = 86400.0
_MOST_INQUIRIES = 1000
"""Different repeated requests that are known; one that is met again gets an entry of its own."""
_CHECK_EVERY = 256
"""Entries between two checks for what is too old."""
_COLUMNS = "id, at, kind, why, method, answer_id, call_key, length(payload), replaced, times, last_at, outcome"

_ENDED = {
    "completed": "answered",
    "stored": "answered from the coordinator's store, not charged",
    "unsettled": "its end is not known yet",
    "refunded": "failed, not charged",
    "in_doubt": "its end is not known, charged as reserved",
    "never_arrived": "never arrived, not charged",
}
"""What became of a call, by its state; other states are words already."""

_INSERT = """
INSERT INTO sent (at, kind, why, method, answer_id, call_key, payload, replaced, last_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


@dataclass(frozen=True, slots=True)
class EgressRequest:
    """One request to be sent: `payload` is its message as it is sent, `replaced` counts the private values that were replaced in it."""

    kind: SentKind
    why: str
    method: str
    payload: bytes
    answer_id: str = ""
    call_key: str = ""
    replaced: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SentEntry:
    """One request of the log without its content. `times`: how often the same bytes were sent, until `last_at`. `outcome`: why they
    did not leave after all, or "". `ended`: what came of a question that left, as its answer's record has it, or "". Times are seconds
    since the epoch."""

    id: int
    at: float
    kind: str
    why: str
    method: str
    answer_id: str
    call_key: str
    bytes: int
    replaced: Mapping[str, int]
    times: int
    last_at: float
    outcome: str
    ended: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Entries that are no longer kept, the last of them of this time (seconds since the epoch)."""

    entries: int = 0
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Keep:
    """How long, and how many."""

    days: int = 365
    entries: int = 100_000


@dataclass(frozen=True, slots=True)
class SentChoice:
    """Which entries are wanted: at most `limit`, newest first, with an id below `before`, since a time, of a kind, of an answer."""

    limit: int = 50
    before: int | None = None
    since: float | None = None
    kind: str | None = None
    answer_id: str | None = None


class SentReader:
    """Reads the entries."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database

    def listing(self, choice: SentChoice) -> dict[str, Any]:
        """The chosen entries as a JSON object: `sent`, `next_before` (None: there are no older ones), `dropped`, `waiting_reports`."""
        found = self.entries(replace(choice, limit=choice.limit + 1))
        shown = found[: choice.limit]
        return {
            "sent": [entry.to_json() for entry in shown],
            "next_before": shown[-1].id if len(found) > len(shown) else None,
            "dropped": asdict(self.dropped()),
            "waiting_reports": self.waiting_reports(),
        }

    def entries(self, choice: SentChoice) -> list[SentEntry]:
        """The chosen entries, newest first. An answer's has the reason of its record, once there is one."""
        wanted = {
            "id < ?": choice.before,
            "last_at >= ?": choice.since,
            "kind = ?": choice.kind,
            "answer_id = ?": choice.answer_id,
        }
        given = {condition: value for condition, value in wanted.items() if value is not None}
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM sent WHERE {' AND '.join(['1', *given])} ORDER BY id DESC LIMIT ?",  # noqa: S608 - of constants
            (*given.values(), choice.limit),
        )
        return [self._entry(row) for row in rows]

    def entry(self, entry_id: int) -> tuple[SentEntry, bytes]:
        """One entry with the very bytes of its message. Raises NotFound."""
        row = self._db.execute(f"SELECT {_COLUMNS}, payload FROM sent WHERE id = ?", (entry_id,)).fetchone()  # noqa: S608
        if row is None:
            raise NotFound(
                f"nothing with the number {entry_id} is kept of what was sent", hint="edge-agent outbox lists what is kept"
            )
        *about, payload = row
        return self._entry(about), payload

    def dropped(self) -> Dropped:
        """What is no longer kept."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (_DROPPED,)).fetchone()
        return Dropped(**json.loads(row[0])) if row else Dropped()

    def waiting_reports(self) -> list[dict[str, Any]]:
        """Reports of learning steps that the coordinator has not taken, oldest first; `refused`: why it was refused, or ""."""
        names = ("id", "task", "task_step", "planned_prompts", "group_size", "target_rate",
                 "total_units", "help_units", "uncalled_units", "own_rate", "refused")  # fmt: skip
        rows = self._db.execute(f"SELECT {', '.join(names)} FROM waiting_reports ORDER BY id")  # noqa: S608
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _entry(self, row: Sequence[Any]) -> SentEntry:
        number, at, kind, why, method, answer_id, call_key, size, replaced, times, last_at, outcome = row
        found = answer_id and self._db.execute("SELECT record FROM requests WHERE id = ?", (answer_id,)).fetchone()
        record = json.loads(found[0]) if found else {}
        state = "stored" if record.get("cached") else record.get("call_state", "")
        return SentEntry(
            number, at, kind, record.get("reason") or why, method, answer_id, call_key, size, json.loads(replaced), times, last_at,
            outcome, ended="" if outcome else _ENDED.get(state, state),
        )  # fmt: skip


class SentLog:
    """Writes entries."""

    def __init__(self, database: sqlite3.Connection, clock: Clock, keep: Keep) -> None:
        self._db = database
        self._clock = clock
        self._keep = keep
        self._since_check = _CHECK_EVERY
        self._again: Counter[int] = Counter()
        self._inquiries: dict[tuple[str, bytes], int] = {}

    def write_inquiry(self, request: EgressRequest) -> None:
        """Keep a request that is sent again and again: one entry for the same bytes, its repeats counted with the next entry."""
        same = request.method, request.payload
        if same in self._inquiries:
            self._again[self._inquiries[same]] += 1
            return
        if len(self._inquiries) >= _MOST_INQUIRIES:
            self._inquiries.clear()
        self._inquiries[same] = self.write(request)

    def write(self, request: EgressRequest) -> int:
        """Keep a request before it is sent; its number. Raises Withheld when it cannot be written: then it must not be sent."""
        now = self._clock.now()
        try:
            with self._db:
                about = (request.kind, request.why, request.method, request.answer_id, request.call_key)
                replaced = json.dumps(dict(sorted(request.replaced.items())))
                cursor = self._db.execute(_INSERT, (now, *about, request.payload, replaced, now))
                self._write_repeats(now)
                self._drop_old(now)
        except sqlite3.Error as error:
            raise Withheld(f"what leaves the device cannot be written down ({error})", hint="make room on the disk") from error
        return int(cursor.lastrowid or 0)

    def not_delivered(self, number: int, outcome: str) -> None:
        """Note that it was not sent after all, and why; where that cannot be written it stays as if it had been sent."""
        with suppress(sqlite3.Error), self._db:
            self._db.execute("UPDATE sent SET outcome = ? WHERE id = ?", (outcome, number))

    def flush(self) -> None:
        """Write what is still counted; where that fails, only the count of repeated inquiries is lost."""
        with suppress(sqlite3.Error), self._db:
            self._write_repeats(self._clock.now())

    def _write_repeats(self, now: float) -> None:
        rows = [(count, now, number) for number, count in self._again.items()]
        self._db.executemany("UPDATE sent SET times = times + ?, last_at = ? WHERE id = ?", rows)
        self._again.clear()

    def _drop_old(self, now: float) -> None:
        self._since_check += 1
        if self._since_check < _CHECK_EVERY:
            return
        self._since_check = 0
        newest = self._db.execute("SELECT id FROM sent ORDER BY id DESC LIMIT 1 OFFSET ?", (self._keep.entries,)).fetchone()
        condition, values = "last_at < ? OR id <= ?", (now - self._keep.days * _DAY_S, newest[0] if newest else 0)
        row = self._db.execute(f"SELECT count(*), max(at) FROM sent WHERE {condition}", values).fetchone()  # noqa: S608
        if row[0]:
            before = SentReader(self._db).dropped()
            dropped = {"entries": before.entries + row[0], "until": max(before.until, row[1])}
            self._db.execute(f"DELETE FROM sent WHERE {condition}", values)  # noqa: S608
            self._db.execute("REPLACE INTO meta VALUES (?, ?)", (_DROPPED, json.dumps(dropped)))
            self._inquiries.clear()  # what is sent again may have been dropped: it gets a new entry


_MESSAGES: dict[str, type[WireMessage]] = {
    "Complete": call_pb2.CompleteRequest,
    "StreamComplete": call_pb2.CompleteRequest,
    "GetCall": call_pb2.GetCallRequest,
    "CancelCall": call_pb2.CancelCallRequest,
    "GetBudget": budget_pb2.GetBudgetRequest,
    "WatchBudget": budget_pb2.WatchBudgetRequest,
    "RegisterDevice": device_pb2.RegisterDeviceRequest,
    "OpenStep": step_pb2.OpenStepRequest,
    "CloseStep": step_pb2.CloseStepRequest,
}


def entry_json(entry: SentEntry, message: bytes) -> dict[str, Any]:
    """An entry with its content: `payload` as a JSON object (None: not readable any more), `payload_base64` the very bytes."""
    return {
        **entry.to_json(),
        "payload": decoded(entry.method, message),
        "payload_base64": base64.b64encode(message).decode("ascii"),
    }


def decoded(method: str, message: bytes) -> dict[str, Any] | None:
    """A message as a JSON object; None for one of a method, or in a form, that is not known here."""
    kind = _MESSAGES.get(method)
    if kind is None:
        return None
    try:
        value: dict[str, Any] = MessageToDict(kind.FromString(message), preserving_proto_field_name=True)
    except DecodeError:
        return None
    return value
