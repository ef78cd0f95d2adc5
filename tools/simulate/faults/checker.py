"""The independent checker of the invariants I1 to I14, and with agents A1 to A10. It reads the folded journal, the logs of the upstream and
of the devices, and the agents' folders; it shares no code with the ledger and reads none of its tables.

The journal is given as the objects of `ledger export`, one an entry, so that the checker reads those of real processes as well. Each check
made is counted under its invariant; a violation says which one, where and why.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tools.simulate.faults.agent_checker import check_agent
from tools.simulate.faults.agent_device import AgentMember
from tools.simulate.faults.chat_checker import ChatChecker
from tools.simulate.faults.duals import Data
from tools.simulate.faults.fold import ZERO, Attempt, Fold, Rules, Units, cost, plus, scope_of
from tools.simulate.faults.log import DeviceEvent
from tools.simulate.faults.terms import CALL_SCOPES, SCOPES
from tools.simulate.faults.upstream import UpstreamEvent
from tools.simulate.faults.verdict import WorldVerdict

UNITS = ("calls", "tokens", "uusd")
SETTLED = {"completed", "OUTCOME_UNKNOWN"}
ASKED = ("complete", "chat")
"""What begins a call; "chat": one that the ledger's key is not known of."""


@dataclass(frozen=True, slots=True)
class DiskLog:
    """When the disk had each journal entry, when it could not be written at all, and the numbers of the entries whose writing failed
    although they stayed. All times on the upstream's clock.
    """

    durable_at: Sequence[float]
    outages: Sequence[tuple[float, float]] = ()
    unsure: frozenset[int] = frozenset()

    def at(self, seq: int) -> float:
        """When it had this entry."""
        return self.durable_at[seq - 1]


def check(
    journal: Iterable[Data],
    upstream: Sequence[UpstreamEvent],
    devices: Sequence[DeviceEvent],
    rules: Rules,
    disk: DiskLog | None = None,
    agents: Sequence[AgentMember] = (),
    verdict: WorldVerdict | None = None,
) -> WorldVerdict:
    """Check all that the logs and folders show; what is found is added to `verdict`, if one is given."""
    verdict = verdict or WorldVerdict()
    fold = Fold(rules, verdict)
    times = disk.durable_at if disk is not None else ()
    for place, entry in enumerate(journal):
        fold.take(entry, times[place] if place < len(times) else None)
    if fold.broken:  # a journal that does not hang together proves nothing else
        return verdict
    changes = [(times[seq - 1] if seq <= len(times) else math.inf, scope, changed) for seq, scope, changed in fold.set_limits]
    rules = replace(rules, history=rules.history.overlaid(changes))
    chats = ChatChecker(fold, devices, verdict)
    chats.check()
    checker = _Checker(fold, upstream, chats.as_calls(), rules, verdict)
    checker.check_what_happened()
    if disk is not None:
        checker.check_when(disk)
    for agent in agents:
        check_agent(agent, fold, verdict)
    return verdict


