"""Requests to a ledger with defaults that suit most tests."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from coordinator.ledger.accounts import (
    SERVING_STEP,
    Amount,
    AmountLimits,
    BudgetTerms,
    CloseStepRequest,
    OpenStepRequest,
    ReserveRequest,
    Settlement,
    budget_key,
)
from coordinator.ledger.journal import JournalEntry
from edge.dagrpo.dual import ProportionalIntegral
from edge.rpc.client import StepUnits

NOW = 1_700_000_000.0
HOLD = Amount(1, 300, 900)
FLEET = budget_key("fleet")
ROOMY = BudgetTerms(FLEET, AmountLimits(1_000, 1_000_000, 10_000_000))


def reserve_request(key: str = "k1", *, budgets: Sequence[BudgetTerms] = (ROOMY,), **changes: object) -> ReserveRequest:
    """A serving call of device d1 with a lease of 60 s."""
    request = ReserveRequest(
        device="d1",
        key=key,
        fingerprint=f"content of {key}",
        task="math",
        step=SERVING_STEP,
        prompt_id=f"prompt of {key}",
        model="m",
        help_units=2,
        hold=HOLD,
        budgets=tuple(budgets),
        lease_until=NOW + 60.0,
        now=NOW,
        initial_dual=0.5,
        target_rate=0.3,
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def settlement(key: str = "k1", attempt: int = 1, **changes: object) -> Settlement:
    """An answer that cost a third of the hold."""
    answered = Settlement(
        device="d1",
        key=key,
        attempt=attempt,
        charge=Amount(1, 100, 300),
        input_tokens=60,
        output_tokens=40,
        text="42",
        finish="stop",
        upstream_id="up-1",
        now=NOW + 1.0,
    )
    return replace(answered, **changes)  # type: ignore[arg-type]


def open_request(
    step: int = 0,
    dual_lr: float = 0.02,
    dual_proportional: float = 0.0,
    dual_window: int = 1,
    dual_ceiling: float = math.inf,
    **changes: object,
) -> OpenStepRequest:
    """A step of 16 prompts in groups of 8 at τ = 0.3."""
    rule = ProportionalIntegral(dual_lr, dual_proportional, dual_window, dual_ceiling)
    request = OpenStepRequest("d1", "math", step, 16, 8, 0.3, rule, 0.5, 2.0, NOW)
    return replace(request, **changes)  # type: ignore[arg-type]


def close_request(
    step: int = 0,
    help_units: int = 32,
    total_units: int = 128,
    uncalled_units: int = 0,
    own_rate: float | None = None,
    **changes: object,
) -> CloseStepRequest:
    """A quarter of the responses asked."""
    units = StepUnits(total_units, help_units, uncalled_units, own_rate)
    return replace(CloseStepRequest("d1", "math", step, units, NOW + 2.0), **changes)  # type: ignore[arg-type]


def read_export(lines: Iterable[str]) -> Iterator[JournalEntry]:
    """Entries of an export, to check its chain elsewhere. Raises ValueError on a line that is not one."""
    for line in lines:
        data = json.loads(line)
        body = json.dumps(data["body"], sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        yield JournalEntry(data["seq"], data["at_ms"], data["kind"], body, data["previous"], data["hash"])
