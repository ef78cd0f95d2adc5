"""The values of the budget ledger. Knows amounts, rows, requests and outcomes; knows nothing of storage, gRPC or providers.

Amounts are integers: calls, tokens, micro-USD. Times are seconds since the epoch as `Clock.now()` gives them; rows keep integer
milliseconds. λ, τ and η are float64 and are kept as `float.hex()` wherever they are stored, so that a replay is bit-exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from edge.core.units import BUDGET_UNITS, BY_LEDGER_NAME
from edge.dagrpo.dual import ProportionalIntegral
from edge.rpc.client import StepUnits

UNITS = tuple(unit.ledger for unit in BUDGET_UNITS)
SERVING_STEP = -1
FLEET_CACHE = "fleet:"


class Amount(Struct, frozen=True, gc=False, array_like=True):
    """Calls, tokens and micro-USD, none negative; [calls, tokens, uusd] in the journal."""

    calls: int = 0
    tokens: int = 0
    uusd: int = 0

    def __post_init__(self) -> None:
        if self.calls < 0 or self.tokens < 0 or self.uusd < 0:
            raise ValueError(f"an amount cannot be negative: {self.calls} calls, {self.tokens} tokens, {self.uusd} micro-USD")

    def plus(self, other: Amount) -> Amount:
        """The sum, unit by unit."""
        if other is NO_AMOUNT:
            return self
        return Amount(self.calls + other.calls, self.tokens + other.tokens, self.uusd + other.uusd)

    def minus(self, other: Amount) -> Amount:
        """The difference, unit by unit. Raises ValueError where it would be negative."""
        if other is NO_AMOUNT:
            return self
        return Amount(self.calls - other.calls, self.tokens - other.tokens, self.uusd - other.uusd)

    @property
    def units(self) -> tuple[int, int, int]:
        """Calls, tokens, micro-USD."""
        return self.calls, self.tokens, self.uusd

    def short_of(self, floor: Amount) -> Amount:
        """What is missing to `floor`, unit by unit; 0 where it is reached."""
        return Amount(*(max(0, most - own) for own, most in zip(self.units, floor.units, strict=True)))

    def capped(self, cap: Amount) -> Amount:
        """The smaller of both, unit by unit."""
        return Amount(min(self.calls, cap.calls), min(self.tokens, cap.tokens), min(self.uusd, cap.uusd))


NO_AMOUNT = Amount()


def amount_text(unit: str, count: int) -> str:
    """So much of a unit (calls, tokens, uusd) in words: `1 call`, `20 tokens`, `0.00005 USD`."""
    return BY_LEDGER_NAME[unit].amount(count)


class AmountLimits(Struct, frozen=True, gc=False, array_like=True):
    """The most that may be spent, per unit; None where there is no limit."""

    calls: int | None = None
    tokens: int | None = None
    uusd: int | None = None

    @property
    def units(self) -> tuple[int | None, int | None, int | None]:
        """Those of calls, tokens, micro-USD."""
        return self.calls, self.tokens, self.uusd

    def units_exceeded(self, used: Amount) -> tuple[str, ...]:
        """Names of the units in which `used` is above the limit, in the order calls, tokens, uusd."""
        triples = zip(UNITS, self.units, used.units, strict=True)
        return tuple(name for name, limit, value in triples if limit is not None and value > limit)

    def at_least(self, used: Amount) -> AmountLimits:
        """These limits, raised to `used` where they are below it: what is spent cannot be taken back."""
        pairs = zip(self.units, used.units, strict=True)
        return AmountLimits(*(None if limit is None else max(limit, value) for limit, value in pairs))


class BudgetTerms(Struct, frozen=True, gc=False):
    """A budget that a call must fit into. It is created at its first use; changed limits apply at the next use and are
    journalled."""

    key: str
    """Names scope and window, such as `fleet@2026-10` or `device:d1/task:math@2026-10-07`: see `budget_key`."""
    limits: AmountLimits
    """Those that the configuration asks for now."""
    floor_ppm: int = 0
    """f > 0 shares the budget fairly: of the N devices that hold or have spent of it each has floor(limit·f/(N·10^6)) that the
    others cannot take; a device joins with its first hold."""


def budget_key(scope: str, device: str = "", task: str = "", window: str = "", *, user: str = "") -> str:
    """The key of a budget: `scope` alone or with device, task and user, and the window it belongs to ("" for one that never ends)."""
    parts = (device and f"device:{device}", task and f"task:{task}", user and f"user:{user}")
    owner = "/".join(part for part in parts if part)
    return "".join((scope, f"[{owner}]" if owner else "", f"@{window}" if window else ""))


def scope_of(key: str) -> str:
    """The scope that a budget's key names."""
    return key.split("@")[0].split("[")[0]


