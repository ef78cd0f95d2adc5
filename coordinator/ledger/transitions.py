"""The budget ledger: transactions T1 to T4 as transition functions. Knows money, holds, steps and the journal; knows nothing of SQL,
gRPC, providers or clocks.

`Ledger` runs over tables inside a transaction that its store opens and closes; a raised error means the store rolls back.
Every change of a row is written to the journal in the same transaction, completely enough that `verify` can rebuild all rows from it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from coordinator import failpoints
from coordinator.ledger.accounts import (
    AS_CONFIGURED,
    FLEET_CACHE,
    NO_AMOUNT,
    SERVING_STEP,
    Amount,
    AmountLimits,
    AttemptRow,
    BudgetRow,
    BudgetTerms,
    BudgetView,
    CallEnded,
    CallRow,
    CallState,
    CloseStepRequest,
    DeviceRow,
    DualMember,
    InProgress,
    OpenStepRequest,
    Outdated,
    Replayed,
    Reserved,
    ReserveOutcome,
    ReserveRequest,
    Resolution,
    SetLimits,
    Settlement,
    SharedDual,
    StepRow,
    TaskRow,
    amount_text,
    is_fleet_dual,
    is_share,
    limits_version,
    scope_of,
    share_key,
    share_prefix,
    step_budget_key,
)
from coordinator.ledger.fairness import floor_target, highest_floor, unused_floor
from coordinator.ledger.journal import (
    JournalEntry,
    answer_data,
    attempt_data,
    call_data,
    close_data,
    limits_data,
    next_entry,
    open_data,
    task_data,
)
from coordinator.ledger.stores.buffered import BufferedTables
from coordinator.ledger.stores.changes import EVERYTHING
from coordinator.ledger.tables import (
    BUDGETS_AFTER,
    BUDGETS_UNDER,
    CALLS_AFTER,
    DEVICE,
    DEVICE_CALLS_AFTER,
    EXPIRED_ATTEMPTS,
    IDLE_DUAL_MEMBERS,
    OLD_RESULTS,
    ORPHANED_ATTEMPTS,
    SHARED_DUAL,
    STEP_CALLS,
    TASK,
)
from edge.core.errors import BudgetExhausted, InvalidRequest, KeyReused, NotFound, PermissionDenied, StepMismatch
from edge.core.formatting import counted
from edge.dagrpo.dual import MOST_WINDOW, DualState, proportional_integral_step, shared_lr
from edge.rpc.client import StepUnits

MOST_UNITS = 2**53
MOST_ROUND_UNITS = 2**20
STOPPED = "coordinator stopped"
"""Why a call is in doubt that the coordinator did not see through: it was killed, or cut the call when it stopped."""
NEVER_SEEN_MS = 0
PURGED_IN_ENTRY = 1000
"""How many calls one journal entry of a purge names: an entry has to fit into a message."""


class Ledger:
    """The transitions, for the process run `epoch`."""

    def __init__(self, tables: BufferedTables, epoch: int) -> None:
        self._tables = tables
        self._epoch = epoch

    @property
    def tables(self) -> BufferedTables:
        """The rows, for reading."""
        return self._tables

    # T1 ------------------------------------------------------------------------------------------------------------------------

    def reserve(self, request: ReserveRequest) -> ReserveOutcome:
        """T1: hold the most a call can cost, or return what became of its key.

        Raises KeyReused, BudgetExhausted (metadata `budget`, `unit`, `scope`), StepMismatch (the step is not open), InvalidRequest,
        PermissionDenied (the device is disabled).
        """
        _check_reserve(request)
        self._require_enabled(request.device)
        known = self._tables.calls.get(request.device, request.key)
        if known is not None:
            _check_same_content(known, request)
            if known.state is not CallState.REFUNDED:
                return _outcome_of(known)
        # Only a new try needs what may have changed since: who repeats a key gets its end also after the step was closed.
        self._require_open_step(request)
        # The group before the cache: while its call runs, a second key waits for that one instead of taking an older answer.
        stored = self._answer_from_group(request, known) or self._answer_from_cache(request, known)
        if stored is not None:
            return stored
        # Only a hold needs the limits of now, whichever replica received them; a stored answer costs nothing.
        set_now = tuple(self._tables.set_limits())
        if limits_version(set_now) > request.limits_version:
            return Outdated(set_now)
        return self._dispatch(request, known)

    def _require_open_step(self, request: ReserveRequest) -> None:
        if request.step == SERVING_STEP:
            return
        row = self._tables.steps.get(request.device, request.task, request.step)
        if row is None or row.closed:
            raise _mismatch(request.task, request.step, self._next_step(request.device, request.task))

    def _answer_from_group(self, request: ReserveRequest, known: CallRow | None) -> ReserveOutcome | None:
        """At most one call per prompt group: a second key gets the first one's answer."""
        if request.step == SERVING_STEP:
            return None
        first = self._tables.group_call(request.device, request.task, request.step, request.prompt_id)
        if first is None or first.key == request.key:
            return None
        _check_same_content(first, request)
        if first.state is CallState.DISPATCHED:
            return InProgress(first.key)
        return self._copy_answer(request, known, first)

    def _answer_from_cache(self, request: ReserveRequest, known: CallRow | None) -> ReserveOutcome | None:
        """An answer under the same cache key: recent enough, and of this device unless the key lets answers cross devices."""
        source = self._tables.cached_call(request.cache_key) if request.cache_key else None
        if source is None or source.updated_ms < milliseconds(request.cache_since):
            return None
        crosses = source.device != request.device and not request.cache_key.startswith(FLEET_CACHE)
        return None if crosses else self._copy_answer(request, known, source)

    def _copy_answer(self, request: ReserveRequest, known: CallRow | None, source: CallRow) -> Replayed:
        row = replace(
            _new_call(request, known),
            state=CallState.COMPLETED,
            input_tokens=source.input_tokens,
            output_tokens=source.output_tokens,
            result=source.result,
            beyond_text=source.beyond_text,
            result_sha256=source.result_sha256,
            finish=source.finish,
            source_key=f"{source.device}|{source.key}",
        )
        self._tables.put_new_call(row)
        task = self._meet_task(request)
        self._journal(request.now, "copy", {**call_data(row), "source": row.source_key, "version": task.version})
        return Replayed(row)

    def _dispatch(self, request: ReserveRequest, known: CallRow | None) -> Reserved:
        keys = self._hold_all(request)
        number = 1 if known is None else known.attempts + 1
        call = replace(_new_call(request, known), state=CallState.DISPATCHED, attempts=number)
        attempt = AttemptRow(
            device=request.device,
            key=request.key,
            number=number,
            state=CallState.DISPATCHED,
            hold=request.hold,
            charged=Amount(),
            budgets=keys,
            epoch=self._epoch,
            lease_ms=milliseconds(request.lease_until),
        )
        self._tables.put_new_call(call)
        self._tables.attempts.put(attempt)
        task = self._meet_task(request)
        self._journal(request.now, "reserve", {**call_data(call), **attempt_data(attempt), "version": task.version})
        return Reserved(number, attempt.billing_key)

    def _hold_all(self, request: ReserveRequest) -> tuple[str, ...]:
        """Hold on every budget concerned, in sorted order, all or nothing (a refusal rolls the transaction back)."""
        keys: set[str] = set()
        outdated: list[BudgetTerms] = []  # one that is shared fairly is always among them: its share has to be held, too
        for terms in request.budgets:
            row = self._tables.budgets.get(terms.key)
            if row is not None and _already_applied(row, terms):
                keys.add(terms.key)
            else:
                outdated.append(terms)
        # All terms before the first hold: a hold is checked against the limits of now, and what it takes of a floor is counted from the
        # share that a device gets when it joins. Sorted, so that the same request writes the same journal at every store.
        for terms in sorted(outdated, key=attrgetter("key")):
            keys.update(self._apply_terms(terms, request.device, request.now))
        shared = any(terms.floor_ppm > 0 for terms in outdated)
        if request.step != SERVING_STEP:
            keys.add(step_budget_key(request.device, request.task, request.step))
        # In this order a budget comes before its share ("fleet" < "share/"): what a hold takes of the floor is counted from the share as it
        # was. The other way round the hold would be counted twice. `_resolve` goes through the same keys in the same order.
        ordered = tuple(sorted(keys))
        for key in ordered:
            from_aside = self._floor_taken(key, request.device, ordered, request.hold) if shared else NO_AMOUNT
            if not self._tables.hold(key, request.hold, from_aside):
                raise self._exhausted(key, request.hold, from_aside)
        return ordered

    def _apply_terms(self, terms: BudgetTerms, device: str, now: float) -> tuple[str, ...]:
        """Create a budget, or bring its limits and floors to what the configuration asks; spent amounts stay allowed. Returns the keys to
        hold on: the budget's, and the device's share where the budget is shared fairly."""
        row = self._tables.budgets.get(terms.key)
        known = row or BudgetRow(terms.key, terms.limits, terms.limits)
        share = share_key(terms.key, device)
        joins = terms.floor_ppm > 0 and self._tables.budgets.get(share) is None
        if joins:  # before the floor is computed, which reads the shares of all members
            self._tables.budgets.put(BudgetRow(share, AmountLimits(), AmountLimits()))
        changed = replace(
            known,
            asked=terms.limits,
            limits=terms.limits.at_least(known.used),
            floor_ppm=terms.floor_ppm,
            members=known.members + joins,
        )
        if changed != row:
            changed = self._with_floor(changed)
            self._tables.budgets.put(changed)
            self._journal(now, "limits", {**limits_data(changed), **({"joined": device} if joins else {})})
        return (terms.key, share) if terms.floor_ppm > 0 else (terms.key,)

    def _with_floor(self, row: BudgetRow) -> BudgetRow:
        """The budget with floor and what is set aside for it computed anew, from what each member has used."""
        if row.floor_ppm == 0:
            return replace(row, floor=Amount(), set_aside=Amount())
        used_by_member = [share.used.units for share in self._shares(row.key)]
        floors, aside = [], []
        for limit, used, members_used in zip(row.limits.units, row.used.units, zip(*used_by_member, strict=True), strict=True):
            target = floor_target(limit, row.floor_ppm, row.members)
            floor = highest_floor(target, members_used, 0 if limit is None else limit - used)
            floors.append(floor)
            aside.append(unused_floor(floor, members_used))
        return replace(row, floor=Amount(*floors), set_aside=Amount(*aside))

    def _shares(self, budget: str) -> list[BudgetRow]:
        prefix = share_prefix(budget)
        return self._tables.ask(BUDGETS_UNDER, prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1))

    def _floor_taken(self, key: str, device: str, keys: Sequence[str], hold: Amount) -> Amount:
        """How much of a hold comes out of what was set aside for the device."""
        missing = self._missing_floor(key, device, keys, Amount(), Amount())
        return missing.minus(self._missing_floor(key, device, keys, hold, Amount()))

    def _floor_left(self, key: str, attempt: AttemptRow, charge: Amount) -> Amount:
        """How much of a hold is set aside for the device again."""
        missing = self._missing_floor(key, attempt.device, attempt.budgets, NO_AMOUNT, NO_AMOUNT)
        return self._missing_floor(key, attempt.device, attempt.budgets, charge, attempt.hold).minus(missing)

    def _missing_floor(self, key: str, device: str, keys: Sequence[str], more: Amount, less: Amount) -> Amount:
        """What a device has not used yet of its floor in a budget, once it has used `more` and then `less`; nothing where `keys` has no
        share of it. Reads the budget before the share, in the order in which rows are locked."""
        share = share_key(key, device)
        row = self._tables.budgets.get(key) if share in keys else None
        own = self._tables.budgets.get(share) if row is not None else None
        return own.used.plus(more).minus(less).short_of(row.floor) if row is not None and own is not None else Amount()

    def _exhausted(self, key: str, hold: Amount, from_aside: Amount) -> BudgetExhausted:
        row = self._tables.budgets.get(key)
        others = row.set_aside.minus(from_aside) if row else Amount()
        units = row.limits.units_exceeded(row.used.plus(others).plus(hold)) if row else ()
        scope = scope_of(key)
        metadata = {"budget": key, "scope": scope, "unit": ",".join(units)}
        if row and units:
            used, most, needed = (getattr(amount, units[0]) for amount in (row.used, row.asked, hold))
            kept = getattr(others, units[0])
            metadata["told"] = f"{scope} {'micro-USD' if units[0] == 'uusd' else units[0]} {used} of {most}"
            metadata["told"] += f", {kept} kept for other devices" if kept else ""
            metadata |= {"used": str(used), "limit": str(most), "needed": str(needed), "kept": str(kept)}
        needs = "; ".join(_need_text(unit, hold, row, others) for unit in units) if row else ""
        return BudgetExhausted(f"budget {key} has no room for this call{needs and f': it needs {needs}'}", metadata=metadata)

    # T2 ------------------------------------------------------------------------------------------------------------------------

    def settle(self, settlement: Settlement) -> Resolution:
        """T2: commit what an answered attempt cost and store the answer; at most once. Then look at the budgets asked for.

        Raises NotFound.
        """
        resolution = self._settle(settlement)
        if not settlement.budgets:
            return resolution
        return replace(resolution, view=self.get_budget(settlement.device, resolution.call.task, settlement.budgets))

    def _settle(self, settlement: Settlement) -> Resolution:
        attempt, call = self._attempt_and_call(settlement.device, settlement.key, settlement.attempt)
        if attempt.state is not CallState.DISPATCHED:
            return Resolution(False, call, attempt)
        charge = settlement.charge.capped(attempt.hold)
        # Half a surrogate pair cannot be stored, and must not cost an answer that is paid for.
        text, beyond_text = (part.encode("utf-8", "replace").decode() for part in (settlement.text, settlement.beyond_text))
        answered = replace(
            call,
            input_tokens=settlement.input_tokens,
            output_tokens=settlement.output_tokens,
            result=text,
            beyond_text=beyond_text,
            result_sha256=answer_digest(text, beyond_text),
            finish=settlement.finish,
            upstream_id=settlement.upstream_id,
        )
        extra = {**answer_data(answered), "upstream_id": answered.upstream_id}
        if charge != settlement.charge:
            extra["overrun"] = settlement.charge
        return self._resolve(attempt, answered, CallState.COMPLETED, charge, "", settlement.now, extra)

    def refund(self, device: str, key: str, number: int, reason: str, now: float) -> Resolution:
        """T2: give a hold back; only for an attempt that was definitely not executed. Raises NotFound."""
        return self._end(device, key, number, CallState.REFUNDED, Amount(), reason, now)

    def fail(self, device: str, key: str, number: int, reason: str, charge: Amount | None, now: float) -> Resolution:
        """T2: executed without a usable answer; charged at `charge` (cut to the hold) or, when None, at the hold."""
        return self._end(device, key, number, CallState.FAILED, charge, reason, now)

    def doubt(self, device: str, key: str, number: int, reason: str, now: float) -> Resolution:
        """T2: an attempt that may have been executed (cut, time-out): IN_DOUBT, charged at the hold."""
        return self._end(device, key, number, CallState.IN_DOUBT, None, reason, now)

    def _end(
        self, device: str, key: str, number: int, state: CallState, charge: Amount | None, reason: str, now: float
    ) -> Resolution:
        attempt, call = self._attempt_and_call(device, key, number)
        if attempt.state is not CallState.DISPATCHED:
            return Resolution(False, call, attempt)
        charged = attempt.hold if charge is None else charge.capped(attempt.hold)
        return self._resolve(attempt, call, state, charged, reason, now, {})

    def _attempt_and_call(self, device: str, key: str, number: int) -> tuple[AttemptRow, CallRow]:
        attempt = self._tables.attempts.get(device, key, number)
        call = self._tables.calls.get(device, key)
        if attempt is None or call is None:
            raise NotFound(f"there is no attempt {number} of call {key!r}")
        return attempt, call

    def _resolve(
        self,
        attempt: AttemptRow,
        call: CallRow,
        state: CallState,
        charge: Amount,
        reason: str,
        now: float,
        extra: dict[str, Any],
    ) -> Resolution:
        """Move an attempt out of DISPATCHED, its hold out of `reserved`, and its charge into `committed`."""
        shared = any(map(is_share, attempt.budgets))
        for key in attempt.budgets:
            to_aside = self._floor_left(key, attempt, charge) if shared else NO_AMOUNT
            self._tables.resolve(key, attempt.hold, charge, to_aside)
        ended = replace(attempt, state=state, charged=charge)
        self._tables.attempts.put(ended)
        resolved = replace(call, state=state, charged=call.charged.plus(charge), reason=reason, updated_ms=milliseconds(now))
        self._tables.calls.put(resolved)
        task = self._touch_task(call.device, call.task, charge)
        data = {"device": call.device, "key": call.key, "attempt": attempt.number, "charge": charge, "reason": reason}
        self._journal(now, str(state), {**data, **extra, "version": task.version})
        return Resolution(True, resolved, ended)

    # T3 ------------------------------------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> tuple[Resolution, ...]:
        """T3: attempts whose lease is over, or whose process is gone, become IN_DOUBT, charged at the hold."""
        expired = self._doubt_all(self._tables.ask(EXPIRED_ATTEMPTS, milliseconds(now)), "lease expired", now)
        return expired + self._doubt_orphans(now)

    def recover(self, now: float) -> tuple[Resolution, ...]:
        """T3 at start: attempts of process runs that are gone become IN_DOUBT, charged at the hold. The journal notes the new epoch."""
        self._journal(now, "epoch", {"epoch": self._epoch})
        return self._doubt_orphans(now)

    def _doubt_orphans(self, now: float) -> tuple[Resolution, ...]:
        return self._doubt_all(self._tables.ask(ORPHANED_ATTEMPTS, self._epoch), STOPPED, now)

    def _doubt_all(self, attempts: Iterable[AttemptRow], reason: str, now: float) -> tuple[Resolution, ...]:
        left = sorted(attempts, key=lambda row: (row.lease_ms, row.device, row.key))
        return tuple(self.doubt(attempt.device, attempt.key, attempt.number, reason, now) for attempt in left)

    # T4 ------------------------------------------------------------------------------------------------------------------------

    def open_step(self, request: OpenStepRequest) -> StepRow:
        """T4: open a step, or return it as it was opened. Raises StepMismatch unless it is the next or the open one."""
        check_open(request)
        self._require_enabled(request.device)
        known = self._tables.steps.get(request.device, request.task, request.step)
        if known is not None and not known.closed:
            return known
        expected = self._next_step(request.device, request.task)
        if request.step != expected:
            raise _mismatch(request.task, request.step, expected)
        return self._open_new_step(request)

    def _open_new_step(self, request: OpenStepRequest) -> StepRow:
        task = self._meet_task(request)
        opening = self._opening_dual(request, task)
        row = StepRow(
            device=request.device,
            task=request.task,
            step=request.step,
            planned_prompts=request.planned_prompts,
            group_size=request.group_size,
            dual=opening.dual,
            target_rate=request.target_rate,
            dual_lr=request.rule.lr,
            call_credit=step_credit(request.credit_factor, request.target_rate, request.planned_prompts),
            shared_dual=request.shared_dual,
            dual_proportional=request.rule.proportional,
            dual_window=request.rule.window,
            dual_ceiling=request.rule.ceiling,
        )
        self._tables.steps.put(row)
        left = self._tables.shared_duals.get(task.shared_dual) if task.shared_dual != request.shared_dual else None
        task = replace(
            task, dual=opening.dual, recent=opening.recent, target_rate=request.target_rate, shared_dual=request.shared_dual
        )
        # Devices see the version plus the moves of the shared λ. Without those of the λ that is left it would fall, and a device ignores a
        # budget of an older version.
        task = replace(task, version=task.version + (left.updates if left else 0))
        self._tables.tasks.put(task)
        if row.shared_dual:
            self._enter_shared_dual(row, opening, row.planned_prompts * row.group_size, request.now)
        limits = AmountLimits(calls=row.call_credit)
        self._tables.budgets.put(BudgetRow(step_budget_key(row.device, row.task, row.step), limits, limits))
        self._journal(request.now, "open_step", {**open_data(row), "version": task.version})
        return row

    def _opening_dual(self, request: OpenStepRequest, task: TaskRow) -> DualState:
        """The λ a step is opened with: the shared one where there is one, else the task's so far, or the initial one at the first step.

        A fleet's takes it over as it is, without what one device's last reports had added to it.
        """
        shared = self._tables.shared_duals.get(request.shared_dual) if request.shared_dual else None
        if shared is not None:
            return DualState(shared.dual, shared.recent)
        if request.step == 0:
            return DualState(request.initial_dual)
        seen = self._as_seen(task)
        return DualState(seen.dual, () if is_fleet_dual(request.shared_dual) else seen.recent)

    def _enter_shared_dual(self, step: StepRow, opening: DualState, units: int, now: float) -> SharedDual:
        """The shared λ of a step, made where nobody was held to it yet; a fleet's notes how many units this device's latest step has."""
        row = self._tables.shared_duals.get(step.shared_dual) or SharedDual(step.shared_dual, opening.dual, recent=opening.recent)
        if is_fleet_dual(step.shared_dual):
            known = self._tables.dual_members.get(step.shared_dual, step.device)
            member = DualMember(step.shared_dual, step.device, min(units, MOST_ROUND_UNITS), milliseconds(now))
            self._tables.dual_members.put(member)
            row = replace(row, units=row.units + member.units - (known.units if known else 0))
        self._tables.shared_duals.put(row)
        return row

    def leave_idle_duals(self, seen_before: float, now: float) -> tuple[DualMember, ...]:
        """Members of fleets' shared λ not seen since then leave their rounds, so that the others move λ at full speed. Returns them."""
        idle = tuple(self._tables.ask(IDLE_DUAL_MEMBERS, milliseconds(seen_before)))
        for member in idle:
            shared = self._tables.shared_duals.get(member.shared_dual)
            if shared is not None:
                self._tables.shared_duals.put(replace(shared, units=shared.units - member.units))
            self._tables.dual_members.put(replace(member, units=0))
            self._journal(now, "leave", {"shared_dual": member.shared_dual, "device": member.device})
        return idle

    def close_step(self, request: CloseStepRequest) -> StepRow:
        """T4: move λ, exactly once; the same numbers again return the first answer, other numbers raise KeyReused.

        Raises StepMismatch unless it is the open step, InvalidRequest when the numbers cannot be.
        """
        check_close(request)
        row = self._tables.steps.get(request.device, request.task, request.step)
        if row is None:
            raise _mismatch(request.task, request.step, self._next_step(request.device, request.task))
        if row.closed:
            return _closed_before(row, request)
        return self._close_open_step(row, request)

    def _close_open_step(self, row: StepRow, request: CloseStepRequest) -> StepRow:
        units = request.units
        rate = units.help / units.total
        task = self._tables.tasks.get(row.device, row.task)
        before = DualState(row.dual, task.recent if task else ())
        # The member's weight is what it reports, not what it planned, before the round is read that divides η.
        shared = self._enter_shared_dual(row, before, units.total, request.now) if row.shared_dual else None
        before, round_units = (DualState(shared.dual, shared.recent), shared.units) if shared else (before, 0)
        rule = row.rule
        if round_units:
            rule = dataclasses.replace(rule, lr=shared_lr(rule.lr, min(units.total, MOST_ROUND_UNITS), round_units))
        acts_on = rate if units.own_rate is None else units.own_rate
        after = proportional_integral_step(before, acts_on, row.target_rate, rule)
        closed = replace(
            row,
            closed=True,
            total_units=units.total,
            help_units=units.help,
            assist_rate=rate,
            dual_after=after.dual,
            discrepancies=self._discrepancies(row, request),
            dual_before=before.dual,
            round_units=round_units,
            own_rate=units.own_rate,
            uncalled_units=units.uncalled,
        )
        self._tables.steps.put(closed)
        if shared:
            self._tables.shared_duals.put(replace(shared, dual=after.dual, recent=after.recent, updates=shared.updates + 1))
            self._tables.note_change(EVERYTHING)  # tasks that are not written have another λ
        failpoints.reach("in_close_step")
        task = self._touch_task(row.device, row.task)
        self._tables.tasks.put(replace(task, dual=after.dual, recent=after.recent, next_step=row.step + 1))
        self._journal(request.now, "close_step", {**close_data(closed), "version": task.version})
        return closed

    def _discrepancies(self, row: StepRow, request: CloseStepRequest) -> tuple[str, ...]:
        """Where a step's report differs from its calls. Notices; λ follows the report."""
        calls = self._tables.ask(STEP_CALLS, row.device, row.task, row.step)
        declared: dict[str, int] = {}
        for call in calls:
            if call.state is CallState.COMPLETED:
                declared[call.prompt_id] = max(declared.get(call.prompt_id, 0), call.help_units)
        planned = row.planned_prompts * row.group_size
        running = sum(call.state is CallState.DISPATCHED for call in calls)
        answered = sum(declared.values())
        expected = request.units.help - request.units.uncalled
        silent = expected > 0 and not calls and not request.refused
        findings = (
            (silent, f"{counted(expected, 'help unit')} reported, but no cloud call was made"),
            (answered > expected, f"calls answered for {counted(answered, 'help unit')}, {expected} reported"),
            (request.units.total > planned, f"{counted(request.units.total, 'unit')} reported, {planned} planned"),
            (running > 0, f"{counted(running, 'call')} still running"),
        )
        return tuple(text for found, text in findings if found)

    def _next_step(self, device: str, task: str) -> int:
        row = self._tables.tasks.get(device, task)
        return 0 if row is None else row.next_step

    # reading and housekeeping --------------------------------------------------------------------------------------------------

    def get_call(self, device: str, key: str) -> CallRow:
        """A device's own call. Raises NotFound."""
        row = self._tables.calls.get(device, key)
        if row is None:
            raise NotFound(f"there is no call {key!r} of this device")
        return row

    def get_task(self, device: str, task: str) -> TaskRow | None:
        """λ, τ and next step of a task; None before its first step or call."""
        row = self._tables.tasks.get(device, task)
        return None if row is None else self._as_seen(row)

    def list_tasks(self) -> tuple[TaskRow, ...]:
        """The tasks of all devices with the λ that holds now, sorted by device and task."""
        return tuple(map(self._as_seen, tuple(self._tables.all(TASK))))

    def get_shared_dual(self, key: str) -> SharedDual | None:
        """A λ shared by tasks or devices (`dual_key`); None before its first step."""
        return self._tables.shared_duals.get(key)

    def list_shared_duals(self) -> tuple[SharedDual, ...]:
        """All shared λ, sorted by key."""
        return tuple(self._tables.all(SHARED_DUAL))

    def list_devices(self) -> tuple[DeviceRow, ...]:
        """All devices, sorted by id."""
        return tuple(self._tables.all(DEVICE))

    def list_budgets_after(self, key: str, limit: int, *, with_steps: bool = False) -> tuple[BudgetRow, ...]:
        """A page of budgets: at most `limit` above this key, sorted by it; the call credits of steps only when asked for."""
        return tuple(self._tables.ask(BUDGETS_AFTER, key, with_steps, limit)[:limit])

    def list_calls_after(self, after_device: str, after_key: str, limit: int, *, device: str = "") -> tuple[CallRow, ...]:
        """A page of calls: at most `limit` above (after_device, after_key), sorted by both; of one device, or of all ("")."""
        if not device:
            return tuple(self._tables.ask(CALLS_AFTER, after_device, after_key, limit)[:limit])
        if after_device > device:
            return ()
        return tuple(self._tables.ask(DEVICE_CALLS_AFTER, device, after_key if after_device == device else "", limit)[:limit])

    def list_set_limits(self) -> tuple[SetLimits, ...]:
        """What was set at run time over the configured limits, sorted by scope."""
        return tuple(self._tables.set_limits())

    def read_journal(self, after: int, limit: int) -> tuple[JournalEntry, ...]:
        """Up to `limit` entries with a sequence number above `after` (0: from the start)."""
        return tuple(self._tables.journal_after(after, limit))

    def last_entry(self) -> int:
        """The number of the journal's last entry; 0 for an empty journal."""
        return self._tables.journal_head()[0]

    def _as_seen(self, task: TaskRow) -> TaskRow:
        """A task with the λ that holds now."""
        return task_as_seen(task, self._tables.shared_duals.get(task.shared_dual) if task.shared_dual else None)

    def get_budget(self, device: str, task: str, budgets: Sequence[BudgetTerms]) -> BudgetView:
        """A task and these budgets in this order; one not used yet is shown empty. Changes nothing."""
        rows = (self._tables.budgets.get(terms.key) or BudgetRow(terms.key, terms.limits, terms.limits) for terms in budgets)
        return BudgetView(self.get_task(device, task), tuple(rows), tuple(self._tables.set_limits()))

    def set_limits(self, scope: str, changes: Mapping[str, int | str | None], now: float) -> tuple[SetLimits, ...]:
        """Set limits of a scope over the configured ones, for every process that shares the store; AS_CONFIGURED takes one back.

        Holds taken from now on follow them: one that follows others is answered Outdated. Returns what was set, of all scopes.
        """
        rows = tuple(self._tables.set_limits())
        known = next((row.changes for row in rows if row.scope == scope), ())
        merged = {name: value for name, value in {**dict(known), **changes}.items() if value != AS_CONFIGURED}
        row = SetLimits(scope, tuple(sorted(merged.items())), limits_version(rows) + 1)
        if row.changes == known:  # no new version: every replica would have its next hold answered Outdated, for nothing
            return rows
        self._tables.put_limits(row)
        self._journal(now, "set_limits", {"scope": scope, "changes": row.changes, "version": row.version})
        return tuple(self._tables.set_limits())

    def register_device(self, device: str, agent_version: str, tasks: Sequence[str], now: float) -> DeviceRow:
        """Note a registration; the first time seen stays. Raises PermissionDenied for a disabled device."""
        self._require_enabled(device)
        known = self._tables.devices.get(device)
        if known is None:
            self._journal(now, "device", {"device": device, "disabled": False})
        seen_before = known is not None and known.first_seen_ms != NEVER_SEEN_MS
        first_ms = known.first_seen_ms if known is not None and seen_before else milliseconds(now)
        row = DeviceRow(device, agent_version, tuple(tasks), first_ms, milliseconds(now))
        self._tables.devices.put(row)
        return row

    def saw_devices(self, seen: Mapping[str, float]) -> None:
        """Note when registered devices were last seen (seconds since the epoch); unknown ones and earlier times change nothing."""
        for device in sorted(seen):
            row = self._tables.devices.get(device)
            if row is not None and row.last_seen_ms < milliseconds(seen[device]):
                self._tables.devices.put(replace(row, last_seen_ms=milliseconds(seen[device])))

    def set_device_disabled(self, device: str, disabled: bool, now: float) -> DeviceRow:
        """Refuse a device from now on, also one that never registered, or let it in again. What it holds is settled as ever.

        Raises InvalidRequest without an id, NotFound for one to be let in that nobody knows.
        """
        if not device:
            raise InvalidRequest("a device needs an id")
        known = self._tables.devices.get(device)
        if known is None and not disabled:
            raise NotFound(f"no device is called {device!r}", hint="`edge-coordinator devices` lists those that are known")
        row = replace(known or DeviceRow(device, "", (), NEVER_SEEN_MS, NEVER_SEEN_MS), disabled=disabled)
        if row != known:
            self._tables.devices.put(row)
            self._tables.note_change((device, ""))
            self._journal(now, "device", {"device": device, "disabled": disabled})
        return row

    def _require_enabled(self, device: str) -> None:
        row = self._tables.devices.get(device)
        if row is not None and row.disabled:
            raise device_disabled(device)

    def purge_results(self, before: float, now: float) -> int:
        """Forget the answer texts of calls last changed before this time; returns how many. Charges and digests stay."""
        rows = self._tables.ask(OLD_RESULTS, milliseconds(before))
        for row in rows:
            self._tables.calls.put(replace(row, result=None, beyond_text=""))
        for start in range(0, len(rows), PURGED_IN_ENTRY):
            calls = [[row.device, row.key] for row in rows[start : start + PURGED_IN_ENTRY]]
            self._journal(now, "purge", {"calls": calls})
        return len(rows)

    def _meet_task(self, request: ReserveRequest | OpenStepRequest) -> TaskRow:
        """Raise a task's version, making the task at its first contact."""
        if self._tables.tasks.get(request.device, request.task) is None:
            row = TaskRow(
                request.device, request.task, request.initial_dual, request.target_rate, 0, 0, shared_dual=request.shared_dual
            )
            self._tables.tasks.put(row)
            begins = {"begins": True} if self._begin_shared_dual(row) else {}
            self._journal(request.now, "task", {**task_data(row), **begins})
        return self._touch_task(request.device, request.task)

    def _begin_shared_dual(self, task: TaskRow) -> bool:
        """The shared λ of a task that nobody was held to yet begins as the task's; later ones must not change it unseen by this one."""
        if not task.shared_dual or self._tables.shared_duals.get(task.shared_dual) is not None:
            return False
        self._tables.shared_duals.put(SharedDual(task.shared_dual, task.dual))
        return True

    def _touch_task(self, device: str, task: str, charge: Amount = NO_AMOUNT) -> TaskRow:
        """Raise a task's version, and what was charged for it."""
        row = self._tables.tasks.get(device, task)
        if row is None:
            raise NotFound(f"there is no task {task!r} of this device")
        row = replace(row, version=row.version + 1, charged=row.charged.plus(charge))
        self._tables.tasks.put(row)
        return row

    def _journal(self, now: float, kind: str, data: dict[str, Any]) -> None:
        seq, last_hash = self._tables.journal_head()
        self._tables.append_journal(next_entry(seq, last_hash, milliseconds(now), kind, data))


