"""The journal folded: balances, floors, attempts, steps and λ. It shares no code with the ledger and has its own arithmetic."""

from __future__ import annotations

import bisect
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tools.simulate.faults.duals import RULE_BEYOND_LR, Data, Duals, moved, weighed
from tools.simulate.faults.terms import CALL_SCOPES, SCOPES, DrawnTerms, History, Settings
from tools.simulate.faults.verdict import WorldVerdict

Units = list[int]
ZERO = [0, 0, 0]
PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class Rules:
    """What the checker knows of the world: the terms over time, how many milliseconds a hold may outlive its lease, the τ that devices
    wish for, and the most input and output tokens of a call where all have the same.
    """

    history: History = field(default_factory=lambda: History(((float("-inf"), DrawnTerms()),)))
    hold_slack_ms: int | None = None
    wished_rate: float = 0.5
    call_tokens: tuple[int, int] | None = None


@dataclass(slots=True)
class Attempt:
    """A hold and what became of it; `prices` are what a token may cost it."""

    seq: int
    hold: Units
    budgets: list[str]
    lease_ms: int
    device: str
    epoch: int
    prices: tuple[tuple[int, int], ...]
    end: str = ""
    charge: Units = field(default_factory=lambda: [0, 0, 0])


@dataclass(slots=True)
class Call:
    """A call of a device as it is now; `author` is the device whose answer it got."""

    data: Data
    state: str = "dispatched"
    charged: Units = field(default_factory=lambda: [0, 0, 0])
    digest: str = ""
    tokens: tuple[int, int] = (0, 0)
    copied: bool = False
    author: str = ""


@dataclass(slots=True)
class Budget:
    """A budget; where it is shared fairly, what each member can rely on and what each has used of it."""

    limits: list[int | None] = field(default_factory=lambda: [None, None, None])
    asked: list[int | None] = field(default_factory=lambda: [None, None, None])
    committed: Units = field(default_factory=lambda: [0, 0, 0])
    reserved: Units = field(default_factory=lambda: [0, 0, 0])
    floor_ppm: int = 0
    floor: Units = field(default_factory=lambda: [0, 0, 0])
    members: dict[str, Units] = field(default_factory=dict)

    @property
    def used(self) -> Units:
        """Committed and reserved."""
        return plus(self.committed, self.reserved)

    @property
    def set_aside(self) -> Units:
        """What must stay free for members below their floor."""
        return [sum(max(0, most - own[unit]) for own in self.members.values()) for unit, most in enumerate(self.floor)]

    def must_fit(self, device: str, hold: Sequence[int]) -> bool:
        """Whether this hold is within what the device can rely on; a device that would join gets a floor of what is left."""
        own, floor = self.members.get(device, ZERO), self.floor
        if device not in self.members:
            floor = floors(self.limits, self.floor_ppm, self.used, [*self.members.values(), ZERO])
        limited = [unit for unit, limit in enumerate(self.limits) if limit is not None]
        return bool(limited) and all(own[unit] + hold[unit] <= floor[unit] for unit in limited)


class FairMoment(NamedTuple):
    """A budget that is shared fairly, as it was after a journal entry."""

    seq: int
    name: str
    budget: Budget


def floors(limits: Sequence[int | None], ppm: int, used: Sequence[int], members: Sequence[Sequence[int]]) -> Units:
    """Per unit the floor of each member: f/N of the limit, or as much as what is left can still keep for all of them."""
    return [_floor(limit, ppm, used[unit], [own[unit] for own in members]) for unit, limit in enumerate(limits)]


