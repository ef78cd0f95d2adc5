"""The contract of LedgerStore for shared λ, budgets with floors and shared answers, for every store."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest

from coordinator.ledger.accounts import (
    AS_CONFIGURED,
    Amount,
    AmountLimits,
    BudgetRow,
    BudgetTerms,
    InProgress,
    Outdated,
    Replayed,
    Reserved,
    SetLimits,
    dual_key,
    share_key,
)
from coordinator.ledger.stores.changes import EVERYTHING
from coordinator.ledger.stores.store import LedgerStore
from edge.core.errors import BudgetExhausted, InvalidRequest, NotFound, PermissionDenied
from edge.dagrpo.dual import dual_step, shared_lr
from tests.worlds.ledger_requests import FLEET, NOW, close_request, open_request, reserve_request, settlement

QA = {"task": "qa", "shared_dual": dual_key("fleet", "", "qa")}


async def open_all(store: LedgerStore, devices: list[str], step: int = 0, **changes: object) -> None:
    for device in devices:
        await store.open_step(open_request(step, device=device, **{**QA, **changes}))


async def dual_of(store: LedgerStore, key: str = QA["shared_dual"]) -> float:
    row = await store.get_shared_dual(key)
    assert row is not None
    return row.dual


@pytest.mark.parametrize("count", [1, 2, 7])
async def test_a_round_of_equal_devices_moves_a_fleet_dual_as_far_as_one_device_moves_its_own(
    store: LedgerStore, count: int
) -> None:
    devices = [f"d{number}" for number in range(count)]
    for step in range(3):
        await open_all(store, devices, step)
        for device in devices:
            await store.close_step(close_request(step, device=device, task="qa"))
    alone = 0.5
    for _ in range(3):
        alone = dual_step(alone, 0.25, 0.3, 0.02)
    assert await dual_of(store) == pytest.approx(alone, abs=1e-15 * count)
    if count == 1:
        assert await dual_of(store) == alone


async def test_reports_are_weighted_by_their_share_of_the_rounds_units_in_order_of_arrival(store: LedgerStore) -> None:
    await store.open_step(open_request(device="big", planned_prompts=30, **QA))
    await store.open_step(open_request(device="small", planned_prompts=10, **QA))
    small = await store.close_step(close_request(0, 80, 80, device="small", task="qa"))
    assert (small.dual_before, small.round_units) == (0.5, 320)
    assert small.dual_after == dual_step(0.5, 1.0, 0.3, shared_lr(0.02, 80, 320))
    big = await store.close_step(close_request(0, 0, 120, device="big", task="qa"))
    assert (big.dual, big.dual_before, big.round_units) == (0.5, small.dual_after, 200)
    assert big.dual_after == dual_step(small.dual_after, 0.0, 0.3, shared_lr(0.02, 120, 200))


async def test_open_step_keeps_its_dual_while_other_devices_move_it(store: LedgerStore) -> None:
    await open_all(store, ["d1", "d2"])
    moved = await store.close_step(close_request(device="d2", task="qa"))
    again = await store.open_step(open_request(device="d1", **QA))
    assert again.dual == 0.5 != moved.dual_after
    assert (await store.close_step(close_request(device="d1", task="qa"))).dual_before == moved.dual_after
    late = await store.open_step(open_request(device="d3", initial_dual=9.0, **QA))
    assert late.dual == await dual_of(store)


async def test_concurrent_reports_move_a_shared_dual_once_each(store: LedgerStore) -> None:
    devices = [f"d{number}" for number in range(12)]
    await open_all(store, devices)
    reports = [store.close_step(close_request(device=device, task="qa")) for device in devices * 2]
    await asyncio.gather(*reports)
    row = await store.get_shared_dual(QA["shared_dual"])
    assert row is not None
    assert (row.updates, row.units) == (12, 12 * 128)
    assert row.dual == pytest.approx(dual_step(0.5, 0.25, 0.3, 0.02), abs=1e-14)


async def test_global_dual_covers_all_tasks_of_one_device_only(store: LedgerStore) -> None:
    key = dual_key("global", "d1", "")
    await store.open_step(open_request(shared_dual=key))
    await store.open_step(open_request(task="qa", shared_dual=key, initial_dual=9.0))
    await store.close_step(close_request())
    second = await store.close_step(close_request(task="qa"))
    once = dual_step(0.5, 0.25, 0.3, 0.02)
    assert (second.dual, second.dual_before, second.dual_after) == (0.5, once, dual_step(once, 0.25, 0.3, 0.02))
    other = await store.open_step(open_request(device="d2", shared_dual=dual_key("global", "d2", "")))
    assert other.dual == 0.5


async def test_dual_for_all_tasks_and_devices_is_a_single_dual(store: LedgerStore) -> None:
    await store.open_step(open_request(shared_dual="fleet"))
    await store.open_step(open_request(device="d2", task="qa", shared_dual="fleet"))
    closed = await store.close_step(close_request(device="d2", task="qa"))
    assert (await store.open_step(open_request(device="d3", task="essay", shared_dual="fleet"))).dual == closed.dual_after


async def test_task_that_changes_scope_keeps_its_dual_and_its_version_grows(store: LedgerStore) -> None:
    versions, dual = [], 0.5
    for step, key in enumerate(["", "fleet[task:math]", "fleet[task:math]", "global[device:d1]", ""]):
        opened = await store.open_step(open_request(step, shared_dual=key, initial_dual=0.5 if step == 0 else 9.0))
        assert opened.dual == dual
        for moment in ("opened", "closed"):
            task = await store.get_task("d1", "math")
            assert task is not None
            versions.append(task.version)
            if moment == "opened":
                dual = (await store.close_step(close_request(step))).dual_after
    assert versions == sorted(set(versions))


async def test_change_of_a_shared_dual_by_another_device_is_a_new_budget_version(store: LedgerStore) -> None:
    await open_all(store, ["d1", "d2"])
    before = await store.get_task("d1", "qa")
    moved = await store.close_step(close_request(device="d2", task="qa"))
    after = (await store.get_budget("d1", "qa", [])).task
    assert before is not None
    assert after is not None
    assert after.version > before.version
    assert (before.dual, after.dual) == (0.5, moved.dual_after)
    assert after in await store.list_tasks()


@pytest.mark.parametrize("scope", ["global", "fleet", "fleet_all"])
async def test_existing_shared_dual_is_not_changed_by_its_first_user(store: LedgerStore, scope: str) -> None:
    """A version of a budget has exactly one λ, also before the first step."""
    await store.reserve(reserve_request("k0", task="code", shared_dual=dual_key(scope, "d1", "code"), initial_dual=0.5))
    first = await store.get_task("d1", "code")
    other = {"device": "d1", "task": "qa"} if scope == "global" else {"device": "d2", "task": "code"}
    await store.open_step(open_request(0, **other, shared_dual=dual_key(scope, "d1", "code"), initial_dual=0.498))
    assert first is not None
    assert await store.get_task("d1", "code") == first
    assert first.dual == await dual_of(store, dual_key(scope, "d1", "code")) == 0.5


async def test_an_idle_device_leaves_the_round_and_comes_back_with_its_next_step(store: LedgerStore) -> None:
    await open_all(store, ["gone", "d1"])
    await store.close_step(close_request(device="gone", task="qa"))
    await store.close_step(close_request(device="d1", task="qa", now=NOW + 100.0))
    assert await store.leave_idle_duals(NOW + 50.0, NOW + 100.0) != ()
    assert await store.leave_idle_duals(NOW + 50.0, NOW + 101.0) == ()
    await store.open_step(open_request(1, device="d1", now=NOW + 102.0, **QA))
    assert (await store.close_step(close_request(1, device="d1", task="qa", now=NOW + 103.0))).round_units == 128
    await store.open_step(open_request(1, device="gone", now=NOW + 104.0, **QA))
    assert (await store.close_step(close_request(1, device="gone", task="qa", now=NOW + 105.0))).round_units == 256


async def test_huge_report_neither_breaks_nor_freezes_a_shared_dual(store: LedgerStore) -> None:
    await open_all(store, ["d1"])
    await store.open_step(open_request(device="liar", planned_prompts=2**32, group_size=2**32, **QA))
    with pytest.raises(InvalidRequest):
        await store.close_step(close_request(0, 2**63, 2**63, device="liar", task="qa"))
    await store.close_step(close_request(0, 2**50, 2**50, device="liar", task="qa"))
    assert (await store.close_step(close_request(device="d1", task="qa"))).round_units == 2**20 + 128


# fairness floor ----------------------------------------------------------------------------------------------------------------


ONE = Amount(1, 0, 0)


def fair(limit: int, share: float = 0.5) -> BudgetTerms:
    return BudgetTerms(FLEET, AmountLimits(calls=limit), round(share * 1_000_000))


async def spend(store: LedgerStore, device: str, calls: int, terms: BudgetTerms, label: str = "") -> int:
    """Make and settle this many calls; returns how many were allowed."""
    granted = 0
    for number in range(calls):
        key = f"{label}{number}"
        try:
            outcome = await store.reserve(reserve_request(key, device=device, hold=ONE, budgets=[terms]))
        except BudgetExhausted:
            continue
        if isinstance(outcome, Reserved):
            await store.settle(settlement(key, device=device, charge=ONE))
            granted += 1
    return granted


async def fleet_row(store: LedgerStore, key: str = FLEET) -> BudgetRow:
    return next(row for row in await store.list_budgets_after("", 1_000, with_steps=True) if row.key == key)


async def test_a_greedy_device_cannot_take_the_floor_of_another(store: LedgerStore) -> None:
    terms = fair(20)
    assert await spend(store, "quiet", 1, terms) == 1
    assert await spend(store, "greedy", 50, terms) == 15
    assert await spend(store, "quiet", 50, terms, "more") == 4
    assert (await fleet_row(store)).committed.calls == 20


async def test_refusal_that_protects_a_floor_names_the_budget_and_the_reserve(store: LedgerStore) -> None:
    terms = fair(4, 1.0)
    await spend(store, "quiet", 1, terms)
    await spend(store, "greedy", 2, terms)
    with pytest.raises(BudgetExhausted) as refused:
        await store.reserve(reserve_request("k9", device="greedy", hold=ONE, budgets=[terms]))
    metadata = refused.value.metadata
    assert (metadata["budget"], metadata["scope"], metadata["unit"]) == ("fleet", "fleet", "calls")
    assert metadata["told"] == "fleet calls 3 of 4, 1 kept for other devices"


async def test_late_device_shares_what_is_left(store: LedgerStore) -> None:
    terms = fair(10)
    assert await spend(store, "early", 8, terms) == 8
    assert await spend(store, "late", 1, terms) == 1
    row = await fleet_row(store)
    assert (row.members, row.floor.calls, row.set_aside.calls) == (2, 2, 1)
    assert await spend(store, "early", 5, terms, "more") == 0
    assert await spend(store, "late", 5, terms, "more") == 1


async def test_new_device_lowers_every_floor_to_its_share(store: LedgerStore) -> None:
    terms = fair(12)
    floors = []
    for device in ("d1", "d2", "d3"):
        await spend(store, device, 1, terms)
        floors.append((await fleet_row(store)).floor.calls)
    assert floors == [6, 3, 2]
    assert (await fleet_row(store)).set_aside.calls == 3


async def test_device_whose_first_call_does_not_fit_is_not_added(store: LedgerStore) -> None:
    terms = fair(3)
    await spend(store, "early", 3, terms)
    assert await spend(store, "late", 1, terms) == 0
    assert (await fleet_row(store)).members == 1


async def test_unused_part_of_a_hold_is_set_aside_again(store: LedgerStore) -> None:
    terms = BudgetTerms(FLEET, AmountLimits(uusd=1_000), 1_000_000)
    for device in ("d1", "d2"):
        await store.reserve(reserve_request(device=device, hold=Amount(1, 0, 400), budgets=[terms]))
    assert (await fleet_row(store)).set_aside.uusd == 200
    await store.settle(settlement(device="d1", charge=Amount(1, 0, 100)))
    assert (await fleet_row(store)).set_aside.uusd == 500
    await store.refund("d2", "k1", 1, "refused", NOW)
    row = await fleet_row(store)
    assert (row.used.uusd, row.set_aside.uusd) == (100, 900)


async def test_floors_are_removed_and_restored_with_the_setting_within_the_limit(store: LedgerStore) -> None:
    await spend(store, "d1", 1, fair(10))
    assert await spend(store, "d2", 7, fair(10, 0.0)) == 7
    row = await fleet_row(store)
    assert (row.floor_ppm, row.floor.calls, row.set_aside.calls) == (0, 0, 0)
    assert await spend(store, "d2", 1, fair(10, 1.0), "more") == 1
    row = await fleet_row(store)
    assert row.used.calls + row.set_aside.calls <= 10
    assert row.floor.calls == 1


async def test_a_lowered_limit_lowers_the_floors(store: LedgerStore) -> None:
    for device in ("d1", "d2"):
        await spend(store, device, 2, fair(20))
    assert await spend(store, "d1", 1, fair(2), "low") == 0
    assert await spend(store, "d1", 1, fair(8), "less") == 1
    row = await fleet_row(store)
    assert (row.limits.calls, row.floor.calls, row.set_aside.calls) == (8, 2, 0)


async def test_each_budget_window_has_its_own_members(store: LedgerStore) -> None:
    for window, devices in (("2026-10", ("d1", "d2")), ("2026-11", ("d1",))):
        terms = BudgetTerms(f"fleet@{window}", AmountLimits(calls=8), 500_000)
        for device in devices:
            await spend(store, device, 1, terms, window)
    rows = {row.key: row for row in await store.list_budgets_after("", 1_000, with_steps=True)}
    assert (rows["fleet@2026-10"].floor.calls, rows["fleet@2026-11"].floor.calls) == (2, 4)
    assert rows[share_key("fleet@2026-11", "d1")].committed == ONE


@pytest.mark.parametrize("seed", range(4))
async def test_concurrent_calls_respect_floors_and_limits(store: LedgerStore, seed: int) -> None:
    terms, devices = fair(40, 1.0), [f"d{number}" for number in range(8)]
    for device in devices:
        await spend(store, device, 1, terms, "first")
    asked = [(device, f"k{number}") for device in devices[:3] for number in range(40)]
    asked += [(device, f"k{number}") for device in devices[3:] for number in range(4)]
    random.Random(seed).shuffle(asked)
    calls = [store.reserve(reserve_request(key, device=device, hold=ONE, budgets=[terms])) for device, key in asked]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    granted = dict.fromkeys(devices, 1)
    for (device, _), outcome in zip(asked, outcomes, strict=True):
        granted[device] += isinstance(outcome, Reserved)
    assert set(granted.values()) == {5}


# answers and devices -----------------------------------------------------------------------------------------------------------


async def test_answer_is_shared_across_devices_only_under_a_fleet_key(store: LedgerStore) -> None:
    for key, expected in (("c", Reserved), ("fleet:c", Replayed)):
        await store.reserve(reserve_request(key, cache_key=key))
        await store.settle(settlement(key))
        assert isinstance(await store.reserve(reserve_request(key, device="d2", cache_key=key)), expected)
    copied = await store.get_call("d2", "fleet:c")
    assert (copied.cached, copied.charged) == (True, Amount())


async def test_answer_older_than_the_requested_age_is_not_reused(store: LedgerStore) -> None:
    await store.reserve(reserve_request(cache_key="c"))
    await store.settle(settlement(now=NOW + 1.0))
    assert isinstance(await store.reserve(reserve_request("k2", cache_key="c", cache_since=NOW + 1.0)), Replayed)
    assert isinstance(await store.reserve(reserve_request("k3", cache_key="c", cache_since=NOW + 2.0)), Reserved)


async def test_device_keeps_its_first_time_and_reports_its_latest_registration(store: LedgerStore) -> None:
    await store.register_device("d1", "1.0", ("math",), NOW)
    await store.register_device("d1", "1.1", ("math", "qa"), NOW + 5.0)
    await store.saw_devices({"d1": NOW + 9.0, "unknown": NOW})
    await store.saw_devices({"d1": NOW + 8.0})
    (device,) = await store.list_devices()
    assert (device.device, device.agent_version, device.tasks, device.disabled) == ("d1", "1.1", ("math", "qa"), False)
    assert (device.first_seen_ms, device.last_seen_ms) == (round(NOW * 1000), round((NOW + 9.0) * 1000))


async def test_disabled_device_gets_no_hold_step_or_answer_until_enabled(store: LedgerStore) -> None:
    await store.register_device("d1", "1.0", (), NOW)
    await store.reserve(reserve_request())
    await store.set_device_disabled("d1", True, NOW)
    await store.settle(settlement())
    for refused in (
        store.reserve(reserve_request()),
        store.reserve(reserve_request("k2")),
        store.open_step(open_request()),
        store.register_device("d1", "1.0", (), NOW),
    ):
        with pytest.raises(PermissionDenied):
            await refused
    assert (await store.list_devices())[0].disabled
    await store.set_device_disabled("d1", False, NOW)
    assert isinstance(await store.reserve(reserve_request()), Replayed)


async def test_unseen_device_can_be_disabled_but_not_enabled(store: LedgerStore) -> None:
    with pytest.raises(NotFound, match="'ghost'"):
        await store.set_device_disabled("ghost", False, NOW)
    assert await store.list_devices() == ()
    row = await store.set_device_disabled("stolen", True, NOW)
    assert (row.first_seen_ms, row.last_seen_ms) == (0, 0)
    with pytest.raises(PermissionDenied):
        await store.reserve(reserve_request(device="stolen"))
    with pytest.raises(InvalidRequest):
        await store.set_device_disabled("", True, NOW)


async def test_setting_limits_is_journalled_and_outdates_watched_versions(store: LedgerStore) -> None:
    assert await store.list_set_limits() == ()
    limits = await store.set_limits("fleet", {"calls_limit": 1, "window": "total"}, NOW)
    assert limits == (SetLimits("fleet", (("calls_limit", 1), ("window", "total")), 1),)
    assert await store.reserve(reserve_request("late")) == Outdated(limits)
    assert (await store.get_budget("d1", "math", [])).limits == limits == await store.list_set_limits()
    assert not (await store.list_budgets_after("", 1_000, with_steps=True))
    held = BudgetTerms("fleet", AmountLimits(1, None, None))
    assert isinstance(await store.reserve(reserve_request("k1", budgets=[held], limits_version=1)), Reserved)
    with pytest.raises(BudgetExhausted):
        await store.reserve(reserve_request("k2", budgets=[held], limits_version=1))
    assert isinstance(await store.reserve(reserve_request("k1")), InProgress), "an operation without a new hold needs no limits"
    kinds = [(entry.kind, entry.data()) for entry in await store.read_journal(0, 100) if entry.kind == "set_limits"]
    assert kinds == [("set_limits", {"scope": "fleet", "changes": [["calls_limit", 1], ["window", "total"]], "version": 1})]


async def test_limits_are_reset_to_the_configuration_one_by_one(store: LedgerStore) -> None:
    await store.set_limits("device", {"calls_limit": None, "tokens_limit": 5}, NOW)
    again = await store.set_limits("device", {"tokens_limit": 5}, NOW)
    assert again == (SetLimits("device", (("calls_limit", None), ("tokens_limit", 5)), 1),), (
        "nothing changed, so nothing is outdated"
    )
    await store.set_limits("fleet", {"calls_limit": 3}, NOW)
    back = await store.set_limits("device", {"calls_limit": AS_CONFIGURED, "tokens_limit": AS_CONFIGURED}, NOW)
    assert back == (SetLimits("device", (), 3), SetLimits("fleet", (("calls_limit", 3),), 2))


async def test_change_feed_reports_limit_changes_and_disabled_devices(store: LedgerStore) -> None:
    async with aclosing(store.changes()) as changes:
        heard = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        await store.set_limits("fleet", {"calls_limit": 3}, NOW)
        assert await asyncio.wait_for(heard, 60.0) == EVERYTHING
        await store.set_device_disabled("d1", True, NOW)
        async with asyncio.timeout(60.0):
            while await anext(changes) != ("d1", ""):
                pass


async def received_in_time(heard: asyncio.Future[tuple[str, str]], found: set[tuple[str, str]]) -> tuple[str, str]:
    done, _ = await asyncio.wait([heard], timeout=60.0)
    assert done, f"only {found} was reported"
    return heard.result()


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (BudgetTerms("fleet@2026-10", AmountLimits(5)), {EVERYTHING}),
        (BudgetTerms("fleet_task[task:a]b]@2026-10", AmountLimits(None, 900_000)), {("", "a]b")}),
        (BudgetTerms("fleet", AmountLimits()), set()),
        (BudgetTerms("device[device:d1]", AmountLimits(5)), set()),
    ],
    ids=lambda value: value.key if isinstance(value, BudgetTerms) else "",
)
async def test_use_of_a_limited_budget_is_reported_to_all_affected_tasks(
    store: LedgerStore, budget: BudgetTerms, expected: set[tuple[str, str]]
) -> None:
    async with aclosing(store.changes()) as changes:
        heard = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        for use in (store.reserve(reserve_request("k1", budgets=[budget])), store.settle(settlement("k1"))):
            await use
            found: set[tuple[str, str]] = set()
            while not expected | {("d1", "math")} <= found:
                found.add(await received_in_time(heard, found))
                heard = asyncio.ensure_future(anext(changes))
            while (await asyncio.wait([heard], timeout=0.05))[0]:
                found.add(heard.result())
                heard = asyncio.ensure_future(anext(changes))
            assert found == {("d1", "math")} | expected
        heard.cancel()
        await asyncio.wait([heard])