STEP_PREFIX = "step["


def step_budget_key(device: str, task: str, step: int) -> str:
    """The key of a step's call credit, which is a budget like any other."""
    return f"{budget_key('step', device, task)}#{step}"


def share_prefix(budget: str) -> str:
    """What the keys of all members' shares of a budget begin with."""
    return f"share/{budget}/"


def is_share(key: str) -> bool:
    """Whether this is the key of a member's share."""
    return key.startswith("share/")


def share_key(budget: str, member: str) -> str:
    """The key of what one member has used of a budget that is shared fairly; a budget row without limits."""
    return f"{share_prefix(budget)}device:{member}"


def dual_key(scope: str, device: str, task: str) -> str:
    """The key of the λ that a task of a device moves: "" for one of its own (scope `task`), `global[device:d1]` for one over all tasks of
    a device, `fleet[task:math]` for one over all devices, `fleet` (scope `fleet_all`) for one over everything."""
    if scope == "task":
        return ""
    return {"global": budget_key("global", device), "fleet": budget_key("fleet", task=task), "fleet_all": "fleet"}[scope]


def is_fleet_dual(key: str) -> bool:
    """Whether many devices move this λ, each by its share of a round."""
    return key.startswith("fleet")


AS_CONFIGURED = "configured"


class SetLimits(Struct, frozen=True, gc=False):
    """What was set at run time for one scope and wins over the configuration."""

    scope: str
    changes: tuple[tuple[str, int | str | None], ...]
    """(setting, value) pairs sorted by setting, such as `("calls_limit", 5)` or `("window", "day")`; None: no limit."""
    version: int
    """Counts the changes of all scopes; this was the latest here."""


def limits_version(rows: Sequence[SetLimits]) -> int:
    """How often limits were set, over all scopes."""
    return max((row.version for row in rows), default=0)


class CallState(StrEnum):
    """The state of a call. All but DISPATCHED are terminal; a REFUNDED call may be tried again with the same key."""

    DISPATCHED = "dispatched"
    COMPLETED = "completed"
    REFUNDED = "refunded"
    FAILED = "failed"
    IN_DOUBT = "in_doubt"


class BudgetRow(Struct, frozen=True, gc=False):
    """A budget as the database holds it: committed + reserved + set_aside <= limits, in every unit."""

    key: str
    asked: AmountLimits
    """What the configuration wants."""
    limits: AmountLimits
    """What is enforced: `asked`, raised to what was already used."""
    committed: Amount = Amount()
    """What ended calls were charged."""
    reserved: Amount = Amount()
    """What open attempts hold."""
    floor_ppm: int = 0
    """Above 0 it is shared fairly."""
    members: int = 0
    """Devices that share it."""
    floor: Amount = Amount()
    """What each of them has for itself."""
    set_aside: Amount = Amount()
    """The part of all floors that is not used yet."""

    @property
    def used(self) -> Amount:
        """Committed and reserved together; never above `limits`."""
        return self.committed.plus(self.reserved)

    def held(self, amount: Amount, from_aside: Amount) -> BudgetRow | None:
        """With a hold more, `from_aside` of it out of what was set aside; None where that does not lie within the limits. Raises
        ValueError."""
        limits, spent, open_, aside = self.limits, self.committed, self.reserved.plus(amount), self.set_aside.minus(from_aside)
        if (
            (limits.calls is not None and spent.calls + open_.calls + aside.calls > limits.calls)
            or (limits.tokens is not None and spent.tokens + open_.tokens + aside.tokens > limits.tokens)
            or (limits.uusd is not None and spent.uusd + open_.uusd + aside.uusd > limits.uusd)
        ):
            return None
        return replace(self, reserved=open_, set_aside=aside)

    def resolved(self, hold: Amount, charge: Amount, to_aside: Amount) -> BudgetRow:
        """With a hold less and its charge, `to_aside` of it set aside again. Raises ValueError where an amount would be negative."""
        spent, open_, aside = self.committed.plus(charge), self.reserved.minus(hold), self.set_aside.plus(to_aside)
        return replace(self, committed=spent, reserved=open_, set_aside=aside)


