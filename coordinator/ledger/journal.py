"""The journal: an append-only list of what happened, chained by sha256, and what an entry has of a row. Knows nothing of storage.

Each entry's hash covers its content and the hash of the entry before it, over canonical JSON (sorted keys, no spaces, ASCII, no floats:
real numbers are written as `float.hex()`). Changing, removing or inserting an entry anywhere but at the end breaks every later hash.
Of a row an entry has all that `verify` rebuilds it from; what is as it is by default is mostly left out.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, fields

from coordinator.ledger.accounts import AttemptRow, BudgetRow, CallRow, CallState, StepRow, TaskRow

GENESIS = "0" * 64
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, default=astuple).encode
_encode_quickly = msgspec.json.Encoder(order="sorted").encode


class JournalEntry(Struct, frozen=True, gc=False):
    """One line of the journal."""

    seq: int
    at_ms: int
    """Milliseconds since the epoch."""
    kind: str
    body: str
    """Canonical JSON text."""
    previous: str
    hash: str

    def data(self) -> dict[str, Any]:
        """The body as an object. Raises ValueError when it is not JSON."""
        return dict(json.loads(self.body))

    def to_json(self) -> str:
        """The entry as one line of JSON, body unpacked."""
        return canonical_json(
            {
                "seq": self.seq,
                "at_ms": self.at_ms,
                "kind": self.kind,
                "body": self.data(),
                "previous": self.previous,
                "hash": self.hash,
            }
        )


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, ASCII. Raises ValueError on what is not a number."""
    return _encode(value)


def _quick_json(value: Any) -> str:
    """The same text for a value without reals, in a tenth of the time."""
    try:
        quick = _encode_quickly(value)
    except UnicodeEncodeError:  # half a surrogate pair
        return _encode(value)
    return quick.decode() if quick.isascii() and b"\x7f" not in quick else _encode(value)


def entry_hash(seq: int, at_ms: int, kind: str, body: str, previous: str) -> str:
    """sha256 over sequence number, time, kind, body and the previous hash, as hex."""
    return hashlib.sha256(_quick_json([seq, at_ms, kind, body, previous]).encode("ascii")).hexdigest()


def next_entry(last_seq: int, last_hash: str, at_ms: int, kind: str, data: dict[str, Any]) -> JournalEntry:
    """The entry that follows (last_seq, last_hash); the first one follows (0, GENESIS)."""
    body = canonical_json(data) if float in set(map(type, data.values())) else _quick_json(data)
    return JournalEntry(last_seq + 1, at_ms, kind, body, last_hash, entry_hash(last_seq + 1, at_ms, kind, body, last_hash))


_DEFAULTS: dict[type[Struct], dict[str, Any]] = {
    kind: {field.name: field.default for field in fields(kind)} for kind in (StepRow, TaskRow)
}


def call_data(call: CallRow) -> dict[str, Any]:
    """A call that is reserved, or answered at once."""
    data = {**call.content(), "cache_key": call.cache_key}
    return {**data, **answer_data(call)} if call.state is CallState.COMPLETED else data


def answer_data(call: CallRow) -> dict[str, Any]:
    """An answer, by its digest."""
    tokens = {"input_tokens": call.input_tokens, "output_tokens": call.output_tokens}
    return {**tokens, "result_sha256": call.result_sha256, "finish": call.finish}


def attempt_data(attempt: AttemptRow) -> dict[str, Any]:
    """An attempt and what it holds."""
    hold = {"attempt": attempt.number, "hold": attempt.hold, "budgets": attempt.budgets}
    return {**hold, "epoch": attempt.epoch, "lease_ms": attempt.lease_ms}


def limits_data(row: BudgetRow) -> dict[str, Any]:
    """A budget's limits, and its floors where it is shared fairly."""
    data = {"budget": row.key, "asked": row.asked, "limits": row.limits}
    if row.floor_ppm == 0 and row.members == 0:
        return data
    return {**data, "floor_ppm": row.floor_ppm, "members": row.members, "floor": row.floor, "set_aside": row.set_aside}


def task_data(row: TaskRow) -> dict[str, Any]:
    """A task at its first contact."""
    return _data(row, "device task dual target_rate", "shared_dual")


def open_data(row: StepRow) -> dict[str, Any]:
    """A step that is opened, and the rule of λ."""
    names = "device task step planned_prompts group_size call_credit dual target_rate dual_lr"
    return _data(row, names, "shared_dual dual_proportional dual_window dual_ceiling")


def close_data(row: StepRow) -> dict[str, Any]:
    """A step that is closed. `dual_before` is the λ it was opened with, unless others move it too."""
    names = "device task step total_units help_units dual_after assist_rate discrepancies"
    return _data(row, f"{names} {'dual_before round_units' if row.shared_dual else ''}", "own_rate uncalled_units")


def _data(row: Struct, names: str, unless_default: str) -> dict[str, Any]:
    defaults = _DEFAULTS[type(row)]
    others = [name for name in unless_default.split() if getattr(row, name) != defaults[name]]
    values = {name: getattr(row, name) for name in (*names.split(), *others)}
    return {name: value.hex() if isinstance(value, float) else value for name, value in values.items()}