def task_as_seen(task: TaskRow, shared: SharedDual | None) -> TaskRow:
    """A task with the shared λ it is held to, which others may have moved since; each such move raises the version too."""
    if shared is None:
        return task
    return replace(task, dual=shared.dual, recent=shared.recent, version=task.version + shared.updates)


def _need_text(unit: str, hold: Amount, row: BudgetRow, others: Amount) -> str:
    """`481 tokens, 50 are left`, `0.000481 USD, 0.00005 USD is left`"""
    left = max(0, (getattr(row.limits, unit) or 0) - getattr(row.used, unit) - getattr(others, unit))
    rest = f"{amount_text(unit, left)} is" if unit == "uusd" else "1 is" if left == 1 else f"{left} are"
    return f"{amount_text(unit, getattr(hold, unit))}, {rest if left else 'none is'} left"


def _already_applied(row: BudgetRow, terms: BudgetTerms) -> bool:
    """Whether a budget that nobody shares is held to these terms, and needs no raised limits."""
    return row.asked == row.limits == terms.limits and row.floor_ppm == terms.floor_ppm == 0


def device_disabled(device: str) -> PermissionDenied:
    """What a device that was disabled receives."""
    hint = f"the operator lets it in again with `edge-coordinator devices enable {device}`"
    return PermissionDenied(f"device {device!r} is disabled", reason="DEVICE_DISABLED", hint=hint)