class CallContent(Struct, frozen=True, gc=False):
    """What a call is, whatever becomes of it."""

    device: str
    key: str
    fingerprint: str
    """Digest of the request's content, not of its key."""
    task: str
    step: int
    """SERVING_STEP outside training."""
    prompt_id: str
    model: str
    help_units: int

    def content(self) -> dict[str, Any]:
        """These fields by name."""
        return {name: getattr(self, name) for name in CallContent.__struct_fields__}


class CallRow(CallContent, frozen=True, gc=False):
    """A call of a device."""

    state: CallState
    attempts: int
    charged: Amount
    """Sum over all its attempts."""
    cache_key: str
    updated_ms: int
    input_tokens: int = 0
    output_tokens: int = 0
    result: str | None = None
    """None until completed, and after a purge."""
    result_sha256: str = ""
    finish: str = ""
    upstream_id: str = ""
    reason: str = ""
    """Why it was refunded, failed or left in doubt."""
    source_key: str = ""
    """The call (`device|key`) whose stored answer this one was given; "" for one of its own."""
    beyond_text: str = ""
    """What the answer had in addition to its text, see ProviderResult; it goes with `result`."""

    @property
    def cached(self) -> bool:
        """Whether the answer came from an earlier call, so that nothing was charged."""
        return bool(self.source_key)


class AttemptRow(Struct, frozen=True, gc=False):
    """One try at the upstream: the billing unit."""

    device: str
    key: str
    number: int
    state: CallState
    hold: Amount
    charged: Amount
    budgets: tuple[str, ...]
    """Keys of the budgets that its hold lies on."""
    epoch: int
    """The process run that owns it."""
    lease_ms: int
    """When the sweep charges it, should nobody have resolved it."""

    @property
    def billing_key(self) -> str:
        """Call and attempt number: the idempotency key sent upstream."""
        return f"{self.device}|{self.key}|{self.number}"


class StepRow(Struct, frozen=True, gc=False):
    """A learning step. Opened with λ, τ and its rule; closed with the units reported and the new λ."""

    device: str
    task: str
    step: int
    planned_prompts: int
    group_size: int
    dual: float
    """λ that it was opened with."""
    target_rate: float
    dual_lr: float
    """η."""
    call_credit: int | None
    """Most calls it may make; None: no such limit."""
    closed: bool = False
    total_units: int = 0
    help_units: int = 0
    dual_after: float = 0.0
    assist_rate: float = 0.0
    discrepancies: tuple[str, ...] = ()
    shared_dual: str = ""
    """Key of the λ that it moves, which others may have moved since it was opened; "" for the task's own."""
    dual_before: float = 0.0
    """λ where the update started."""
    round_units: int = 0
    """Units of all members of a fleet's λ at the update; 0 where the step moved λ with its whole weight."""
    dual_proportional: float = 0.0
    """k_p."""
    dual_window: int = 1
    dual_ceiling: float = math.inf
    own_rate: float | None = None
    """What the update acts on in place of the assist rate, where the report has it."""
    uncalled_units: int = 0
    """Help units for which no call was made."""

    @property
    def rule(self) -> ProportionalIntegral:
        """How it moves λ."""
        return ProportionalIntegral(self.dual_lr, self.dual_proportional, self.dual_window, self.dual_ceiling)


class TaskRow(Struct, frozen=True, gc=False):
    """The state of one task on one device."""

    device: str
    task: str
    dual: float
    """λ; with a `shared_dual` the last one that this task opened or closed a step with."""
    target_rate: float
    next_step: int
    """The step that is open, or comes next."""
    version: int
    """Grows with every change."""
    charged: Amount = Amount()
    """Total over all windows, without open holds."""
    shared_dual: str = ""
    """Key of the shared λ that it is held to, "" for one of its own."""
    recent: tuple[float, ...] = ()
    """What DualState keeps of the reports in the window; goes with `dual`."""


class SharedDual(Struct, frozen=True, gc=False):
    """A λ shared by several tasks or devices."""

    key: str
    """See `dual_key`."""
    dual: float
    updates: int = 0
    """How often it moved."""
    units: int = 0
    """Sum of its members'."""
    recent: tuple[float, ...] = ()
    """What DualState keeps of the reports in the window, of a λ that one device moves."""