def _floor(limit: int | None, ppm: int, used: int, members: Sequence[int]) -> int:
    if limit is None or not members:
        return 0
    levels = range(1, limit * ppm // (PPM * len(members)) + 1)
    return bisect.bisect_right(levels, limit - used, key=lambda level: sum(max(0, level - own) for own in members))


class Fold:
    """The journal folded, checking what can be seen from it and the terms alone: I1, I3, I6, I7, I8, I13."""

    def __init__(self, rules: Rules, verdict: WorldVerdict) -> None:
        self.calls: dict[tuple[str, str], Call] = {}
        self.attempts: dict[str, Attempt] = {}
        self.budgets: dict[str, Budget] = {}
        self.steps: dict[tuple[str, str, int], Data] = {}
        self.closed: dict[tuple[str, str, int], Data] = {}
        self.moments: list[FairMoment] = []
        self.duals = Duals()
        self.epochs: dict[int, int] = {}
        self.hashes: list[str] = []
        self.set_limits: list[tuple[int, str, Settings]] = []
        self.disabled: set[str] = set()
        self.shut_out: dict[str, list[int]] = defaultdict(list)
        """The entries that disabled each device."""
        self._groups: dict[tuple[str, str, int, str], str] = {}
        self._rules = rules
        self._check = verdict.check
        self._meet = verdict.meet
        self.broken = False
        self._seq = 0
        self._head = "0" * 64
        self._terms: tuple[DrawnTerms, ...] = ()
        self._set: dict[str, Settings] = {}

    def take(self, entry: Data, at: float | None = None) -> None:
        """The next entry; `at`: when it was written, on the clock of the terms (None: nobody knows)."""
        history = self._rules.history
        configured = history.ever if at is None else history.possible(at, at)
        self._terms = tuple(terms.with_all_set(self._set) for terms in configured)
        self._chain(entry)
        if self.broken:
            return
        handle = getattr(self, f"_{entry['kind']}", None)
        if handle is not None:  # else it changes nothing here: purge, and kinds of later versions
            handle(entry, entry["body"])
        self._check("I6", not self.duals.clashes, f"entry {entry['seq']}: {self.duals.clashes[-1:]}")
        self.duals.clashes.clear()

    def _chain(self, entry: Data) -> None:
        self._seq += 1
        body = _canonical(entry["body"])
        text = _canonical([entry["seq"], entry["at_ms"], entry["kind"], body, self._head])
        fits = (
            entry["seq"] == self._seq
            and entry["previous"] == self._head
            and entry["hash"] == hashlib.sha256(text.encode()).hexdigest()
        )
        self.broken = self.broken or not fits
        self._check("I13", fits, f"entry {entry['seq']} does not continue the chain")
        self._head = entry["hash"]
        self.hashes.append(self._head)

    def _epoch(self, entry: Data, body: Data) -> None:
        self.epochs[body["epoch"]] = entry["seq"]

    def _any_terms(self, fits: Callable[[DrawnTerms], bool]) -> bool:
        return any(fits(terms) for terms in self._terms)

    def _task(self, entry: Data, body: Data) -> None:
        who = (body["device"], body["task"])
        self._check("I6", who not in self.duals.own, f"task {who} begins twice")
        dual, key = float.fromhex(body["dual"]), body.get("shared_dual", "")

        def fits(terms: DrawnTerms) -> bool:
            mine = terms.tasks.get(body["task"])
            if mine is None:
                return False
            rates = {mine.rate(0, entry["at_ms"], wished).hex() for wished in (self._rules.wished_rate, mine.target_rate)}
            return (mine.dual_init.hex(), mine.dual_key(*who)) == (dual.hex(), key) and body["target_rate"] in rates

        what = f"λ {dual} of {key!r} and τ {float.fromhex(body['target_rate'])}"
        self._check("I6", self._any_terms(fits), f"task {who} begins with {what}, as nothing configured")
        begins = self.duals.meet(who, dual, key)
        written = body.get("begins", False)
        self._check("I6", written == begins, f"task {who} begins {key!r}: {written}, not {begins}")

    def _device(self, entry: Data, body: Data) -> None:
        self._meet("device let in again", body["device"] in self.disabled and not body["disabled"])
        if body["disabled"]:
            self.disabled.add(body["device"])
            self.shut_out[body["device"]].append(entry["seq"])
        else:
            self.disabled.discard(body["device"])

    def _is_let_in(self, entry: Data, body: Data) -> None:
        story = f"entry {entry['seq']} is a {entry['kind']} of {body['device']}, which is disabled"
        self._check("I10", body["device"] not in self.disabled, story)

    # budgets -------------------------------------------------------------------------------------------------------------------

    def _set_limits(self, entry: Data, body: Data) -> None:
        """What holds for a scope from here on, whatever is configured where."""
        follows = len(self.set_limits) + 1
        self._check("I9", body["version"] == follows, f"limits are set as version {body['version']}, {follows} follows")
        self._set[body["scope"]] = dict(body["changes"])
        self.set_limits.append((entry["seq"], body["scope"], self._set[body["scope"]]))

    def _limits(self, entry: Data, body: Data) -> None:
        name = body["budget"]
        budget = self.budgets.setdefault(name, Budget())
        expected = [None if ask is None else max(ask, spent) for ask, spent in zip(body["asked"], budget.used, strict=True)]
        self._check("I1", body["limits"] == expected, f"limits of {name} are {body['limits']}, not {expected}")
        self._meet("limits changed", budget.asked not in (body["asked"], [None, None, None]))
        budget.asked, budget.limits, budget.floor_ppm = body["asked"], body["limits"], body.get("floor_ppm", 0)
        self._is_configured(name, entry)
        self._floors(name, body)
        self._within(name, entry)

    def _is_configured(self, name: str, entry: Data) -> None:
        budget, scope = self.budgets[name], scope_of(name)

        def fits(terms: DrawnTerms) -> bool:
            floor_ppm = terms.floor_ppm if scope == "fleet" else 0
            return (list(terms.cap(scope)), floor_ppm) == (budget.asked, budget.floor_ppm)

        story = (
            f"{name} is held to {budget.asked}, floor {budget.floor_ppm} ppm, at entry {entry['seq']}; that was not configured"
        )
        self._check("I1", self._any_terms(fits), story)

    def _floors(self, name: str, body: Data) -> None:
        """A change of terms sets all floors anew; a late joiner may lower them, because what is spent cannot be taken back."""
        budget = self.budgets[name]
        if "joined" in body:
            self._check("I1", body["joined"] not in budget.members, f"{body['joined']} joins {name} twice")
            budget.members[body["joined"]] = [0, 0, 0]
        self._check("I1", body.get("members", 0) == len(budget.members), f"{name} has {len(budget.members)} members")
        budget.floor = floors(budget.limits, budget.floor_ppm, budget.used, list(budget.members.values()))
        full = floors(budget.limits, budget.floor_ppm, ZERO, [ZERO] * len(budget.members))
        self._meet("floors set", any(budget.floor))
        self._meet("floors lowered to what is left", budget.floor != full)
        written = (body.get("floor", ZERO), body.get("set_aside", ZERO))
        expected = (budget.floor, budget.set_aside)
        self._check("I1", written == expected, f"floor and set-aside of {name} are {written}, not {expected}")

    def _within(self, name: str, entry: Data) -> None:
        budget = self.budgets[name]
        used = plus(budget.used, budget.set_aside)
        fits = all(most is None or part <= most for part, most in zip(used, budget.limits, strict=True))
        story = f"budget {name} holds {budget.used} and keeps {budget.set_aside} of {budget.limits} at entry {entry['seq']}"
        self._check("I1", fits, story)
        self._check("I1", min(budget.reserved) >= 0, f"budget {name} has a negative hold at entry {entry['seq']}")
        if budget.floor_ppm and budget.members:
            self.moments.append(FairMoment(entry["seq"], name, replace(budget, members=dict(budget.members))))

    def _move(self, entry: Data, attempt: Attempt, reserved: Units, committed: Units) -> None:
        for name in attempt.budgets:
            budget = self.budgets.setdefault(name, Budget())
            budget.reserved, budget.committed = plus(budget.reserved, reserved), plus(budget.committed, committed)
            shared, _, device = name.removeprefix("share/").rpartition("/device:")
            if name.startswith("share/"):
                own = self.budgets[shared].members
                own[device] = plus(own.get(device, ZERO), plus(reserved, committed))
        for name in attempt.budgets:
            self._within(name, entry)

    # calls ---------------------------------------------------------------------------------------------------------------------

    def _reserve(self, entry: Data, body: Data) -> None:
        who, key = (body["device"], body["key"]), f"{body['device']}|{body['key']}|{body['attempt']}"
        self._check("I3", key not in self.attempts, f"{key} was reserved twice")
        before = self.calls.get(who)
        free = before is None or before.state == "refunded"
        self._check("I3", free, f"{key} was reserved while its call was {before and before.state}")
        self._is_let_in(entry, body)
        prices = self._prices(key, body)
        attempt = Attempt(entry["seq"], body["hold"], body["budgets"], body["lease_ms"], body["device"], body["epoch"], prices)
        self.attempts[key] = attempt
        self.calls[who] = Call(body, charged=before.charged if before else [0, 0, 0], author=body["device"])
        self._one_per_group(body)
        if body["step"] >= 0:
            open_now = (*step_of(body),) in self.steps and step_of(body) not in self.closed
            self._check("I7", open_now, f"{key} was reserved in step {body['step']}, which is not open")
        self._counts_against(key, entry, body)
        self._move(entry, attempt, body["hold"], ZERO)
        for name in body["budgets"]:
            if scope_of(name) in SCOPES:
                self._is_configured(name, entry)
        self._version(body)

    def _prices(self, key: str, body: Data) -> tuple[tuple[int, int], ...]:
        """What a token may cost this attempt: the configured prices whose most expensive call is what it holds."""
        prices = {terms.prices for terms in self._terms}
        if (tokens := self._rules.call_tokens) is not None:
            prices = {price for price in prices if cost(tokens, price) == body["hold"]}
            self._check("I4", bool(prices), f"{key} holds {body['hold']}, which no configured price asks for")
        return tuple(sorted(prices))

    def _counts_against(self, key: str, entry: Data, body: Data) -> None:
        """The budgets of a hold are exactly those of its device, task, step and time, and of the person whom it names, if any."""
        device, task, user = body["device"], body["task"], user_of(body)

        def expected(terms: DrawnTerms, at_ms: int) -> list[str]:
            scopes = SCOPES if user else CALL_SCOPES
            names = {terms.budget(scope, device, task, at_ms, user) for scope in scopes}
            if terms.floor_ppm:
                names.add(f"share/{terms.budget('fleet', device, task, at_ms)}/device:{device}")
            if body["step"] >= 0:
                names.add(f"step[device:{device}/task:{task}]#{body['step']}")
            return sorted(names)

        times = {entry["at_ms"], entry["at_ms"] - 1}  # a time is rounded to milliseconds, a window is not
        fits = self._any_terms(lambda terms: any(body["budgets"] == expected(terms, at_ms) for at_ms in times))
        self._check("I1", fits, f"{key} counts against {body['budgets']}, which are not its budgets")
        self._meet("holds in a window", any("@" in name for name in body["budgets"]))

    def _one_per_group(self, body: Data) -> None:
        if body["step"] < 0:
            return
        group = (body["device"], body["task"], body["step"], body["prompt_id"])
        first = self._groups.setdefault(group, body["key"])
        if first != body["key"]:
            free = self.calls[body["device"], first].state in ("refunded", "failed", "in_doubt")
            self._check("I4", free, f"group {group} was billed under {first} and again under {body['key']}")
            self._groups[group] = body["key"]

    def _copy(self, entry: Data, body: Data) -> None:
        device, _, key = body["source"].partition("|")
        source = self.calls.get((device, key))
        shared = body["cache_key"].startswith("fleet:")
        self._check("I10", device == body["device"] or shared, f"{body['key']} of {body['device']} got {device}'s answer")
        self._may_be_given(body, source, device)
        same = source is not None and source.digest == body["result_sha256"]
        self._check("I5", same, f"{body['key']} got an answer that its source {body['source']} does not have")
        before = self.calls.get((body["device"], body["key"]))
        charged = before.charged if before else [0, 0, 0]
        tokens = (body["input_tokens"], body["output_tokens"])
        copied = Call(body, "completed", charged, body["result_sha256"], tokens, True, device)
        self.calls[body["device"], body["key"]] = copied
        self._version(body)

    def _may_be_given(self, body: Data, source: Call | None, device: str) -> None:
        """A copy is of the same prompt group, or of a call that the configured cache may give again."""
        group = ("device", "task", "step", "prompt_id")
        own_group = source is not None and body["step"] >= 0 and all(source.data[name] == body[name] for name in group)
        allowed = {"fleet"} if device != body["device"] else {"device", "fleet"}
        mine = [terms.tasks[body["task"]] for terms in self._terms if terms.answers_cached and body["task"] in terms.tasks]
        cached = any(task.answer_cache in allowed for task in mine)
        self._check("I10", own_group or cached, f"{body['key']} of {body['device']} got an answer from a cache that is off")
        self._meet("answer of the same group", own_group)
        self._meet("answer out of the cache", not own_group)
        self._meet("answer of another device", device != body["device"])

    def _completed(self, entry: Data, body: Data) -> None:
        self._resolve(entry, body)
        call = self.calls[body["device"], body["key"]]
        call.digest, call.tokens = body["result_sha256"], (body["input_tokens"], body["output_tokens"])

    def _refunded(self, entry: Data, body: Data) -> None:
        self._check("I4", body["charge"] == ZERO, f"{body['key']} was refunded and charged {body['charge']}")
        self._resolve(entry, body)

    def _failed(self, entry: Data, body: Data) -> None:
        self._resolve(entry, body)

    def _in_doubt(self, entry: Data, body: Data) -> None:
        attempt = self.attempts.get(f"{body['device']}|{body['key']}|{body['attempt']}")
        whole = attempt is not None and body["charge"] == attempt.hold
        self._check("I4", whole, f"{body['key']} is in doubt but not charged at its hold")
        self._resolve(entry, body)

    def _resolve(self, entry: Data, body: Data) -> None:
        key = f"{body['device']}|{body['key']}|{body['attempt']}"
        attempt, call = self.attempts.get(key), self.calls.get((body["device"], body["key"]))
        self._check("I3", attempt is not None, f"{key} was resolved without a hold")
        if attempt is None or call is None:
            return
        self._check("I3", not attempt.end, f"{key} was {attempt.end} and then {entry['kind']}: resolved twice")
        within = all(0 <= part <= most for part, most in zip(body["charge"], attempt.hold, strict=True))
        self._check("I4", within, f"{key} was charged {body['charge']}, its hold is {attempt.hold}")
        if self._rules.hold_slack_ms is not None:
            late_ms = entry["at_ms"] - attempt.lease_ms
            self._check("I8", late_ms <= self._rules.hold_slack_ms, f"{key} was held {late_ms} ms over its lease")
        self._meet(f"call {entry['kind']}")
        self._meet("call of a disabled device settled", attempt.device in self.disabled)
        attempt.end, attempt.charge = entry["kind"], body["charge"]
        call.state, call.charged = entry["kind"], plus(call.charged, body["charge"])
        self._move(entry, attempt, minus(ZERO, attempt.hold), body["charge"])
        self._version({**call.data, **body})

    # steps ---------------------------------------------------------------------------------------------------------------------

    def _open_step(self, entry: Data, body: Data) -> None:
        step, task, key = step_of(body), (body["device"], body["task"]), body.get("shared_dual", "")
        self._check("I6", step not in self.steps, f"step {step} was opened twice")
        self._is_let_in(entry, body)
        self._check("I6", self._opens_as_configured(entry, body), f"step {step} opened as nothing configured: {body}")
        follows = body["step"] == 0 or (*task, body["step"] - 1) in self.closed
        self._check("I6", follows, f"step {step} opened before the one before it was closed")
        self._meet(f"step with a λ of scope {_dual_scope(key)}")
        waiting = self.duals.shared[key].waiting if key in self.duals.shared else None
        self._meet("shared λ begun by a task that waits", waiting not in (None, task))
        self._meet("scope of a λ changed", self.duals.held_to.get(task, key) != key and body["step"] > 0)
        self.steps[step] = body
        self.duals.opened(body, entry["at_ms"])
        credit = [body["call_credit"], None, None]
        self.budgets[f"step[device:{step[0]}/task:{step[1]}]#{step[2]}"] = Budget(limits=credit, asked=credit)
        self._version(body)

    def _opens_as_configured(self, entry: Data, body: Data) -> bool:
        """Whether λ, its scope, τ, η and credit of a step are what some terms ask for."""
        task = (body["device"], body["task"])

        def fits(terms: DrawnTerms) -> bool:
            mine = terms.tasks[body["task"]]
            key = mine.dual_key(*task)
            rate = mine.rate(body["step"], entry["at_ms"], self._rules.wished_rate)
            dual = self.duals.expected_at_opening(task, body["step"], key, mine.dual_init)
            written = (body.get("shared_dual", ""), body["target_rate"], body["dual_lr"], body["dual"], body["call_credit"])
            credit = mine.credit(rate, body["planned_prompts"])
            beyond_lr = {name: body[name] for name in RULE_BEYOND_LR if name in body}
            return (*written, beyond_lr) == (key, rate.hex(), mine.dual_lr.hex(), dual.hex(), credit, mine.beyond_lr)

        return self._any_terms(fits)

    def _close_step(self, entry: Data, body: Data) -> None:
        step = step_of(body)
        self._check("I6", step not in self.closed, f"step {step} moved λ twice")
        opened = self.steps.get(step)
        self._check("I6", opened is not None, f"step {step} was closed and never opened")
        if opened is None:
            return
        rate, target = body["help_units"] / body["total_units"], float.fromhex(opened["target_rate"])
        before, round_units = self.duals.start_of_move(opened, body, entry["at_ms"])
        held = self.duals.held(opened)
        lr = weighed(float.fromhex(opened["dual_lr"]), body["total_units"], round_units)
        dual, holds = moved(before, held, lr, rate - target, opened)
        written = (body.get("dual_before", opened["dual"]), body.get("round_units", 0))
        self._check("I6", written == (before.hex(), round_units), f"step {step} starts at {written}, not {before}, {round_units}")
        self._check("I6", body["dual_after"] == dual.hex(), f"step {step}: λ {body['dual_after']}, not {dual.hex()}")
        self._check("I6", body["assist_rate"] == rate.hex(), f"step {step}: rate {body['assist_rate']}, not {rate.hex()}")
        self._meet("λ moved by others during a step", before.hex() != opened["dual"])
        self._meet("λ moved by a share of a round", round_units > body["total_units"])
        self._help_units(step, body)
        self.closed[step] = body
        self._meet("λ moved in proportion", dual != before and holds != held)
        self._meet("λ held at its ceiling", opened.get("dual_ceiling") == dual.hex())
        self.duals.closed(opened, dual, holds)
        self._version(body)

    def _leave(self, entry: Data, body: Data) -> None:
        units, seen_ms = self.duals.leave(body["shared_dual"], body["device"])
        idle_ms = entry["at_ms"] - seen_ms
        long_enough = self._any_terms(lambda terms: idle_ms + 1 >= 1000 * terms.dual_idle_s)
        story = f"{body['device']} left the rounds of {body['shared_dual']} with {units} units after {idle_ms} ms"
        self._check("I6", units > 0 and long_enough, story)
        self._meet("idle device left a round")

    def _help_units(self, step: tuple[str, str, int], body: Data) -> None:
        """Calls answered for more units than were reported must be reported as a discrepancy, and nothing else may be."""
        declared: dict[str, int] = defaultdict(int)
        for call in self.calls.values():
            if call.state == "completed" and step_of(call.data) == step:
                prompt = call.data["prompt_id"]
                declared[prompt] = max(declared[prompt], call.data["help_units"])
        noted = any(text.startswith("calls answered for") for text in body["discrepancies"])
        more = sum(declared.values()) > body["help_units"]
        if not noted or more:  # units that went without a call are not in the journal: they may only raise the number reported
            story = f"step {step} reported {body['help_units']} units, its calls {sum(declared.values())}, without a discrepancy"
            self._check("I7", noted == more, story)
        self._check("I7", 0 <= body["help_units"] <= body["total_units"], f"step {step} has impossible units")

    def _version(self, body: Data) -> None:
        task = (body["device"], body["task"])
        version = self.duals.touch(task)
        self._check("I2", body["version"] == version, f"{task} jumps to version {body['version']}, not {version}")


def cost(tokens: tuple[int, int] | None, price: tuple[int, int]) -> Units:
    """What one call with `tokens` (input, output) costs."""
    tokens_in, tokens_out = tokens or (0, 0)
    return [1, tokens_in + tokens_out, tokens_in * price[0] + tokens_out * price[1]]


def step_of(body: Data) -> tuple[str, str, int]:
    """Device, task and step."""
    return (body["device"], body["task"], body["step"])


def scope_of(budget: str) -> str:
    """The scope in a budget's name."""
    return budget.split("@")[0].split("[")[0]


def user_of(body: Data) -> str:
    """The person whose budget a hold counts against, by the budget's name; "" for a call that names nobody."""
    own = [name for name in body.get("budgets", ()) if scope_of(name) == "user"]
    return own[0].rpartition("/user:")[2].rpartition("]")[0] if own else ""


def plus(left: Units, right: Units) -> Units:
    """The sum, unit by unit."""
    return [a + b for a, b in zip(left, right, strict=True)]


def minus(left: Units, right: Units) -> Units:
    """The difference, unit by unit."""
    return [a - b for a, b in zip(left, right, strict=True)]


def _dual_scope(key: str) -> str:
    scope, bracket, _ = key.partition("[")
    return scope if bracket else "fleet_all" if key else "task"


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