def milliseconds(seconds: float) -> int:
    """Seconds since the epoch as integer milliseconds."""
    return round(seconds * 1000)


def answer_digest(text: str, beyond_text: str) -> str:
    """What the journal keeps of an answer: sha256 as hex of its UTF-8 bytes; of both as a JSON array where it is more than a text."""
    answer = json.dumps([text, beyond_text], separators=(",", ":")) if beyond_text else text
    return hashlib.sha256(answer.encode()).hexdigest()


def step_credit(factor: float | None, target_rate: float, planned_prompts: int) -> int | None:
    """ceil(κ·τ·planned_prompts), with a hair of tolerance for float64 products; None when κ is off."""
    return None if factor is None else math.ceil(factor * target_rate * planned_prompts - 1e-9)


def _check_reserve(request: ReserveRequest) -> None:
    if not (request.device and request.key and request.task and request.fingerprint):
        raise InvalidRequest("a call needs a device, a key, a task and a fingerprint")
    if not (SERVING_STEP <= request.step < MOST_UNITS and 0 <= request.help_units <= MOST_UNITS):
        raise InvalidRequest(f"step (-1: outside training) and help_units cannot be negative or above {MOST_UNITS}")
    hold = request.hold
    if hold.calls < 1 or max(hold.calls, hold.tokens, hold.uusd) > MOST_UNITS:
        raise InvalidRequest(f"a hold covers at least one call and at most {MOST_UNITS} of each unit")


