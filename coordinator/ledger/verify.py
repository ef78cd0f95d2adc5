"""Proof from the journal: every balance, call, attempt, step and λ is recomputed from it and compared with the tables, bit for bit.
Balances, holds, floors, versions and call states have their own arithmetic here, so that a mistake of the ledger is not repeated. Two
things are shared: the hash of an entry, and the rule of λ (`edge.dagrpo.dual`). λ has to agree in every bit, so a second version would copy
the same floating-point operations in the same order. Of λ this proves that the rule was applied to the right state, rates and terms. The
rule itself is checked by tests/paper, and by tools/simulate/faults/duals.py, which has its own.

What it cannot see: a journal cut at its end together with tables set back to match. Note `head_hash` elsewhere to see that too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Protocol, TextIO, TypeVar

from msgspec import Struct

from coordinator.ledger.accounts import Amount, AmountLimits, CallRow
from coordinator.ledger.journal import GENESIS, JournalEntry, entry_hash
from coordinator.ledger.tables import (
    ATTEMPT,
    BUDGET,
    CALL,
    DEVICE,
    DUAL_MEMBER,
    SET_LIMITS,
    SHARED_DUAL,
    STEP,
    TABLES,
    TASK,
    Table,
)
from edge.core.formatting import counted
from edge.core.units import BUDGET_UNITS
from edge.dagrpo.dual import DualState, ProportionalIntegral, proportional_integral_step, shared_lr

T = TypeVar("T")
MOST_DIFFERENCES = 100
MOST_ROUND_UNITS = 1_048_576
ZERO = (0.0).hex()
NO_CEILING = float("inf").hex()
Row = dict[str, Any]
Units = list[int]


class LedgerRows(Protocol):
    """All rows of a ledger at one moment; every store has these: SqliteRows, PostgresRows, MemoryRows."""

    def all(self, table: Table[T]) -> Iterable[T]:
        """All rows of a table, sorted by key."""
        ...

    def journal_after(self, seq: int, limit: int | None = None) -> Iterable[JournalEntry]:
        """Entries in order."""
        ...


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was checked and what differs."""

    entries: int
    head_hash: str
    budgets: int
    calls: int
    attempts: int
    open_attempts: int
    steps: int
    dual_updates: int
    tasks: int
    difference_count: int
    differences: tuple[str, ...]
    """At most MOST_DIFFERENCES lines of the `difference_count` found."""

    @property
    def ok(self) -> bool:
        """Whether everything agrees."""
        return self.difference_count == 0

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {"ok": self.ok, **asdict(self)}

    def lines(self) -> list[str]:
        """The report for people: the differences, then one line that sums up."""
        counts = (
            f"{counted(self.entries, 'journal entry', 'journal entries')}, {counted(self.budgets, 'budget')}, "
            f"{counted(self.calls, 'call')}, {counted(self.attempts, 'attempt')} ({self.open_attempts} open), "
            f"{counted(self.steps, 'step')}, {counted(self.dual_updates, 'dual update')}, {counted(self.tasks, 'task')}"
        )
        if self.ok:
            return [f"verified: {counts}; all equal, bit for bit; head {self.head_hash[:16]}"]
        return [*self.differences, f"DIFFERS in {counted(self.difference_count, 'place')}: {counts}"]


def verify_file(path: str | os.PathLike[str]) -> VerifyReport:
    """Verify a SQLite ledger, also while a coordinator writes it. Raises StateError when there is none or it cannot be read."""
    from coordinator.ledger.stores.sqlite import open_read_only

    with open_read_only(path) as rows:
        return verify(rows)


def export(rows: LedgerRows, stream: TextIO, after: int = 0) -> int:
    """Write the journal's entries above number `after` as JSON lines, for audits; returns how many."""
    return write_entries(rows.journal_after(after), stream)


def write_entries(entries: Iterable[JournalEntry], stream: TextIO) -> int:
    """Write entries as JSON lines; returns how many."""
    return sum(stream.write(entry.to_json() + "\n") > 0 for entry in entries)


