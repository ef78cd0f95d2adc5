"""The contract of LedgerStore for the proportional rule of λ (k_p, window and ceiling), for every store."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest

from coordinator.ledger.accounts import dual_key
from coordinator.ledger.stores.store import LedgerStore
from edge.core.errors import InvalidRequest, KeyReused
from edge.dagrpo.dual import DualState, ProportionalIntegral, proportional_integral_step
from tests.worlds.ledger_requests import NOW, close_request, open_request

PI = {"dual_proportional": 0.5, "dual_window": 3, "dual_ceiling": 0.75}
RULE = ProportionalIntegral(0.02, 0.5, 3, 0.75)
GLOBAL = dual_key("global", "d1", "")
ASKED = (128, 96, 0, 10, 127, 64, 128, 128, 0, 0)
"""How many of 128 responses asked, step by step: enough to meet both bounds and to fill the window."""


async def take_step(store: LedgerStore, step: int, asked: int, task: str = "math", **terms: object) -> float:
    """A step from its opening to its close; the λ after."""
    await store.open_step(open_request(step, task=task, **terms))
    return (await store.close_step(close_request(step, asked, task=task))).dual_after


def trace(asked: tuple[int, ...], rule: ProportionalIntegral = RULE, start: float = 0.5) -> list[float]:
    """λ after each report of 128 responses at τ = 0.3."""
    states = [DualState(start)]
    for units in asked:
        states.append(proportional_integral_step(states[-1], units / 128, 0.3, rule))
    return [state.dual for state in states[1:]]


async def test_dual_follows_the_update_rule(store: LedgerStore) -> None:
    assert [await take_step(store, step, asked, **PI) for step, asked in enumerate(ASKED)] == trace(ASKED)
    assert max(trace(ASKED)) == 0.75


async def test_dual_at_zero_rises_with_the_first_report_above_the_target(store: LedgerStore) -> None:
    asked, rule = (0, 0, 0, 64, 128), ProportionalIntegral(0.02, 2.0)
    after = [await take_step(store, step, units, dual_proportional=2.0) for step, units in enumerate(asked)]
    assert after == trace(asked, rule)
    assert after[:3] == [0.0, 0.0, 0.0]
    assert after[3] == pytest.approx(0.02 * 0.2 + 2.0 * 0.5)


async def test_closing_a_step_again_changes_neither_dual_nor_controller_state(store: LedgerStore) -> None:
    expected = trace((128, 0, 64))
    for step, asked in enumerate((128, 0, 64)):
        assert await take_step(store, step, asked, **PI) == expected[step]
        before = await store.get_task("d1", "math")
        again = await asyncio.gather(*(store.close_step(close_request(step, asked, now=NOW + 99.0)) for _ in range(3)))
        assert {row.dual_after for row in again} == {expected[step]}
        with pytest.raises(KeyReused):
            await store.close_step(close_request(step, abs(asked - 1)))
        assert await store.get_task("d1", "math") == before
        assert before is not None
        assert len(before.recent) == step + 1


async def test_an_open_step_keeps_the_rule_it_was_opened_with(store: LedgerStore) -> None:
    first = await store.open_step(open_request(**PI))
    again = await store.open_step(open_request(dual_proportional=9.0, dual_window=1, dual_ceiling=math.inf, dual_lr=1.0))
    assert again == first
    assert (first.dual_proportional, first.dual_window, first.dual_ceiling) == (0.5, 3, 0.75)
    assert (await store.close_step(close_request(help_units=0))).dual_after == trace((0,))[0]


async def test_global_dual_has_one_window_over_all_tasks_of_a_device(store: LedgerStore) -> None:
    """g1, g2 and g1 again: one λ and one window go through all three, and each task's own steps count on."""
    order = [("g1", 0), ("g1", 1), ("g2", 0), ("g2", 1), ("g2", 2), ("g1", 2), ("g1", 3)]
    after = [
        await take_step(store, step, asked, task, shared_dual=GLOBAL, **PI)
        for (task, step), asked in zip(order, ASKED, strict=False)
    ]
    assert after == trace(ASKED[: len(order)])
    shared = await store.get_shared_dual(GLOBAL)
    assert shared is not None
    assert (shared.dual, shared.updates, len(shared.recent)) == (after[-1], len(order), 3)


async def test_separate_duals_have_separate_windows(store: LedgerStore) -> None:
    first = [await take_step(store, step, asked, "g1", **PI) for step, asked in enumerate((128, 0))]
    second = [await take_step(store, step, asked, "g2", **PI) for step, asked in enumerate((0, 64, 128))]
    first += [await take_step(store, 2, 96, "g1", **PI)]
    assert (first, second) == (trace((128, 0, 96)), trace((0, 64, 128)))


async def test_controller_state_is_dropped_when_scope_or_gain_changes(store: LedgerStore) -> None:
    """Own, then global, then own again, then without a proportional part: in the end nothing but the integral is left."""
    free = {**PI, "dual_ceiling": math.inf}
    terms: list[dict[str, object]] = [free, free, {**free, "shared_dual": GLOBAL}, {**free, "shared_dual": GLOBAL}, free]
    after = [await take_step(store, step, ASKED[step], **changes) for step, changes in enumerate(terms)]
    assert after == trace(ASKED[:5], replace(RULE, ceiling=math.inf))
    for step in range(5, 8):
        last = await take_step(store, step, 64, dual_window=3)
    task = await store.get_task("d1", "math")
    assert task is not None
    assert task.recent == ()
    missed = [asked / 128 - 0.3 for asked in (*ASKED[:5], 64, 64, 64)]
    assert last == pytest.approx(0.5 + 0.02 * math.fsum(missed), abs=1e-12)


async def test_new_fleet_dual_takes_over_the_value_but_not_the_devices_proportional_part(store: LedgerStore) -> None:
    own = await take_step(store, 0, 0, **PI)
    await store.open_step(open_request(1, shared_dual="fleet[task:math]"))
    closed = await store.close_step(close_request(1, 128))
    assert (closed.dual_before, closed.dual_after) == (own, own + 0.02 * (1.0 - 0.3))
    back = await take_step(store, 2, 64, **PI)
    assert back == proportional_integral_step(DualState(closed.dual_after), 0.5, 0.3, RULE).dual


async def test_ceiling_limits_a_fleet_dual(store: LedgerStore) -> None:
    await store.open_step(open_request(shared_dual="fleet", dual_lr=5.0, dual_ceiling=1.0))
    assert (await store.close_step(close_request(0, 128))).dual_after == 1.0
    shared = await store.get_shared_dual("fleet")
    assert shared is not None
    assert shared.dual == 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"target_rate": 1.5},
        {"target_rate": math.nan},
        {"dual_lr": -1.0},
        {"initial_dual": math.inf},
        {"dual_proportional": -0.1},
        {"dual_proportional": math.inf},
        {"dual_window": 0},
        {"dual_window": 101},
        {"dual_ceiling": -1.0},
        {"dual_ceiling": math.nan},
        {"dual_proportional": 0.1, "shared_dual": "fleet"},
        {"dual_proportional": 0.1, "shared_dual": "fleet[task:math]"},
    ],
)
async def test_invalid_rule_is_refused(store: LedgerStore, changes: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.open_step(open_request(**changes))
    assert "\n" not in str(refused.value)
    assert await store.get_task("d1", "math") is None