def _check_same_content(known: CallRow, request: ReserveRequest) -> None:
    if known.fingerprint == request.fingerprint:
        return
    if known.key == request.key:
        raise KeyReused(f"call key {request.key!r} was used with other content")
    raise KeyReused(f"prompt group {request.prompt_id!r} of step {request.step} already has a call with other content")


def _outcome_of(call: CallRow) -> ReserveOutcome:
    if call.state is CallState.DISPATCHED:
        return InProgress(call.key)
    if call.state is CallState.COMPLETED and call.result is not None:
        return Replayed(call)
    return CallEnded(call)


def check_open(request: OpenStepRequest) -> None:
    """Raises InvalidRequest for a step that cannot be opened, whatever the ledger holds."""
    rates = (request.target_rate, request.rule.lr, request.initial_dual, request.credit_factor or 0.0)
    if not all(math.isfinite(value) and value >= 0.0 for value in rates) or request.target_rate > 1.0:
        raise InvalidRequest("target rate must be in [0, 1]; dual, its step size and the credit factor finite and not negative")
    if not (request.device and request.task):
        raise InvalidRequest("a step needs a device and a task")
    _check_rule(request)
    counts = (request.planned_prompts, request.group_size)
    if not (0 <= request.step < MOST_UNITS and all(1 <= count <= MOST_UNITS for count in counts)):
        raise InvalidRequest(f"step must be 0 or more, planned_prompts and group_size 1 to {MOST_UNITS}")


