"""Which rows an operation can touch, told before it runs, so that a store far away fetches them all at once. A reach that says too little
costs another round trip, never a wrong answer: the store finds out what was missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

from coordinator.ledger.accounts import (
    SERVING_STEP,
    BudgetTerms,
    CloseStepRequest,
    OpenStepRequest,
    ReserveRequest,
    Settlement,
    share_key,
    step_budget_key,
)
from coordinator.ledger.transitions import milliseconds


class Kind(StrEnum):
    """A question to the tables; named for the getter it answers.

    ATTEMPT, EXPIRED and ORPHANED bring the call, budgets and task along, a task and a member of a round its shared λ, and a step both.
    """

    CALL = "call"
    GROUP = "group"
    CACHED = "cached"
    STEP_CALLS = "step_calls"
    ATTEMPT = "attempt"
    EXPIRED = "expired"
    ORPHANED = "orphaned"
    BUDGET = "budget"
    STEP = "step"
    TASK = "task"
    BUDGETS_UNDER = "budgets_under"
    BUDGETS_AFTER = "budgets_after"
    CALLS_AFTER = "calls_after"
    PRICE = "price"
    PRICE_MEMBER = "price_member"
    IDLE_PRICE_MEMBERS = "idle_price_members"
    DEVICE = "device"
    SET_LIMITS = "set_limits"
    OLD_RESULTS = "old_results"
    ALL_BUDGETS = "all_budgets"
    ALL_TASKS = "all_tasks"
    ALL_STEPS = "all_steps"
    ALL_CALLS = "all_calls"
    ALL_ATTEMPTS = "all_attempts"
    ALL_PRICES = "all_prices"
    ALL_PRICE_MEMBERS = "all_price_members"
    ALL_DEVICES = "all_devices"
    JOURNAL = "journal"


Want = tuple[Any, ...]  # (Kind, *the getter's arguments)
Reach = frozenset[Want]
NOTHING: Reach = frozenset()
SET_LIMITS: Reach = frozenset({(Kind.SET_LIMITS,)})


def reserve_reach(request: ReserveRequest) -> Reach:
    """T1: the call, what could answer it, its device, its step, its task, all its budgets with the device's shares of them, and what
    was set over their limits."""
    device, task, step = request.device, request.task, request.step
    wants: set[Want] = {(Kind.CALL, device, request.key), (Kind.TASK, device, task), (Kind.DEVICE, device)}
    wants |= budgets_reach(request.budgets) | SET_LIMITS
    wants |= {(Kind.BUDGET, share_key(terms.key, device)) for terms in request.budgets if terms.floor_ppm > 0}
    if request.cache_key:
        wants.add((Kind.CACHED, request.cache_key))
    if step != SERVING_STEP:
        wants.add((Kind.GROUP, device, task, step, request.prompt_id))
        wants.add((Kind.STEP, device, task, step))
        wants.add((Kind.BUDGET, step_budget_key(device, task, step)))
    return frozenset(wants)


def attempt_reach(device: str, key: str, number: int, *_: object) -> Reach:
    """T2: an attempt with its call, its budgets and its task."""
    return frozenset({(Kind.ATTEMPT, device, key, number)})


def settle_reach(settlement: Settlement) -> Reach:
    """T2: the attempt, and the budgets that are looked at afterwards."""
    attempt = attempt_reach(settlement.device, settlement.key, settlement.attempt)
    return attempt | budgets_reach(settlement.budgets) | SET_LIMITS


def sweep_reach(now: float) -> Reach:
    """T3: what is left over, with all that resolving it touches."""
    return frozenset({(Kind.EXPIRED, milliseconds(now)), (Kind.ORPHANED,)})


def open_step_reach(request: OpenStepRequest) -> Reach:
    """T4, opening: the step, its task, its device, and the λ it moves."""
    device, task = request.device, request.task
    wants: set[Want] = {(Kind.STEP, device, task, request.step), (Kind.TASK, device, task), (Kind.DEVICE, device)}
    if request.price:
        wants |= {(Kind.PRICE, request.price), (Kind.PRICE_MEMBER, request.price, device)}
    return frozenset(wants)


def close_step_reach(request: CloseStepRequest) -> Reach:
    """T4, closing: the step with the λ it moves, its calls and its task."""
    step = (request.device, request.task, request.step)
    return frozenset({(Kind.STEP, *step), (Kind.STEP_CALLS, *step), (Kind.TASK, request.device, request.task)})


def devices_reach(devices: Iterable[str]) -> Reach:
    """These devices."""
    return frozenset((Kind.DEVICE, device) for device in devices)


def budgets_reach(budgets: Iterable[BudgetTerms]) -> Reach:
    """These budgets."""
    return frozenset((Kind.BUDGET, terms.key) for terms in budgets)


def get_budget_reach(device: str, task: str, budgets: Iterable[BudgetTerms]) -> Reach:
    """A task with these budgets, and what was set over their limits."""
    return frozenset({(Kind.TASK, device, task)}) | budgets_reach(budgets) | SET_LIMITS


def _all(kind: Kind) -> Callable[..., Reach]:
    return lambda *_, **__: frozenset({(kind,)})


def _budget_page(key: str, limit: int, *, with_steps: bool = False) -> Reach:
    return frozenset({(Kind.BUDGETS_AFTER, key, limit, with_steps)})


def _call_page(after_device: str, after_key: str, limit: int, *, device: str = "") -> Reach:
    return frozenset({(Kind.CALLS_AFTER, after_device, after_key, limit, device)})


_REACHES: Mapping[str, Callable[..., Reach]] = {
    "reserve": reserve_reach,
    "settle": settle_reach,
    "refund": attempt_reach,
    "fail": attempt_reach,
    "doubt": attempt_reach,
    "sweep": sweep_reach,
    "open_step": open_step_reach,
    "close_step": close_step_reach,
    "get_call": lambda device, key: frozenset({(Kind.CALL, device, key)}),
    "get_task": lambda device, task: frozenset({(Kind.TASK, device, task)}),
    "get_price": lambda key: frozenset({(Kind.PRICE, key)}),
    "get_budget": get_budget_reach,
    "list_tasks": _all(Kind.ALL_TASKS),
    "list_prices": _all(Kind.ALL_PRICES),
    "list_devices": _all(Kind.ALL_DEVICES),
    "list_budgets": _all(Kind.ALL_BUDGETS),
    "list_budgets_after": _budget_page,
    "list_calls_after": _call_page,
    "list_set_limits": _all(Kind.SET_LIMITS),
    "set_limits": _all(Kind.SET_LIMITS),
    "register_device": lambda device, *_: devices_reach([device]),
    "saw_devices": devices_reach,
    "set_device_disabled": lambda device, *_: devices_reach([device]),
    "leave_idle_prices": lambda seen_before, _: frozenset({(Kind.IDLE_PRICE_MEMBERS, milliseconds(seen_before))}),
    "purge_results": lambda before, _: frozenset({(Kind.OLD_RESULTS, milliseconds(before))}),
    "read_journal": lambda after, limit: frozenset({(Kind.JOURNAL, after, limit)}),
}


def reach_of(operation: str, *args: Any, **kwargs: Any) -> Reach:
    """What an operation with these arguments can touch."""
    return _REACHES[operation](*args, **kwargs)