def verify(rows: LedgerRows) -> VerifyReport:
    """Replay the journal and compare. Never raises on bad data: what is wrong is in the report."""
    findings = Findings()
    replay = JournalReplay(findings)
    entries, head = _replay_all(rows.journal_after(0), replay, findings)
    for table in TABLES:
        _compare(table, replay.rows[table], _plain_rows(table, rows.all(table), findings), findings)
    return VerifyReport(
        entries=entries,
        head_hash=head,
        budgets=len(replay.budgets),
        calls=len(replay.calls),
        attempts=len(replay.attempts),
        open_attempts=sum(row["state"] == "dispatched" for row in replay.attempts.values()),
        steps=len(replay.steps),
        dual_updates=replay.dual_updates,
        tasks=len(replay.tasks),
        difference_count=findings.count,
        differences=tuple(findings.lines),
    )


@dataclass(slots=True)
class Findings:
    """Collects what is wrong."""

    count: int = 0
    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Another difference."""
        self.count += 1
        if len(self.lines) < MOST_DIFFERENCES:
            self.lines.append(line)

    def unless(self, holds: bool, line: str) -> None:
        """A difference unless the condition holds."""
        if not holds:
            self.add(line)


class JournalReplay:
    """The tables as the journal has them, as plain rows. `apply` takes one entry after the other."""

    def __init__(self, findings: Findings) -> None:
        self.rows: dict[Table[Any], dict[Any, Row]] = {table: {} for table in TABLES}
        self.budgets, self.calls, self.attempts, self.steps = (self.rows[table] for table in (BUDGET, CALL, ATTEMPT, STEP))
        self.tasks, self.devices, self.set_limits = (self.rows[table] for table in (TASK, DEVICE, SET_LIMITS))
        self.shared_duals, self.dual_members = self.rows[SHARED_DUAL], self.rows[DUAL_MEMBER]
        self.dual_updates = 0
        self._shares: dict[str, list[str]] = {}
        self._findings = findings
        self._where = ""
        self._at_ms = 0
        self._kinds: dict[str, Callable[[Row], None]] = {
            "epoch": lambda data: None,
            "limits": self._limits,
            "task": self._task,
            "reserve": self._reserve,
            "copy": self._copy,
            "completed": self._completed,
            "refunded": lambda data: self._resolve(data, "refunded", [0, 0, 0]),
            "failed": lambda data: self._resolve(data, "failed", None),
            "in_doubt": lambda data: self._resolve(data, "in_doubt", self._attempt_of(data)["hold"]),
            "open_step": self._open_step,
            "close_step": self._close_step,
            "purge": self._purge,
            "leave": self._leave,
            "device": self._device,
            "set_limits": self._set_limits,
        }

    def apply(self, entry: JournalEntry) -> None:
        """Take in one entry."""
        self._where, self._at_ms = f"journal entry {entry.seq} ({entry.kind})", entry.at_ms
        try:
            self._kinds[entry.kind](entry.data())
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            self._findings.add(f"{self._where}: does not fit what came before it ({type(error).__name__} {error})")

    def _require(self, holds: bool, what: str) -> None:
        self._findings.unless(holds, f"{self._where}: {what}")

    def _limits(self, data: Row) -> None:
        row = self.budgets.setdefault(data["budget"], _new_budget(data["budget"]))
        used = _sum(row["committed"], row["reserved"])
        expected = [None if asked is None else max(asked, most) for asked, most in zip(data["asked"], used, strict=True)]
        self._require(data["limits"] == expected, f"limits {data['limits']} where {expected} follow")
        row["asked"], row["limits"] = data["asked"], data["limits"]
        self._floors(row, data)

    def _set_limits(self, data: Row) -> None:
        follows = 1 + max((row["version"] for row in self.set_limits.values()), default=0)
        self._require(data["version"] == follows, f"version {data['version']} where {follows} follows")
        self.set_limits[data["scope"]] = dict(data)

    def _check_asked(self, row: Row) -> None:
        """A hold follows what was set at run time, whatever the configuration of the replica that took it."""
        changes = dict(self.set_limits.get(row["key"].split("@")[0].split("[")[0], {}).get("changes", ()))
        for place, name in enumerate(unit.limit for unit in BUDGET_UNITS):
            holds = name not in changes or row["asked"][place] == changes[name]
            self._require(holds, f"budget {row['key']} is held to {row['asked'][place]} where {name} was set otherwise")

    def _floors(self, row: Row, data: Row) -> None:
        """What each member of a budget that is shared fairly can rely on, reported by a change of its terms."""
        shares = self._shares.setdefault(row["key"], [])
        if "joined" in data:
            share = _share_key(row["key"], data["joined"])
            self._require(share not in self.budgets, f"{data['joined']} is a member already")
            self.budgets[share] = _new_budget(share)
            shares.append(share)
        ppm, members = data.get("floor_ppm", 0), data.get("members", 0)
        self._require(members == len(shares), f"{members} members where {len(shares)} joined")
        used = _sum(row["committed"], row["reserved"])
        floor, aside = [], []
        for unit, limit in enumerate(row["limits"]):
            members_used = [self.budgets[key]["committed"][unit] + self.budgets[key]["reserved"][unit] for key in shares]
            target = limit * ppm // (members * 1_000_000) if ppm and members and limit is not None else 0
            floor.append(_greatest_floor(target, members_used, 0 if limit is None else limit - used[unit]))
            aside.append(sum(max(0, floor[-1] - own) for own in members_used))
        written = [data.get("floor", [0, 0, 0]), data.get("set_aside", [0, 0, 0])]
        self._require(written == [floor, aside], f"floor and set-aside {written} where {[floor, aside]} follow")
        row.update(floor_ppm=ppm, members=members, floor=floor, set_aside=aside)
        self._check_limits(row)

    def _task(self, data: Row) -> None:
        key = (data["device"], data["task"])
        self._require(key not in self.tasks, "the task exists already")
        terms = {"dual": data["dual"], "target_rate": data["target_rate"], "next_step": 0, "version": 0, "charged": [0, 0, 0]}
        shared_key = data.get("shared_dual", "")
        self.tasks[key] = {"device": data["device"], "task": data["task"], **terms, "shared_dual": shared_key, "recent": []}
        self._begin_shared_dual(shared_key, data)

    def _begin_shared_dual(self, shared_key: str, data: Row) -> None:
        """A shared λ begins with the first task that is held to it."""
        if data.get("begins", False):
            self._require(
                shared_key != "" and shared_key not in self.shared_duals, f"the shared λ {shared_key!r} begins, and had begun"
            )
            self.shared_duals[shared_key] = _new_shared_dual(shared_key, data["dual"], [])
        else:
            self._require(shared_key == "" or shared_key in self.shared_duals, f"the shared λ {shared_key!r} did not begin")

    def _reserve(self, data: Row) -> None:
        call_id, number = (data["device"], data["key"]), data["attempt"]
        before = self.calls.get(call_id)
        self._require(before is None or before["state"] == "refunded", "the call was not free to be tried")
        self._require(number == (before["attempts"] if before else 0) + 1, f"attempt {number} is out of order")
        self._require(data["step"] < 0 or self._step_is_open(data), "the step is not open")
        self._require(self._is_enabled(data["device"]), "the device is disabled")
        self.calls[call_id] = {**_new_call(data, before, self._at_ms), "state": "dispatched", "attempts": number}
        names = ("device", "key", "hold", "budgets", "epoch", "lease_ms")
        fresh = {"number": number, "state": "dispatched", "charged": [0, 0, 0]}
        self.attempts[*call_id, number] = {**{name: data[name] for name in names}, **fresh}
        self._move(data["device"], data["budgets"], data["hold"], [0, 0, 0])
        for key in data["budgets"]:
            self._check_asked(self.budgets[key])
        self._touch_task(data, [0, 0, 0])

    def _move(self, device: str, keys: list[str], reserved: Units, committed: Units) -> None:
        """Change what is reserved and committed on these budgets, and what is set aside where the device has a share of one."""
        for key in keys:
            row = self.budgets[key]
            share = self.budgets[_share_key(key, device)] if _share_key(key, device) in keys else None
            if share is not None:
                before = _sum(share["committed"], share["reserved"])
                after = _sum(before, _sum(reserved, committed))
                row["set_aside"] = _sum(
                    row["set_aside"], _difference(_missing(row["floor"], after), _missing(row["floor"], before))
                )
            row["reserved"] = _sum(row["reserved"], reserved)
            row["committed"] = _sum(row["committed"], committed)
            self._check_limits(row)

    def _is_enabled(self, device: str) -> bool:
        row = self.devices.get(device)
        return row is None or not row["disabled"]

    def _step_is_open(self, data: Row) -> bool:
        row = self.steps.get((data["device"], data["task"], data["step"]))
        return row is not None and not row["closed"]

    def _copy(self, data: Row) -> None:
        call_id = (data["device"], data["key"])
        before = self.calls.get(call_id)
        source = self.calls[tuple(data["source"].split("|", 1))]  # no device's name has a "|"; a key may have some
        original = source["state"] == "completed" and source["result_sha256"] == data["result_sha256"]
        self._require(original, "the answer is not that of its source")
        own = source["device"] == data["device"] or data["cache_key"].startswith("fleet:")
        self._require(own, "an answer crossed devices without leave")
        self._require(before is None or before["state"] == "refunded", "the call was not free to be answered")
        self.calls[call_id] = {
            **_new_call(data, before, self._at_ms),
            **_answer(data),
            "state": "completed",
            "source_key": data["source"],
        }
        self._touch_task(data, [0, 0, 0])

    def _completed(self, data: Row) -> None:
        self._resolve(data, "completed", None)
        self.calls[data["device"], data["key"]].update(_answer(data), upstream_id=data["upstream_id"])

    def _resolve(self, data: Row, state: str, charge: Units | None) -> None:
        attempt = self._attempt_of(data)
        call = self.calls[data["device"], data["key"]]
        self._require(attempt["state"] == "dispatched", "the attempt was resolved before")
        self._require(charge is None or data["charge"] == charge, f"charged {data['charge']} where {charge} follow")
        within = all(0 <= part <= most for part, most in zip(data["charge"], attempt["hold"], strict=True))
        self._require(within, f"charged {data['charge']}, more than the hold {attempt['hold']}")
        attempt.update(state=state, charged=data["charge"])
        call.update(state=state, reason=data["reason"], charged=_sum(call["charged"], data["charge"]), updated_ms=self._at_ms)
        released = [-part for part in attempt["hold"]]
        self._move(data["device"], attempt["budgets"], released, data["charge"])
        self._touch_task({**call, **data}, data["charge"])

    def _attempt_of(self, data: Row) -> Row:
        return self.attempts[data["device"], data["key"], data["attempt"]]

    def _check_limits(self, row: Row) -> None:
        used = _sum(_sum(row["committed"], row["reserved"]), row["set_aside"])
        fits = all(limit is None or value <= limit for value, limit in zip(used, row["limits"], strict=True))
        self._require(fits, f"budget {row['key']} holds {used}, above its limits {row['limits']}")
        self._require(min(row["reserved"]) >= 0, f"budget {row['key']} has a negative hold {row['reserved']}")
        self._require(min(row["set_aside"]) >= 0, f"budget {row['key']} sets less than nothing aside {row['set_aside']}")

    def _touch_task(self, data: Row, charge: Units, moves: int = 0) -> Row:
        row = self.tasks[data["device"], data["task"]]
        row["version"] += 1 + moves
        row["charged"] = _sum(row["charged"], charge)
        self._require(data["version"] == row["version"], f"version {data['version']} where {row['version']} follows")
        return row

    def _open_step(self, data: Row) -> None:
        key, shared_key = (data["device"], data["task"], data["step"]), data.get("shared_dual", "")
        left = self.shared_duals.get(self.tasks[data["device"], data["task"]]["shared_dual"])
        task = self._touch_task(data, [0, 0, 0], left["updates"] if left and left["key"] != shared_key else 0)
        self._require(key not in self.steps, "the step was opened before")
        self._require(self._is_enabled(data["device"]), "the device is disabled")
        self._require(data["step"] == task["next_step"], f"step {task['next_step']} is next")
        so_far = (self.shared_duals.get(shared_key) or (None if data["step"] == 0 else left or task)) or {
            "dual": data["dual"],
            "recent": [],
        }
        self._require(data["dual"] == so_far["dual"], f"λ {data['dual']} where {so_far['dual']} follows")
        fleet = _is_fleet(shared_key)
        self._require(not (fleet and "dual_proportional" in data), "a fleet's λ has a proportional part")
        task.update(
            dual=data["dual"], recent=[] if fleet else so_far["recent"], target_rate=data["target_rate"], shared_dual=shared_key
        )
        fields = {name: value for name, value in data.items() if name != "version"}
        units = {"closed": False, "total_units": 0, "help_units": 0, "uncalled_units": 0, "round_units": 0}
        reals = {"dual_after": ZERO, "assist_rate": ZERO, "dual_before": ZERO}
        rule = {"dual_proportional": ZERO, "dual_window": 1, "dual_ceiling": NO_CEILING}
        self.steps[key] = {**rule, **fields, **units, **reals, "discrepancies": [], "shared_dual": shared_key}
        if shared_key:
            self._enter_shared_dual(data, shared_key, data["planned_prompts"] * data["group_size"], task["recent"])
        credit = _new_budget(f"step[device:{data['device']}/task:{data['task']}]#{data['step']}")
        credit["asked"] = credit["limits"] = [data["call_credit"], None, None]
        self.budgets[credit["key"]] = credit

    def _enter_shared_dual(self, data: Row, key: str, units: int, recent: list[str]) -> Row:
        """The shared λ of a step, a fleet's with this device's weight in it."""
        row = self.shared_duals.setdefault(key, _new_shared_dual(key, data["dual"], recent) if "dual" in data else {})
        if _is_fleet(key):
            mine = {"shared_dual": key, "device": data["device"], "units": min(units, MOST_ROUND_UNITS), "seen_ms": self._at_ms}
            known = self.dual_members.get((key, data["device"]), {"units": 0})
            self.dual_members[key, data["device"]] = mine
            row["units"] += mine["units"] - known["units"]
        return row

    def _leave(self, data: Row) -> None:
        member = self.dual_members[data["shared_dual"], data["device"]]
        self._require(member["units"] > 0, "the device had left before")
        self.shared_duals[data["shared_dual"]]["units"] -= member["units"]
        member["units"] = 0

    def _device(self, data: Row) -> None:
        self.devices[data["device"]] = {"device": data["device"], "disabled": data["disabled"]}

    def _close_step(self, data: Row) -> None:
        row = self.steps[data["device"], data["task"], data["step"]]
        task = self._touch_task(data, [0, 0, 0])
        self._require(not row["closed"], "the step was closed before")
        shared = self._enter_shared_dual(data, row["shared_dual"], data["total_units"], []) if row["shared_dual"] else None
        before, round_units = (shared["dual"], shared["units"]) if shared else (row["dual"], 0)
        written = (data.get("dual_before", row["dual"]), data.get("round_units", 0))
        self._require(written == (before, round_units), f"started from {written} where {(before, round_units)} follow")
        rate = data["help_units"] / data["total_units"]
        lr = float.fromhex(row["dual_lr"])
        lr = shared_lr(lr, min(data["total_units"], MOST_ROUND_UNITS), round_units) if round_units else lr
        state = DualState(float.fromhex(before), tuple(map(float.fromhex, (shared or task)["recent"])))
        acts_on = float.fromhex(data["own_rate"]) if "own_rate" in data else rate
        moved = proportional_integral_step(state, acts_on, float.fromhex(row["target_rate"]), _rule_of(row, lr))
        dual, recent = moved.dual.hex(), [value.hex() for value in moved.recent]
        self._require(data["assist_rate"] == rate.hex(), f"assist rate {data['assist_rate']} where {rate.hex()} follows")
        self._require(data["dual_after"] == dual, f"λ {data['dual_after']} where {dual} follows")
        fields = {name: value for name, value in data.items() if name != "version"}
        row.update(fields, closed=True, dual_before=before, round_units=round_units)
        task.update(dual=dual, recent=recent, next_step=data["step"] + 1)
        if shared:
            shared.update(dual=dual, recent=recent, updates=shared["updates"] + 1)
        self.dual_updates += 1

    def _purge(self, data: Row) -> None:
        for device, key in data["calls"]:
            self.calls[device, key]["result"] = False


def _replay_all(entries: Iterable[JournalEntry], replay: JournalReplay, findings: Findings) -> tuple[int, str]:
    """Check the chain and apply every entry; returns how many there are and the last hash."""
    count, head = 0, GENESIS
    for count, entry in enumerate(entries, 1):
        findings.unless(entry.seq == count, f"journal entry {entry.seq}: is at place {count}")
        findings.unless(entry.previous == head, f"journal entry {entry.seq}: does not follow the entry before it")
        head = entry_hash(entry.seq, entry.at_ms, entry.kind, entry.body, entry.previous)
        findings.unless(entry.hash == head, f"journal entry {entry.seq}: its content does not have its hash")
        replay.apply(entry)
        head = entry.hash
    return count, head


def _compare(table: Table[Any], expected: dict[Any, Row], rows: Iterable[Row], findings: Findings) -> None:
    """Table rows against replayed ones, field by field."""
    kind, names, seen = _kind_of(table), table.key, set()
    for found in rows:
        key = found[names[0]] if len(names) == 1 else tuple(found[name] for name in names)
        seen.add(key)
        if key not in expected:
            findings.add(f"{kind} {key}: in the table, not in the journal")
            continue
        for name, value in expected[key].items():
            findings.unless(found[name] == value, f"{kind} {key}: {name} is {found[name]} where {value} follows from the journal")
    for key in expected.keys() - seen:
        findings.add(f"{kind} {key}: in the journal, not in the table")


def _kind_of(table: Table[Any]) -> str:
    return table.name.removesuffix("_state")


def _plain_rows(table: Table[Any], rows: Iterable[Any], findings: Findings) -> Iterator[Row]:
    """The rows of a table as plain ones, as long as they can be read: of a call's answer whether there is one."""
    try:
        for row in rows:
            plain: Row = _plain(row)
            if isinstance(row, CallRow):
                _check_result(row, findings)
                plain["result"] = row.result is not None
            yield plain
    except (ValueError, TypeError) as error:
        findings.add(f"{_kind_of(table)}: a row cannot be read ({error})")