class _Checker:
    """The other logs against the folded journal. `devices`: with chats as calls over gRPC. `rules` with the limits that were set at run
    time."""

    def __init__(
        self, fold: Fold, upstream: Sequence[UpstreamEvent], devices: Sequence[DeviceEvent], rules: Rules, verdict: WorldVerdict
    ) -> None:
        self._fold = fold
        self._upstream = upstream
        self._devices = devices
        self._rules = rules
        self._check = verdict.check
        self._meet = verdict.meet

    def check_what_happened(self) -> None:
        """All that needs no time of the journal's entries."""
        for key, attempt in self._fold.attempts.items():
            self._check("I11", bool(attempt.end), f"{key} was never resolved")
        self._upstream_matches()
        for event in self._devices:
            self._reply_is_durable(event)
            if event.outcome == "ok":
                self._administrator_matches(event)
            if (event.what, event.outcome) == ("final_budget", "ok"):
                self._last_budget_matches(event)
            if (event.what, event.outcome) == ("final_usage", "ok"):
                self._last_usage_matches(event)
        self._replies_are_the_same()
        self._watchers_match()
        for name, budget in self._fold.budgets.items():  # no hold fits then, so that the journal does not show it
            caps = self._rules.history.ever[-1].cap(scope_of(name))
            below = any(cap is not None and spent > cap for spent, cap in zip(budget.used, caps, strict=True))
            self._meet("limit set below what was spent", scope_of(name) in SCOPES and below)

    def check_when(self, disk: DiskLog) -> None:
        """What needs the time at which each entry was on the disk."""
        self._nothing_before_it_is_durable(disk)
        self._nothing_while_unwritable(disk)
        self._floors_are_kept(disk)
        self._rates_are_kept(disk)
        self._set_limits_are_kept(disk)
        for event in self._devices:
            if event.outcome == "DEVICE_DISABLED":
                shut_out = any(disk.at(seq) <= event.at for seq in self._fold.shut_out[event.device])
                self._check("I10", shut_out, f"{event.device} was shut out at {event.at:.3f} and let in")

    def _upstream_matches(self) -> None:
        """I3 and I4 against the upstream's own log."""
        by_key: dict[str, list[UpstreamEvent]] = defaultdict(list)
        for event in self._upstream:
            by_key[event.key].append(event)
        spent: dict[str, Units] = defaultdict(lambda: [0, 0, 0])
        for key, events in by_key.items():
            originals = sum(event.what == "received" and not event.copy for event in events)
            self._check("I3", originals <= 1, f"the upstream was asked {originals} times under {key}")
            attempt = self._fold.attempts.get(key)
            self._check("I3", attempt is not None, f"the upstream was asked under {key}, which has no hold")
            if attempt is not None:
                executed = [event for event in events if event.what == "executed"]
                for event, name in product(executed, attempt.budgets):
                    if scope_of(name) in SCOPES:
                        spent[name] = plus(spent[name], _billed(event, events, attempt.prices[0]))
                self._charge_is_right(key, attempt, executed, events)
        for key, attempt in self._fold.attempts.items():
            if attempt.end in ("completed", "failed"):
                self._check("I4", any(event.what == "executed" for event in by_key[key]), f"{key} was charged but never executed")
        self._true_spend_is_capped(spent)

    def _charge_is_right(self, key: str, attempt: Attempt, executed: list[UpstreamEvent], events: list[UpstreamEvent]) -> None:
        if executed:
            self._check("I4", attempt.end != "refunded", f"{key} was executed and refunded")
        answers = [event for event in events if event.what in ("answered", "garbage")]
        if attempt.end in ("completed", "failed") and answers:
            charges = [
                _capped(cost(event.usage, price), attempt.hold) if event.usage else attempt.hold
                for event in answers
                for price in attempt.prices
            ]
            self._check("I4", attempt.charge in charges, f"{key} was charged {attempt.charge}, not what it cost: {charges}")

    def _true_spend_is_capped(self, spent: dict[str, Units]) -> None:
        """What the upstream really did, never mind what anybody wrote down, is within the highest cap that each budget ever had."""
        for name, used in spent.items():
            ever = [terms.cap(scope_of(name)) for terms in self._rules.history.ever]
            for unit, most in enumerate(zip(*ever, strict=True)):
                capped = [cap for cap in most if cap is not None]
                if len(capped) == len(most):
                    story = f"the upstream executed {used[unit]} {UNITS[unit]} where {name} may spend {max(capped)}"
                    self._check("I1", used[unit] <= max(capped), story)

    def _nothing_before_it_is_durable(self, disk: DiskLog) -> None:
        for event in self._upstream:
            attempt = self._fold.attempts.get(event.key)
            if event.what != "received" or attempt is None:
                continue
            since = disk.at(attempt.seq)
            story = f"{event.key} reached the upstream {since - event.at:.4f} s before its hold was durable"
            self._check("I3", since <= event.at, story)
            if any(start <= event.at <= end for start, end in disk.outages):
                self._check("I12", since <= event.at, f"{event.key} reached the upstream while the ledger could not be written")
                self._meet("request under way in an outage")

    def _nothing_while_unwritable(self, disk: DiskLog) -> None:
        """I12 where it could go wrong: a hold whose writing failed, though it stayed, and a call that was refused for it."""
        asked_upstream = {event.key for event in self._upstream if event.what == "received"}
        for key, attempt in self._fold.attempts.items():
            if attempt.seq in disk.unsure:
                self._check("I12", key not in asked_upstream, f"{key} reached the upstream though writing its hold had failed")
                self._meet("hold kept by a write that failed")
        for event, since in self._ended(ASKED, "LEDGER_UNAVAILABLE"):
            call = f"{event.device}|{event.key}|"
            sent = [
                each
                for each in self._upstream
                if each.what == "received" and each.key.startswith(call) and since <= each.at <= event.at
            ]
            held = all(each.key in self._fold.attempts and disk.at(self._fold.attempts[each.key].seq) <= each.at for each in sent)
            self._check(
                "I12",
                held,
                f"{event.device} got the refusal at {event.at:.3f} that {event.key} cannot be written, and it was sent",
            )
            self._meet("call refused by an unwritable ledger")

    def _ended(self, kinds: Sequence[str], outcome: str) -> Iterable[tuple[DeviceEvent, float]]:
        """What ended so, and when the first of the questions still open under its key was asked."""
        open_since: dict[tuple[str, str], list[float]] = defaultdict(list)
        for event in self._devices:
            if event.what not in kinds:
                continue
            asked = open_since[event.device, event.key]
            if event.outcome == "asked":
                asked.append(event.at)
            else:
                if event.outcome == outcome:
                    yield event, asked[0] if asked else 0.0
                if asked:
                    asked.pop()

    def _floors_are_kept(self, disk: DiskLog) -> None:
        """A device that is below its floor, by all that was so while it asked, is not refused by the budget that is shared fairly."""
        names = {moment.name for moment in self._fold.moments}
        for event, since in self._ended(ASKED, "BUDGET_EXHAUSTED"):
            if event.reply[0] not in names:
                continue
            terms = self._rules.history.possible(since, event.at)
            if len({(each.cap("fleet"), each.floor_ppm, each.prices) for each in terms}) > 1:
                continue  # the call may have been refused under terms that came and went without a trace
            mine = [(disk.at(moment.seq), moment.budget) for moment in self._fold.moments if moment.name == event.reply[0]]
            before = [budget for at, budget in mine if at <= since][-1:]
            around = before + [budget for at, budget in mine if since < at <= event.at]
            asked = [*terms[0].cap("fleet")], terms[0].floor_ppm
            current = all((budget.asked, budget.floor_ppm) == asked for budget in around)
            if before and current:
                hold = self._hold_of_refused(terms[0].prices)
                kept = not all(budget.must_fit(event.device, hold) for budget in around)
                self._check("I1", kept, f"{event.device} was refused {event.key} by {event.reply[0]}, and was below its floor")
                self._meet("refused by a budget that is shared fairly")

    def _hold_of_refused(self, price: tuple[int, int]) -> Units:
        """What a refused call asked to hold, which is not in the journal: at the price of that time. Where calls have different numbers of
        tokens, the largest hold of all."""
        if self._rules.call_tokens is not None:
            return cost(self._rules.call_tokens, price)
        return [max(attempt.hold[unit] for attempt in self._fold.attempts.values()) for unit in range(3)]

    def _rates_are_kept(self, disk: DiskLog) -> None:
        """In one run of a process no device, and not the fleet, begins more calls than its bucket held and gained."""
        ever = self._rules.history.ever
        device_rates, fleet_rates = [terms.device_rate for terms in ever], [terms.fleet_rate for terms in ever]
        counts: dict[tuple[int, str], int] = defaultdict(int)
        for key, attempt in self._fold.attempts.items():
            began = disk.at(self._fold.epochs[attempt.epoch])
            for who, rates in ((attempt.device, device_rates), ("", fleet_rates)):
                known = [rate for rate in rates if rate is not None]
                counts[attempt.epoch, who] += 1
                if len(known) == len(rates):
                    passed_s = disk.at(attempt.seq) - began
                    most = max(at_once + per_min * passed_s / 60 for per_min, at_once in known)
                    self._check(
                        "I1", counts[attempt.epoch, who] <= most + 1e-6, f"{key} is one call more than the rate of {who!r}"
                    )

    def _reply_is_durable(self, event: DeviceEvent) -> None:
        """I9 and I10: what was returned to a device is in the journal, and is its own."""
        if event.what == "foreign":
            hidden = event.outcome not in ("completed", "OUTCOME_UNKNOWN", "IN_PROGRESS")
            self._check(
                "I10", hidden, f"{event.device} got a reply about {event.key}, which is another device's: {event.outcome}"
            )
        elif event.what == "reuse":
            refused = event.outcome not in SETTLED
            self._check("I5", refused, f"{event.device} asked {event.key} with other content and got {event.outcome}")
        elif event.what == "gap":
            self._check(
                "I6", event.outcome != "ok", f"{event.device} opened or closed a step after {event.key}, which is to come"
            )
        elif event.outcome == "completed":
            self._reported_answer_is_durable(event)
        elif event.outcome == "OUTCOME_UNKNOWN" and event.what != "chat":
            self._unconfirmed_call_is_durable(event)
        elif event.what in ("open_step", "close_step") and event.outcome == "ok":
            self._reported_step_is_durable(event)
        if event.what == "final_call" and event.outcome != "asked":
            self._check("I11", event.outcome != "IN_PROGRESS", f"{event.key} of {event.device} is still running at the end")

    def _reported_answer_is_durable(self, event: DeviceEvent) -> None:
        text, input_tokens, output_tokens, uusd, cached = event.reply
        call = self._fold.calls.get((event.device, event.key))
        digest = hashlib.sha256(text.encode()).hexdigest()
        kept = call is not None and call.state == "completed" and call.digest == digest
        self._check("I9", kept, f"{event.device} was given an answer to {event.key} that the journal does not have")
        author = call.author if call is not None else event.device
        own = not text.startswith("answer ") or text.endswith(f" for {author}")
        self._check("I10", own, f"{event.device} was given {text!r} for {event.key}")
        if kept and call is not None:
            same = (*call.tokens, call.charged[2], call.copied) == (input_tokens, output_tokens, uusd, cached)
            self._check("I5", same, f"{event.device} got {event.reply[1:]} for {event.key}; the journal differs")

    def _unconfirmed_call_is_durable(self, event: DeviceEvent) -> None:
        call, reply = self._fold.calls.get((event.device, event.key)), dict(event.reply)
        state = reply.get("state", call and call.state)  # a chat's reply has none
        ended = call is not None and call.state not in ("dispatched", "refunded")
        same = call is not None and ended and (call.state, str(call.charged[2])) == (state, reply.get("charged_uusd"))
        self._check("I9", same, f"{event.device} got {reply} for {event.key}; the journal differs")

    def _reported_step_is_durable(self, event: DeviceEvent) -> None:
        task, _, number = event.key.rpartition("#")
        step = (event.device, task, int(number))
        opened, closed = self._fold.steps.get(step), self._fold.closed.get(step)
        written: tuple[object, ...] | None = None
        if event.what == "open_step" and opened is not None:
            written = (opened["dual"], opened["target_rate"], opened["call_credit"])
        elif event.what == "close_step" and opened is not None and closed is not None:
            written = (closed.get("dual_before", opened["dual"]), closed["dual_after"], closed["assist_rate"])
        self._check(
            "I9",
            written == event.reply,
            f"{event.device} got {event.reply} for {event.what} {event.key}, the journal has {written}",
        )

    def _replies_are_the_same(self) -> None:
        """I5: every answer to a key is the first one; so is every terminal error, and every report of a step."""
        first: dict[tuple[str, str, str], DeviceEvent] = {}
        for event in self._devices:
            call = event.what in (*ASKED, "get_call", "final_call") and event.outcome in SETTLED
            step = event.what in ("close_step", "open_step") and event.outcome == "ok"
            if call or step:
                kind = "call" if call else event.what
                known = first.setdefault((event.device, kind, event.key), event)
                same = known.outcome == event.outcome and _agree(known.reply, event.reply)
                self._check(
                    "I5", same, f"{event.device} {event.key}: {known.outcome} {known.reply}, later {event.outcome} {event.reply}"
                )
                if len(event.reply) > len(known.reply):
                    first[event.device, kind, event.key] = event

    def _watchers_match(self) -> None:
        """I9 and I11: who watches a budget sees versions that the journal has, none older than the one before, and at last the newest."""
        last: dict[tuple[str, str], DeviceEvent] = {}
        watched = {(event.device, event.key) for event in self._devices if event.what == "watch"}
        for event in self._devices:
            task = (event.device, event.key)
            if event.what == "watch" and event.outcome == "ok":
                version, dual = event.reply[:2]
                before = last.get(task, event).reply[0]
                self._check("I9", version >= before, f"{task} watches version {version} after version {before}")
                known = version == 0 or dual == self._fold.duals.seen[task].get(version)
                self._check("I6", known, f"{task} watches λ {dual} in version {version}, which the journal does not have")
                self._meet("watched version")
                last[task] = event
            elif event.what == "final_budget" and event.outcome == "ok" and task in watched:
                newest = last[task].reply if task in last else None
                self._check("I11", newest == event.reply, f"{task} saw {newest} last, where {event.reply} holds")
                self._meet("watcher at the end")

    def _administrator_matches(self, event: DeviceEvent) -> None:
        """I1, I2, I6 and I9: what an administrator reads while calls are in flight is the journal's; limits that were set stay set."""
        match event.what:
            case "disable":
                kept = bool(self._fold.shut_out[event.key])
                self._check(
                    "I9", kept, f"{event.key} was reported as disabled at {event.at:.3f}, the journal knows nothing of it"
                )
            case "read_journal":
                same = all(self._fold.hashes[seq - 1 : seq] == [head] for seq, head in event.reply)
                self._check("I9", same, f"an administrator read a journal at {event.at:.3f} that is not the journal")
            case "verify_ledger":
                self._check("I2", event.reply[0], f"verified at {event.at:.3f}: {event.reply[1:]}")
            case "list_tasks":
                for device, task, version, dual in event.reply:
                    known = dual == self._fold.duals.seen[device, task].get(version)
                    self._check("I6", known, f"version {version} of {device}'s {task} is listed with λ {dual}")
            case "list_budgets" | "final_limits":
                self._listed_budgets_match(event)

    def _set_limits_are_kept(self, disk: DiskLog) -> None:
        """What was reported to an administrator as set was so at some time while it asked."""
        for event, since in self._ended(("set_budget",), "ok"):
            name, *value = event.reply
            mine = [(disk.at(seq), settings) for seq, scope, settings in self._fold.set_limits if scope == event.key]
            before = [settings for at, settings in mine if at <= since][-1:] or [{}]
            in_force = [*before, *(settings for at, settings in mine if since < at <= event.at)]
            kept = any([settings[name]] == value if name in settings else not value for settings in in_force)
            self._check(
                "I9", kept, f"{event.key} was reported as set to {event.reply} at {event.at:.3f}; the journal has {in_force}"
            )

    def _listed_budgets_match(self, event: DeviceEvent) -> None:
        rows, scopes = event.reply
        for name, committed, reserved, limits in rows:
            used = [a + b for a, b in zip(committed, reserved, strict=True)]
            fits = all(
                most is None or sum_ <= most or self._was_allowed(sum_, unit, (scope_of(name),))
                for unit, (sum_, most) in enumerate(zip(used, limits, strict=True))
            )
            self._check("I1", fits, f"{name} is listed with {committed} and {reserved} of {limits}")
            if event.what == "final_limits":
                budget = self._fold.budgets[name]
                same = [*committed] == budget.committed and [*reserved] == budget.reserved
                self._check("I2", same, f"{name} is listed with {committed} and {reserved}, not {budget}")
        if event.what == "final_limits":
            expected = {scope: self._rules.history.ever[-1].cap(scope) for scope in SCOPES}
            self._check(
                "I9", dict(scopes) == expected, f"limits at the end are {dict(scopes)}, set and configured were {expected}"
            )

    def _last_budget_matches(self, event: DeviceEvent) -> None:
        """I2: what each device is shown at the end is the journal's sum of one of its budgets, unit by unit."""
        windows = {scope for scope, window in self._rules.history.ever[-1].windows.items() if window != "total"}
        task = (event.device, event.key)
        version, dual, *shown = event.reply
        if task in self._fold.duals.own:
            expected = self._fold.duals.now(task)
            same = (version, dual) == (expected[0], expected[1].hex())
            self._check("I6", same, f"{task} is shown version {version} with λ {dual}, the journal has {expected}")
        concerned = {name: budget for name, budget in self._fold.budgets.items() if _concerns(name, *task)}
        named = {name for name in concerned if "@" not in name and scope_of(name) not in windows}
        unused = len(named) < len(CALL_SCOPES)  # a budget that nothing was held on yet has no entry, and is shown as empty
        for unit, used, limit in zip(range(3), shown[:3], shown[3:], strict=True):
            sums = {budget.used[unit] for budget in concerned.values()}
            story = f"{event.device} is shown {used} {UNITS[unit]}, the journal's sums are {sorted(sums)}"
            self._check("I2", used in sums or (unused and used == 0), story)
            fits = limit is None or used <= limit or self._was_allowed(used, unit, CALL_SCOPES)
            self._check("I1", fits, f"{event.device} is shown {used} of {limit} {UNITS[unit]}")

    def _last_usage_matches(self, event: DeviceEvent) -> None:
        """I2 and I9: what a person is shown at the end are their own budgets, with the journal's sums and the limits that hold."""
        asker, _, task = event.key.partition("/")
        terms, scopes = self._rules.history.ever[-1], ["device", "device_task", *(["user"] if asker else [])]
        shown = sorted(scope_of(name) for name, _, _ in event.reply)
        self._check("I9", shown == scopes, f"{event.device} is shown {event.reply} for {event.key}")
        for name, used, limits in event.reply:
            journal = self._fold.budgets[name].used if name in self._fold.budgets else ZERO
            self._check("I2", [*used] == journal, f"{event.device} is shown {used} of {name}, the journal has {journal}")
            same = tuple(limits) == terms.cap(scope_of(name)) and self._is_budget_of(name, event.device, task, asker)
            self._check("I9", same, f"{event.device} is shown {name} with {limits} for {event.key}")

    def _is_budget_of(self, name: str, device: str, task: str, asker: str) -> bool:
        """Whether it is one of this person's, in whatever window."""
        plain = replace(self._rules.history.ever[-1], windows={})
        return name.partition("@")[0] == plain.budget(scope_of(name), device, task, 0, asker)

    def _was_allowed(self, used: int, unit: int, scopes: Sequence[str]) -> bool:
        """Whether this use was once within a limit: one that is lowered below what was used is shown as it was set, and takes nothing back.
        That no hold was made over the limit of its time is checked by the journal."""
        caps = (terms.cap(scope)[unit] for terms in self._rules.history.ever for scope in scopes)
        return any(cap is None or used <= cap for cap in caps)


def _billed(executed: UpstreamEvent, events: list[UpstreamEvent], price: tuple[int, int]) -> Units:
    """What an execution cost; never more than the upstream reported, for nobody can know of more than that."""
    billed = cost(executed.usage, price)
    for event in events:
        if event.what in ("answered", "garbage") and event.usage is not None:
            billed = _capped(billed, cost(event.usage, price))
    return billed


def _agree(first: tuple[Any, ...], later: tuple[Any, ...]) -> bool:
    """Whether two replies to one question are the same. Of a call without an answer a chat's reply says less than one over gRPC."""
    shorter, longer = sorted((first, later), key=len)
    return shorter == longer or (len(shorter) < len(longer) and set(shorter) <= set(longer))


def _concerns(name: str, device: str, task: str) -> bool:
    owner = name.partition("[")[2].partition("]")[0]
    return scope_of(name) in CALL_SCOPES and owner in ("", f"device:{device}", f"task:{task}", f"device:{device}/task:{task}")


def _capped(value: Units, cap: Units) -> Units:
    return [min(a, b) for a, b in zip(value, cap, strict=True)]