class DualMember(Struct, frozen=True, gc=False):
    """A device that moves a fleet's λ."""

    shared_dual: str
    device: str
    units: int
    """Units of its latest step, planned or reported; 0: it left."""
    seen_ms: int
    """When it opened or closed a step last."""


class DeviceRow(Struct, frozen=True, gc=False):
    """A registered device."""

    device: str
    agent_version: str
    tasks: tuple[str, ...]
    first_seen_ms: int
    last_seen_ms: int
    disabled: bool = False
    """Such a device gets neither holds nor steps. Alone of these it concerns money and is journalled."""


class ReserveRequest(CallContent, frozen=True, gc=False):
    """T1."""

    hold: Amount
    """The most this call can cost."""
    budgets: tuple[BudgetTerms, ...]
    """All limits concerned except the step's credit, which the ledger adds by itself."""
    lease_until: float
    now: float
    cache_key: str = ""
    """Digest of prompt, model and sampling under which a completed answer may be given again without a charge; "" for none.
    Answers cross devices only under a key that begins with FLEET_CACHE."""
    cache_since: float = 0.0
    """Only answers completed then or later are given."""
    initial_dual: float = 0.0
    """This, `target_rate` and `shared_dual` count only at a task's first contact."""
    target_rate: float = 0.0
    shared_dual: str = ""
    """Key of the task's λ, see `dual_key`."""
    limits_version: int = 0
    """Which limits set at run time `budgets` follow; older ones hold nothing (Outdated)."""


class Reserved(Struct, frozen=True, gc=False):
    """The hold is durable: the upstream may be called."""

    attempt: int
    billing_key: str
    """Goes along as the upstream's idempotency key."""


class Replayed(Struct, frozen=True, gc=False):
    """The answer is already there; nothing may be sent and nothing is charged."""

    call: CallRow


class InProgress(Struct, frozen=True, gc=False):
    """The call, or the one call of its prompt group, is running."""

    key: str
    """Of the call that runs."""


class CallEnded(Struct, frozen=True, gc=False):
    """The key's call ended without an answer (FAILED, IN_DOUBT, or COMPLETED with the text purged); only a new key may try again."""

    call: CallRow


class Outdated(Struct, frozen=True, gc=False):
    """Nothing was held: other limits were set, perhaps at another replica. These hold now; ask again with budgets that follow them."""

    limits: tuple[SetLimits, ...]


ReserveOutcome = Reserved | Replayed | InProgress | CallEnded | Outdated


class Settlement(Struct, frozen=True, gc=False):
    """T2. What the upstream answered."""

    device: str
    key: str
    attempt: int
    charge: Amount
    """Above the hold it is cut to the hold and journalled as an overrun."""
    input_tokens: int
    output_tokens: int
    text: str
    finish: str
    upstream_id: str
    now: float
    budgets: tuple[BudgetTerms, ...] = ()
    """Those to be looked at afterwards, for the caller to report."""
    beyond_text: str = ""


class Resolution(Struct, frozen=True, gc=False):
    """What became of an attempt, and of its call."""

    applied: bool
    """False when it had been resolved before: then nothing changed."""
    call: CallRow
    attempt: AttemptRow
    view: BudgetView | None = None
    """Where one was asked for."""


class OpenStepRequest(Struct, frozen=True, gc=False):
    """T4, opening. τ and the rule of λ of the first opening of a step stay its own."""

    device: str
    task: str
    step: int
    planned_prompts: int
    group_size: int
    target_rate: float
    rule: ProportionalIntegral
    initial_dual: float
    """Counts only until a task's first step is opened."""
    credit_factor: float | None
    """κ gives the credit ceil(κ·τ·planned_prompts); None: no credit limit."""
    now: float
    shared_dual: str = ""
    """Key of the λ to open it with and to move: see `dual_key`."""


class CloseStepRequest(Struct, frozen=True, gc=False):
    """T4, closing: what a step's responses came to."""

    device: str
    task: str
    step: int
    units: StepUnits
    now: float
    refused: bool = False
    """A budget refused calls of this step."""


class BudgetView(Struct, frozen=True, gc=False):
    """One consistent look at a device's task and its budgets."""

    task: TaskRow | None
    """None before its first step or call."""
    budgets: tuple[BudgetRow, ...]
    limits: tuple[SetLimits, ...] = ()
    """Those that were set at run time."""