def _check_result(call: CallRow, findings: Findings) -> None:
    """The text must have the digest it is stored with."""
    if call.result is not None:
        whole = json.dumps([call.result, call.beyond_text], separators=(",", ":")) if call.beyond_text else call.result
        digest = hashlib.sha256(whole.encode()).hexdigest()
        line = f"call {(call.device, call.key)}: its answer is not the one in the journal"
        findings.unless(digest == call.result_sha256, line)
    given = call.result is not None or not call.beyond_text
    findings.unless(given, f"call {(call.device, call.key)}: it has a part of an answer without an answer")


def _plain(value: Any) -> Any:
    """Rows as dictionaries, amounts and limits as [calls, tokens, uusd], reals as hex."""
    if isinstance(value, Amount | AmountLimits):
        return [value.calls, value.tokens, value.uusd]
    if isinstance(value, Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float):
        return value.hex()
    return list(map(_plain, value)) if isinstance(value, tuple) else value


def _new_budget(key: str) -> Row:
    none, zero = [None, None, None], [0, 0, 0]
    fair = {"floor_ppm": 0, "members": 0, "floor": zero, "set_aside": zero}
    return {"key": key, "asked": none, "limits": none, "committed": zero, "reserved": zero, **fair}


def _new_shared_dual(key: str, dual: str, recent: list[str]) -> Row:
    return {"key": key, "dual": dual, "updates": 0, "units": 0, "recent": recent}