def _check_rule(request: OpenStepRequest) -> None:
    """A rule of λ that can be kept. Many devices' reports come one by one: what one of them added is not what the fleet's rate misses."""
    gain, rule = request.rule.proportional, request.rule
    if not (math.isfinite(gain) and gain >= 0.0 and rule.ceiling >= 0.0 and 1 <= rule.window <= MOST_WINDOW):
        raise InvalidRequest(f"k_p must be finite and not negative, its window 1 to {MOST_WINDOW}, a ceiling of λ not negative")
    if gain > 0.0 and is_fleet_dual(request.shared_dual):
        raise InvalidRequest("a λ that many devices move knows no proportional part; share it on one device or not at all")


def check_close(request: CloseStepRequest) -> None:
    """Raises InvalidRequest for a report that no step can have."""
    units = request.units
    counts_fit = 0 <= units.uncalled <= units.help <= units.total and 1 <= units.total <= MOST_UNITS
    if not (counts_fit and 0 <= request.step < MOST_UNITS):
        raise InvalidRequest(
            f"a step is closed with 0 <= uncalled_units <= help_units <= total_units and 1 <= total_units <= {MOST_UNITS}"
        )
    if units.own_rate is not None and not 0.0 <= units.own_rate <= 1.0:
        raise InvalidRequest(f"own_rate must lie in [0, 1], not {units.own_rate}")


def _closed_before(row: StepRow, request: CloseStepRequest) -> StepRow:
    if request.units == StepUnits(row.total_units, row.help_units, row.uncalled_units, row.own_rate):
        return row
    raise KeyReused(f"step {row.step} of task {row.task!r} was closed with {row.help_units} of {row.total_units} units")


def _mismatch(task: str, step: int, expected: int) -> StepMismatch:
    """A step that is not the open one. `expected`: the task's next step, open or not."""
    what = "is not open" if step == expected else f"does not fit; step {expected} is expected"
    return StepMismatch(f"step {step} of task {task!r} {what}", metadata={"expected_step": str(expected)})


def _new_call(request: ReserveRequest, known: CallRow | None) -> CallRow:
    """The row of a call about to run; an earlier, refunded one keeps its attempts and charges."""
    return CallRow(
        **request.content(),
        state=CallState.DISPATCHED,
        attempts=0 if known is None else known.attempts,
        charged=NO_AMOUNT if known is None else known.charged,
        cache_key=request.cache_key,
        updated_ms=milliseconds(request.now),
    )
