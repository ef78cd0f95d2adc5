"""The contract of LedgerStore, for every store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from coordinator.ledger.accounts import (
    Amount,
    AmountLimits,
    BudgetTerms,
    CallEnded,
    CallState,
    InProgress,
    Replayed,
    Reserved,
    budget_key,
    step_budget_key,
)
from coordinator.ledger.stores.store import LedgerStore
from edge.core.errors import BudgetExhausted, CoordinatorError, InvalidRequest, KeyReused, NotFound, StepMismatch
from edge.dagrpo.dual import dual_step
from tests.worlds.ledger_requests import FLEET, HOLD, NOW, ROOMY, close_request, open_request, reserve_request, settlement


async def fleet(store: LedgerStore) -> tuple[Amount, Amount]:
    view = await store.get_budget("d1", "math", [ROOMY])
    return view.budgets[0].committed, view.budgets[0].reserved


async def test_a_hold_is_reserved_then_settled_at_what_the_call_cost(store: LedgerStore) -> None:
    assert await store.reserve(reserve_request()) == Reserved(1, "d1|k1|1")
    assert await fleet(store) == (Amount(), HOLD)
    resolution = await store.settle(settlement())
    assert resolution.applied
    assert resolution.call.state is CallState.COMPLETED
    assert resolution.call.result == "42"
    assert resolution.call.charged == Amount(1, 100, 300)
    assert await fleet(store) == (Amount(1, 100, 300), Amount())


async def test_same_key_is_in_progress_then_replayed_and_held_only_once(store: LedgerStore) -> None:
    await store.reserve(reserve_request())
    assert await store.reserve(reserve_request()) == InProgress("k1")
    await store.settle(settlement())
    replay = await store.reserve(reserve_request())
    assert isinstance(replay, Replayed)
    assert replay.call.result == "42"
    assert not replay.call.cached
    assert await fleet(store) == (Amount(1, 100, 300), Amount())


async def test_a_key_with_other_content_is_refused_in_every_state(store: LedgerStore) -> None:
    await store.reserve(reserve_request())
    with pytest.raises(KeyReused):
        await store.reserve(reserve_request(fingerprint="other"))
    await store.settle(settlement())
    with pytest.raises(KeyReused):
        await store.reserve(reserve_request(fingerprint="other"))


async def test_the_same_key_of_another_device_is_another_call(store: LedgerStore) -> None:
    await store.reserve(reserve_request())
    await store.settle(settlement())
    assert isinstance(await store.reserve(reserve_request(device="d2")), Reserved)
    with pytest.raises(NotFound):
        await store.get_call("d3", "k1")


@pytest.mark.parametrize("beyond", [{"step": 2**53}, {"step": 2**63}, {"help_units": 2**64}])
async def test_number_out_of_range_fails_only_its_own_call(store: LedgerStore, beyond: dict[str, int]) -> None:
    asked = [store.reserve(reserve_request(key, **(beyond if key == "bad" else {}))) for key in ("k1", "bad", "k2")]
    first, bad, last = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(first, Reserved)
    assert isinstance(bad, CoordinatorError)
    assert isinstance(last, Reserved)


async def test_an_attempt_is_settled_at_most_once(store: LedgerStore) -> None:
    await store.reserve(reserve_request())
    first = await store.settle(settlement())
    again = await store.settle(settlement(charge=HOLD, text="other"))
    refund = await store.refund("d1", "k1", 1, "late", NOW)
    assert (first.applied, again.applied, refund.applied) == (True, False, False)
    assert again.call.result == "42"
    assert await fleet(store) == (Amount(1, 100, 300), Amount())


async def test_charge_above_the_hold_is_capped_at_the_hold(store: LedgerStore) -> None:
    await store.reserve(reserve_request())
    resolution = await store.settle(settlement(charge=Amount(1, 100, 5_000)))
    assert resolution.call.charged == Amount(1, 100, HOLD.uusd)


async def test_refund_releases_the_hold_and_lets_the_key_be_tried_again(store: LedgerStore) -> None:
    await store.reserve(reserve_request())
    assert (await store.refund("d1", "k1", 1, "refused", NOW)).call.state is CallState.REFUNDED
    assert await fleet(store) == (Amount(), Amount())
    assert await store.reserve(reserve_request()) == Reserved(2, "d1|k1|2")
    assert (await store.settle(settlement(attempt=1))).applied is False
    assert (await store.settle(settlement(attempt=2))).applied


@pytest.mark.parametrize("charge", [None, Amount(1, 50, 70)])
async def test_failed_call_is_charged_and_its_key_cannot_be_reused(store: LedgerStore, charge: Amount | None) -> None:
    await store.reserve(reserve_request(cache_key="c"))
    await store.fail("d1", "k1", 1, "garbage", charge, NOW)
    outcome = await store.reserve(reserve_request(cache_key="c"))
    assert isinstance(outcome, CallEnded)
    assert (outcome.call.state, outcome.call.reason, outcome.call.charged) == (CallState.FAILED, "garbage", charge or HOLD)
    assert await fleet(store) == (charge or HOLD, Amount())
    assert isinstance(await store.reserve(reserve_request("k2", cache_key="c")), Reserved), "a failure is not cached"


async def test_expired_lease_leaves_the_call_in_doubt_charged_at_the_hold(store: LedgerStore) -> None:
    await store.reserve(reserve_request())
    await store.reserve(reserve_request("k2", lease_until=NOW + 600.0))
    assert await store.sweep(NOW + 59.0) == ()
    swept = await store.sweep(NOW + 61.0)
    assert [each.attempt.key for each in swept] == ["k1"]
    assert await fleet(store) == (HOLD, HOLD)
    await store.doubt("d1", "k2", 1, "cut", NOW)
    assert await fleet(store) == (HOLD.plus(HOLD), Amount()), "an unconfirmed call is charged at the hold immediately"
    late = await store.settle(settlement())
    assert (late.applied, late.call.state) == (False, CallState.IN_DOUBT)
    assert isinstance(await store.reserve(reserve_request()), CallEnded)


@pytest.mark.parametrize("unit", ["calls", "tokens", "uusd"])
async def test_each_unit_of_a_limit_refuses_a_call_that_exceeds_it(store: LedgerStore, unit: str) -> None:
    terms = BudgetTerms(FLEET, AmountLimits(**{unit: getattr(HOLD, unit) * 2}))
    for key in ("k1", "k2"):
        await store.reserve(reserve_request(key, budgets=[terms]))
    with pytest.raises(BudgetExhausted) as refused:
        await store.reserve(reserve_request("k3", budgets=[terms]))
    assert {"calls": "1 call", "tokens": "300 tokens", "uusd": "0.0009 USD"}[unit] in str(refused.value)
    metadata, needed = dict(refused.value.metadata), getattr(HOLD, unit)
    assert metadata.pop("told").startswith("fleet ")
    numbers = {"used": str(needed * 2), "limit": str(needed * 2), "needed": str(needed), "kept": "0"}
    assert metadata == {"budget": "fleet", "scope": "fleet", "unit": unit, **numbers}
    with pytest.raises(NotFound):
        await store.get_call("d1", "k3")


async def test_refusal_names_the_current_limit_even_below_the_use(store: LedgerStore) -> None:
    for key in ("k1", "k2"):
        await store.reserve(reserve_request(key, budgets=[BudgetTerms(FLEET, AmountLimits(calls=2))]))
    with pytest.raises(BudgetExhausted) as refused:
        await store.reserve(reserve_request("k3", budgets=[BudgetTerms(FLEET, AmountLimits(calls=1))]))
    metadata = refused.value.metadata
    assert (metadata["told"], metadata["used"], metadata["limit"]) == ("fleet calls 2 of 1", "2", "1")


async def test_a_refusal_by_one_budget_leaves_no_hold_on_the_others(store: LedgerStore) -> None:
    device = BudgetTerms(budget_key("device", "d1"), AmountLimits(calls=0))
    with pytest.raises(BudgetExhausted) as refused:
        await store.reserve(reserve_request(budgets=[ROOMY, device]))
    assert refused.value.metadata["scope"] == "device"
    assert await fleet(store) == (Amount(), Amount())


async def test_concurrent_calls_never_exceed_a_limit(store: LedgerStore) -> None:
    terms = BudgetTerms(FLEET, AmountLimits(calls=7))
    asked = [store.reserve(reserve_request(f"k{number}", budgets=[terms])) for number in range(40)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(outcome, Reserved) for outcome in outcomes) == 7
    assert sum(isinstance(outcome, BudgetExhausted) for outcome in outcomes) == 33


async def test_limit_lowered_below_use_refuses_only_calls_that_need_that_unit(store: LedgerStore) -> None:
    await store.reserve(reserve_request())
    fewer_tokens = BudgetTerms(FLEET, AmountLimits(tokens=100))
    assert isinstance(await store.reserve(reserve_request("k2", hold=Amount(1, 0, 900), budgets=[fewer_tokens])), Reserved)
    with pytest.raises(BudgetExhausted):
        await store.reserve(reserve_request("k3", hold=Amount(1, 1, 900), budgets=[fewer_tokens]))
    await store.settle(settlement())
    assert (await fleet(store))[0] == Amount(1, 100, 300), "an earlier hold is charged at its cost"


async def test_cached_answer_is_returned_without_charge(store: LedgerStore) -> None:
    await store.reserve(reserve_request(cache_key="c"))
    await store.settle(settlement())
    replay = await store.reserve(reserve_request("k2", cache_key="c"))
    assert isinstance(replay, Replayed)
    assert (replay.call.cached, replay.call.result, replay.call.charged) == (True, "42", Amount())
    assert await fleet(store) == (Amount(1, 100, 300), Amount())
    assert await store.reserve(reserve_request("k2", cache_key="c")) == replay


async def test_a_prompt_group_of_a_step_makes_one_call(store: LedgerStore) -> None:
    await store.open_step(open_request())
    group = {"step": 0, "prompt_id": "p", "fingerprint": "f"}
    await store.reserve(reserve_request("k1", **group))
    assert await store.reserve(reserve_request("k2", **group)) == InProgress("k1")
    await store.settle(settlement())
    replay = await store.reserve(reserve_request("k2", **group))
    assert isinstance(replay, Replayed)
    assert replay.call.cached
    with pytest.raises(KeyReused):
        await store.reserve(reserve_request("k3", step=0, prompt_id="p", fingerprint="other"))


async def test_refunded_group_call_frees_the_group_for_another_key(store: LedgerStore) -> None:
    await store.open_step(open_request())
    group = {"step": 0, "prompt_id": "p", "fingerprint": "f"}
    await store.reserve(reserve_request("k1", **group))
    await store.refund("d1", "k1", 1, "refused", NOW)
    assert isinstance(await store.reserve(reserve_request("k2", **group)), Reserved)
    await store.settle(settlement("k2"))
    assert isinstance(await store.reserve(reserve_request("k1", **group)), Replayed)


async def test_a_step_holds_its_calls_to_its_credit(store: LedgerStore) -> None:
    opened = await store.open_step(open_request(planned_prompts=4, target_rate=0.3, credit_factor=2.0))
    assert opened.call_credit == 3  # ceil(2 * 0.3 * 4) = ceil(2.4)
    for number in range(3):
        await store.reserve(reserve_request(f"k{number}", step=0))
    with pytest.raises(BudgetExhausted) as refused:
        await store.reserve(reserve_request("k3", step=0))
    assert refused.value.metadata["scope"] == "step"
    assert refused.value.metadata["budget"] == step_budget_key("d1", "math", 0)
    await store.refund("d1", "k0", 1, "refused", NOW)
    assert isinstance(await store.reserve(reserve_request("k3", step=0)), Reserved)


async def test_without_a_credit_factor_a_step_has_no_limit(store: LedgerStore) -> None:
    opened = await store.open_step(open_request(planned_prompts=1, credit_factor=None))
    assert opened.call_credit is None
    for number in range(5):
        assert isinstance(await store.reserve(reserve_request(f"k{number}", step=0)), Reserved)


async def test_a_call_needs_its_step_to_be_open(store: LedgerStore) -> None:
    with pytest.raises(StepMismatch) as early:
        await store.reserve(reserve_request(step=0))
    assert early.value.expected_step == 0
    await store.open_step(open_request())
    await store.close_step(close_request())
    with pytest.raises(StepMismatch) as late:
        await store.reserve(reserve_request(step=0))
    assert late.value.expected_step == 1


async def test_an_answer_is_replayed_also_after_its_step_was_closed(store: LedgerStore) -> None:
    await store.open_step(open_request())
    await store.reserve(reserve_request(step=0))
    await store.settle(settlement())
    await store.close_step(close_request())
    assert isinstance(await store.reserve(reserve_request(step=0)), Replayed)


async def test_opening_a_step_again_returns_the_first_result(store: LedgerStore) -> None:
    first = await store.open_step(open_request())
    assert await store.open_step(open_request(target_rate=0.9, planned_prompts=99)) == first


async def test_closing_a_step_moves_the_dual_exactly_once(store: LedgerStore) -> None:
    await store.open_step(open_request())
    closed = await store.close_step(close_request())
    assert closed.dual_after == dual_step(0.5, 0.25, 0.3, 0.02)
    assert await store.close_step(close_request(now=NOW + 99.0)) == closed
    for other in ({"help_units": 33}, {"uncalled_units": 1}, {"own_rate": 0.5}):
        with pytest.raises(KeyReused):
            await store.close_step(close_request(**other))
    task = await store.get_task("d1", "math")
    assert task is not None
    assert (task.dual, task.next_step) == (closed.dual_after, 1)


async def test_dual_carries_over_between_steps_and_target_follows_the_phase(store: LedgerStore) -> None:
    dual = 0.5
    for step, (target, asked) in enumerate([(0.3, 128), (0.3, 0), (0.7, 64)]):
        opened = await store.open_step(open_request(step, target_rate=target, initial_dual=9.0 if step else 0.5))
        assert opened.dual == dual
        dual = dual_step(dual, asked / 128, target, 0.02)
        assert (await store.close_step(close_request(step, asked))).dual_after == dual


async def test_steps_are_opened_and_closed_in_order(store: LedgerStore) -> None:
    with pytest.raises(StepMismatch) as gap:
        await store.open_step(open_request(1))
    assert gap.value.expected_step == 0
    with pytest.raises(StepMismatch):
        await store.close_step(close_request(0))
    await store.open_step(open_request())
    await store.close_step(close_request())
    with pytest.raises(StepMismatch) as stale:
        await store.open_step(open_request(0))
    assert stale.value.expected_step == 1


@pytest.mark.parametrize(("help_units", "total_units", "uncalled"), [(-1, 8, 0), (9, 8, 0), (0, 0, 0), (8, 8, 9)])
async def test_impossible_units_are_refused(store: LedgerStore, help_units: int, total_units: int, uncalled: int) -> None:
    await store.open_step(open_request())
    with pytest.raises(InvalidRequest):
        await store.close_step(close_request(0, help_units, total_units, uncalled_units=uncalled))


async def test_report_that_contradicts_the_calls_is_flagged(store: LedgerStore) -> None:
    await store.open_step(open_request())
    silent = await store.close_step(close_request(help_units=5))
    assert silent.discrepancies == ("5 help units reported, but no cloud call was made",)
    await store.open_step(open_request(1))
    await store.reserve(reserve_request(step=1, help_units=4))
    await store.settle(settlement())
    await store.reserve(reserve_request("k2", step=1))
    odd = await store.close_step(close_request(1, help_units=3, total_units=129))
    assert len(odd.discrepancies) == 3
    honest = await store.open_step(open_request(2))
    await store.reserve(reserve_request("k3", step=honest.step, help_units=4))
    await store.settle(settlement("k3"))
    assert (await store.close_step(close_request(2, help_units=4))).discrepancies == ()


async def test_calls_of_one_prompt_count_once_with_the_largest_declared_units(store: LedgerStore) -> None:
    await store.open_step(open_request())
    group = {"step": 0, "prompt_id": "p", "fingerprint": "f"}
    await store.reserve(reserve_request("k1", help_units=4, **group))
    await store.settle(settlement())
    await store.reserve(reserve_request("k2", help_units=3, **group))
    assert (await store.close_step(close_request(help_units=3))).discrepancies == ("calls answered for 4 help units, 3 reported",)


async def test_uncalled_requests_are_no_discrepancy_and_move_the_dual(store: LedgerStore) -> None:
    await store.open_step(open_request())
    closed = await store.close_step(close_request(help_units=64, uncalled_units=64))
    assert closed.discrepancies == ()
    assert (closed.assist_rate, closed.dual_after) == (0.5, closed.dual + 0.02 * (0.5 - 0.3))
    await store.open_step(open_request(1))
    reply = await store.close_step(close_request(1, help_units=64, uncalled_units=56))
    assert reply.discrepancies == ("8 help units reported, but no cloud call was made",)


async def test_budget_version_only_grows(store: LedgerStore) -> None:
    actions: list[Callable[[], Awaitable[object]]] = [
        lambda: store.open_step(open_request()),
        lambda: store.reserve(reserve_request()),
        lambda: store.settle(settlement()),
        lambda: store.reserve(reserve_request("k2")),
        lambda: store.refund("d1", "k2", 1, "refused", NOW),
        lambda: store.close_step(close_request()),
    ]
    versions = []
    for action in actions:
        await action()
        task = (await store.get_budget("d1", "math", [ROOMY])).task
        assert task is not None
        versions.append(task.version)
    assert versions == sorted(set(versions))


async def test_watchers_receive_the_budgets_with_a_new_version(store: LedgerStore) -> None:
    changes, own = store.changes(), (BudgetTerms("device", AmountLimits(calls=100)),)  # nobody else's concern
    first = asyncio.create_task(anext(changes))
    await asyncio.sleep(0)
    await store.reserve(reserve_request(budgets=own))
    assert await asyncio.wait_for(first, 10.0) == ("d1", "math")
    for number in range(5):
        await store.reserve(reserve_request(f"k{number}", device="d2", budgets=own))
        await store.reserve(reserve_request(f"k{number}", device="d3", budgets=own))
    seen: set[tuple[str, str]] = set()
    while not {("d2", "math"), ("d3", "math")} <= seen:
        seen.add(await asyncio.wait_for(anext(changes), 10.0))
    await store.aclose()
    async with asyncio.timeout(10.0):
        assert {pair async for pair in changes} <= {("d2", "math"), ("d3", "math")}


async def test_unused_budget_is_shown_empty_and_not_created(store: LedgerStore) -> None:
    view = await store.get_budget("d1", "math", [ROOMY])
    assert view.task is None
    assert (view.budgets[0].limits, view.budgets[0].used) == (ROOMY.limits, Amount())
    assert await store.list_budgets_after("", 1_000, with_steps=True) == ()


async def test_serving_before_the_first_step_does_not_fix_the_dual(store: LedgerStore) -> None:
    await store.reserve(reserve_request(initial_dual=0.1))
    assert (await store.open_step(open_request(initial_dual=0.8))).dual == 0.8


async def test_non_text_parts_of_an_answer_are_stored_replayed_and_purged(store: LedgerStore) -> None:
    called = '{"tool_calls":[{"id":"\\u0000"}]}'
    await store.reserve(reserve_request(cache_key="c"))
    settled = (await store.settle(settlement(beyond_text=called))).call
    plain = settled.result_sha256
    assert (settled.beyond_text, await store.get_call("d1", "k1")) == (called, settled)
    again = await store.reserve(reserve_request("k2", cache_key="c"))
    assert isinstance(again, Replayed) and (again.call.beyond_text, again.call.result_sha256) == (called, plain)
    await store.reserve(reserve_request("k3"))
    assert (await store.settle(settlement("k3"))).call.result_sha256 != plain, "the journal vouches for the calls of tools, too"
    assert await store.purge_results(NOW + 100.0, NOW + 100.0) == 3
    assert [(await store.get_call("d1", key)).beyond_text for key in ("k1", "k2")] == ["", ""]


async def test_purged_answers_are_gone_and_charges_stay(store: LedgerStore) -> None:
    await store.reserve(reserve_request(cache_key="c"))
    await store.settle(settlement())
    assert await store.purge_results(NOW, NOW + 5.0) == 0
    assert await store.purge_results(NOW + 100.0, NOW + 100.0) == 1
    outcome = await store.reserve(reserve_request(cache_key="c"))
    assert isinstance(outcome, CallEnded)
    assert (outcome.call.state, outcome.call.result, outcome.call.charged.uusd) == (CallState.COMPLETED, None, 300)
    assert isinstance(await store.reserve(reserve_request("k2", cache_key="c")), Reserved)


async def test_large_purge_is_journalled_in_bounded_entries(store: LedgerStore, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.ledger.transitions.PURGED_IN_ENTRY", 2)
    for key in ("k1", "k2", "k3"):
        await store.reserve(reserve_request(key))
        await store.settle(settlement(key))
    assert await store.purge_results(NOW + 100.0, NOW + 100.0) == 3
    purges = [json.loads(entry.body)["calls"] for entry in await store.read_journal(0, 100) if entry.kind == "purge"]
    assert purges == [[["d1", "k1"], ["d1", "k2"]], [["d1", "k3"]]]


async def test_journal_never_contains_an_answer(store: LedgerStore) -> None:
    await store.reserve(reserve_request())
    await store.settle(settlement(text="a secret answer"))
    entries = await store.read_journal(0, 100)
    assert [entry.kind for entry in entries] == ["epoch", "limits", "task", "reserve", "completed"]
    assert not any("a secret answer" in entry.body for entry in entries)
    assert await store.read_journal(3, 1) == entries[3:4]
    assert await store.last_entry() == entries[-1].seq


async def test_any_character_in_a_name_or_answer_survives(store: LedgerStore) -> None:
    odd = {"device": "d\\0\\\\x", "prompt_id": "\x00'\"{}\\", "model": "größer \U0001f600"}
    text = '\\0 \x00 \\\x00 {"a": [1]}\r\n\u2028'
    await store.reserve(reserve_request("k\\'", **odd))
    await store.settle(settlement("k\\'", device=odd["device"], text=text, finish="\x00", upstream_id="\\u0000"))
    call = await store.get_call(odd["device"], "k\\'")
    assert (call.device, call.prompt_id, call.model, call.result) == (*odd.values(), text)
    assert (call.finish, call.upstream_id) == ("\x00", "\\u0000")
    await store.reserve(reserve_request("half"))
    assert (await store.settle(settlement("half", text="a\ud800b"))).call.result == "a?b", "half a character is repaired"


@pytest.mark.parametrize("changes", [{"key": ""}, {"device": ""}, {"step": -2}, {"help_units": -1}, {"hold": Amount(0, 5, 5)}])
async def test_malformed_reservations_are_refused(store: LedgerStore, changes: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        await store.reserve(reserve_request(**{"fingerprint": "f", "prompt_id": "p", **changes}))


async def test_unknown_attempts_cannot_be_resolved(store: LedgerStore) -> None:
    with pytest.raises(NotFound):
        await store.settle(settlement())
    await store.reserve(reserve_request())
    with pytest.raises(NotFound):
        await store.refund("d1", "k1", 2, "refused", NOW)


async def test_cancelled_caller_does_not_undo_queued_work(store: LedgerStore) -> None:
    asking = asyncio.create_task(store.reserve(reserve_request()))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert await store.reserve(reserve_request()) == InProgress("k1")


async def test_calls_are_paged_by_device_and_key_without_repeats(store: LedgerStore) -> None:
    names = [(device, f"k{number}") for device in ("a", "b", "\u00e9") for number in range(3)]
    for device, key in reversed(names):
        await store.reserve(reserve_request(key, device=device))
    seen: list[tuple[str, str]] = []
    after = ("", "")
    while page := await store.list_calls_after(*after, 2):
        assert len(page) <= 2
        seen += [(row.device, row.key) for row in page]
        after = seen[-1]
    assert seen == names
    assert [row.key for row in await store.list_calls_after("", "", 9, device="b")] == ["k0", "k1", "k2"]
    assert [row.key for row in await store.list_calls_after("b", "k1", 9, device="b")] == ["k2"]
    assert await store.list_calls_after("b", "k2", 9, device="a") == ()


async def test_budgets_are_paged_and_step_credits_only_on_request(store: LedgerStore) -> None:
    budgets = [BudgetTerms(budget_key("device", name), AmountLimits()) for name in ("c", "a", "b")]
    await store.open_step(open_request())
    await store.reserve(reserve_request(step=0, budgets=[ROOMY, *budgets]))
    first = await store.list_budgets_after("", 3)
    rest = await store.list_budgets_after(first[-1].key, 3)
    assert [row.key for row in first + rest] == ["device[device:a]", "device[device:b]", "device[device:c]", "fleet"]