def _is_fleet(shared_key: str) -> bool:
    return shared_key.split("[")[0] == "fleet"


def _rule_of(step: Row, lr: float) -> ProportionalIntegral:
    """The rule of λ that a step was opened with; η as it weighs here."""
    proportional, ceiling = float.fromhex(step["dual_proportional"]), float.fromhex(step["dual_ceiling"])
    return ProportionalIntegral(lr, proportional, step["dual_window"], ceiling)


def _share_key(budget: str, device: str) -> str:
    return f"share/{budget}/device:{device}"


def _missing(floor: Units, used: Units) -> Units:
    return [max(0, most - own) for most, own in zip(floor, used, strict=True)]


def _greatest_floor(target: int, used: list[int], free: int) -> int:
    """The greatest floor up to `target` that the free rest can keep for all members, found by halving."""
    low, high = 0, target
    while low < high:
        middle = (low + high + 1) // 2
        fits = sum(max(0, middle - own) for own in used) <= free
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _new_call(data: Row, before: Row | None, at_ms: int) -> Row:
    names = ("device", "key", "fingerprint", "task", "step", "prompt_id", "model", "help_units", "cache_key")
    empty = {"input_tokens": 0, "output_tokens": 0, "result": False, "result_sha256": "", "finish": ""}
    words = {"upstream_id": "", "reason": "", "source_key": "", "updated_ms": at_ms}
    past = {"attempts": before["attempts"] if before else 0, "charged": before["charged"] if before else [0, 0, 0]}
    return {**{name: data[name] for name in names}, **empty, **words, **past}


def _answer(data: Row) -> Row:
    names = ("input_tokens", "output_tokens", "result_sha256", "finish")
    return {**{name: data[name] for name in names}, "result": True}


def _sum(left: Units, right: Units) -> Units:
    return [a + b for a, b in zip(left, right, strict=True)]


def _difference(left: Units, right: Units) -> Units:
    return [a - b for a, b in zip(left, right, strict=True)]
