"""The vectorised fleet's queue, budgets, outages and batteries, and whole runs of it."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.config import BudgetsConfig, LimitConfig, RateConfig
from tools.simulate.fleet.hardware import DeviceSpeed, LinkModel
from tools.simulate.fleet.scenario import CloudPart, CoordinatorPart, Scenario
from tools.simulate.reports.result import SimulationResult, all_sources
from tools.simulate.vectorised import run as run_module
from tools.simulate.vectorised import validate
from tools.simulate.vectorised.battery import Batteries
from tools.simulate.vectorised.cloud import ANSWERED, FAILED, REFUSED, Calls, Cloud
from tools.simulate.vectorised.devices import rollout_seconds
from tools.simulate.vectorised.draws import Draws
from tools.simulate.vectorised.links import FleetLinks
from tools.simulate.vectorised.money import Bids, Buckets, SharedBudget
from tools.simulate.vectorised.run import run_vectorised, shards_of
from tools.simulate.vectorised.slots import Slots
from tools.simulate.vectorised.validate import compared, resized

SPEED = DeviceSpeed("device", "1B", 200.0, ((1, 20.0), (8, 80.0)), 60.0, idle_w=5.0, busy_w=30.0)
LINK = LinkModel("link", 0.03, 0.005, 2e6, 8e6)


# the upstream's slots ------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.1, 20.0)), min_size=1, max_size=60),
    st.integers(1, 59),
)
def test_calls_wait_as_in_a_line_before_so_many_slots(slots: int, calls: list[tuple[float, float]], cut: int) -> None:
    calls.sort()
    queue, found = Slots(slots, 1000), []
    for part in (calls[:cut], calls[cut:]):
        arrives, takes = np.array([call[0] for call in part]), np.array([call[1] for call in part])
        served = queue.serve(arrives, takes, np.full(arrives.size, 1e9))
        assert served.taken.all()
        found += served.begins.tolist()
    free, expected = [0.0] * slots, []
    for arrival, takes_s in calls:
        expected.append(max(arrival, free[0]))
        heapq.heapreplace(free, expected[-1] + takes_s)
    assert found == pytest.approx(expected)


def test_a_full_line_and_an_end_of_patience_turn_calls_away() -> None:
    queue = Slots(1, 1)
    served = queue.serve(np.array([0.0, 1.0, 2.0]), np.full(3, 10.0), np.full(3, 60.0))
    assert served.taken.tolist() == [True, True, False]
    assert served.begins.tolist() == [0.0, 10.0, 2.0]
    assert (queue.longest_queue, queue.most_in_flight) == (1, 1)
    assert Slots(1, 5).serve(np.array([0.0, 1.0]), np.full(2, 10.0), np.full(2, 3.0)).begins.tolist() == [
        0.0,
        4.0,
    ]


# budgets -------------------------------------------------------------------------------------------------------------------------


def _bids(who: list[int], at: list[float], lasts_s: float, hold: int, charge: int) -> Bids:
    count, when = len(at), np.array(at)
    amounts = [np.stack([np.ones(count, np.int64), np.full(count, each), np.full(count, each)]) for each in (hold, charge)]
    return Bids(np.array(who), np.zeros(count, np.int64), when, when + lasts_s, amounts[0], amounts[1], np.zeros(count, np.int64))


@settings(deadline=None)
@given(st.integers(0, 3000), st.lists(st.lists(st.floats(0.0, 60.0), min_size=1, max_size=30), min_size=1, max_size=5))
def test_a_budget_takes_just_the_calls_that_a_ledger_would(limit: int, batches: list[list[float]]) -> None:
    budget = SharedBudget(LimitConfig(spend_limit_uusd=limit), 1)
    budget.enter(0.0)
    committed, held, expected, found = 0, [], [], []
    for number, batch in enumerate(batches):
        at = sorted(60.0 * number + one for one in batch)
        found += budget.admit(_bids([0] * len(at), at, 5.0, 100, 40)).tolist()
        for one in at:
            committed += 40 * sum(end <= one for end in held)
            held = [end for end in held if end > one]
            expected.append(committed + 100 * len(held) + 100 <= limit)
            held += [one + 5.0] if expected[-1] else []
    assert found == expected


def test_what_is_set_aside_for_a_device_others_cannot_take() -> None:
    budget = SharedBudget(LimitConfig(calls_limit=10), 2, floor=1.0)
    budget.enter(0.0)
    first = budget.admit(_bids([0] * 9 + [1], [float(second) for second in range(10)], 0.5, 0, 0))
    assert first.tolist() == [True] * 5 + [False] * 4 + [True]
    assert budget.admit(_bids([1] * 5, [20.0 + second for second in range(5)], 0.5, 0, 0)).tolist() == [True] * 4 + [False]


def test_what_devices_used_of_their_shares_outlives_a_changed_limit() -> None:
    budget = SharedBudget(LimitConfig(calls_limit=100), 2, floor=1.0)
    budget.enter(0.0)
    assert budget.admit(_bids([0] * 4 + [1], [float(second) for second in range(5)], 0.5, 0, 0)).all()
    budget.configure(LimitConfig(calls_limit=10), 1.0)
    assert budget.admit(_bids([0] * 3, [20.0, 21.0, 22.0], 0.5, 0, 0)).tolist() == [True, False, False]


def test_a_budget_is_whole_again_in_its_next_window() -> None:
    budget = SharedBudget(LimitConfig(window="hour", calls_limit=2), 1)
    budget.enter(0.0)
    assert budget.admit(_bids([0] * 3, [0.0, 1.0, 2.0], 0.5, 0, 0)).tolist() == [True, True, False]
    budget.enter(3600.0)
    assert budget.admit(_bids([0], [3600.0], 0.5, 0, 0)).tolist() == [True]


def test_a_bucket_tells_when_the_next_call_may_start() -> None:
    waits = Buckets(RateConfig(calls_per_min=60, burst=2), 1).waits_s(np.zeros(4, np.int64), np.array([0.0, 0.0, 0.25, 2.0]))
    assert waits.tolist() == pytest.approx([0.0, 0.0, 0.75, 0.0])


# coordinator and cloud -----------------------------------------------------------------------------------------------------------


def _calls(at: list[float], patience_s: float = 60.0) -> Calls:
    count, none = len(at), np.zeros(len(at), np.int64)
    tokens = np.full((2, count), [[136], [400]])
    return Calls(np.arange(count), none, np.array(at), none + 120, none + 241, tokens, np.full(count, patience_s), none)


def _cloud(down: tuple[float, float] = (0.0, 0.0), gone: tuple[float, float] = (0.0, 0.0), **coordinator: object) -> Cloud:
    part = CloudPart(first_token_s=1.0, spread=0.0, tokens_per_s=80.0)
    return Cloud(part, CoordinatorPart.model_validate(coordinator), 100, 1, Draws(1, "cloud"), down=[down], gone=[gone])


def test_a_call_takes_its_first_token_and_the_rest_at_the_upstreams_speed() -> None:
    replies = _cloud().ask(_calls([5.0]), 0.0)
    assert replies.outcome.tolist() == [ANSWERED]
    assert replies.done_at[0] == pytest.approx(5.0 + 1.0 + 240 / 80.0, abs=0.01)
    assert replies.spend_uusd.tolist() == [163]


def test_an_upstream_that_is_down_fails_calls_and_its_breaker_opens() -> None:
    replies = _cloud(down=(10.0, 100.0)).ask(_calls([float(second) for second in range(0, 300, 2)], patience_s=8.0), 0.0)
    at = np.arange(0, 300, 2)
    assert (replies.outcome[at < 10] == ANSWERED).all()
    assert (replies.outcome[(at >= 10) & (at < 90)] == FAILED).all()
    assert (replies.outcome[at > 160] == ANSWERED).all()
    assert replies.spend_uusd[(at >= 10) & (at < 90)].sum() == 0


def test_without_a_coordinator_a_call_fails_once_nobody_could_be_connected_to() -> None:
    replies = _cloud(gone=(10.0, 100.0)).ask(_calls([5.0, 20.0, 99.0, 120.0]), 0.0)
    assert replies.outcome.tolist() == [ANSWERED, FAILED, ANSWERED, ANSWERED]
    assert replies.done_at[1] == pytest.approx(22.0)
    assert replies.done_at[2] == pytest.approx(104.0, abs=0.01)


def test_a_call_that_a_crash_cuts_is_charged_at_its_hold_and_fails() -> None:
    replies = _cloud(gone=(10.0, 100.0)).ask(_calls([8.0]), 0.0)
    assert (replies.outcome.tolist(), replies.spend_uusd.tolist()) == ([FAILED], [261])


def test_budgets_of_a_device_and_of_the_fleet_refuse_and_changed_ones_allow_again() -> None:
    cloud = _cloud(budgets={"fleet": {"calls_limit": 2}})
    assert cloud.ask(_calls([0.0, 1.0, 2.0]), 0.0).outcome.tolist() == [ANSWERED, ANSWERED, REFUSED]
    cloud.configure(CoordinatorPart(budgets=BudgetsConfig(device=LimitConfig(calls_limit=1))))
    assert cloud.ask(_calls([60.0, 61.0]), 60.0).outcome.tolist() == [ANSWERED, ANSWERED]
    assert cloud.ask(_calls([120.0, 121.0]), 120.0).outcome.tolist() == [REFUSED, REFUSED]


# devices -------------------------------------------------------------------------------------------------------------------------


def test_groups_of_a_rollout_share_the_rows_of_one_batch() -> None:
    seconds = rollout_seconds(np.array([[160.0, 320.0]]), 4, 100, SPEED)
    both_s = 160.0 * 2 / 80.0
    alone_s = (320.0 - 160.0) / SPEED.decode_rate(4)
    assert seconds[0].tolist() == pytest.approx([1.0 + both_s, 1.0 + both_s + alone_s])


def test_a_battery_is_empty_when_its_energy_is_used_up_and_full_after_midnight() -> None:
    speed = DeviceSpeed("phone", "1B", 1.0, ((1, 1.0),), 1.0, idle_w=1.0, busy_w=10.0, battery_wh=10.0)
    battery, who = Batteries(speed, 2), np.array([0])
    battery.work(who, np.array([0.0]), np.array([1800.0]))
    assert not battery.empty(np.array([0, 1]), np.full(2, 1800.0 + 4.9 * 3600)).any()
    assert battery.empty(np.array([0, 1]), np.full(2, 1800.0 + 5.1 * 3600)).tolist() == [True, False]
    assert battery.off_s(0.0, 8 * 3600.0) == pytest.approx(2.5 * 3600, abs=1.0)
    battery.recharge(8 * 3600.0)
    assert not battery.empty(who, np.array([8.5 * 3600.0])).any()


def test_links_are_down_in_their_hours_in_events_and_as_long_as_outages_take_on_average() -> None:
    nights = FleetLinks(
        LinkModel("nights", 0.1, 0.0, 1e6, 1e6, offline_hours=(23.0, 6.0)), 1, Draws(1), [(40000.0, 41000.0)], 0.0
    )
    who = np.zeros(4, np.int64)
    again = nights.up_again(who, np.array([3600.0, 30000.0, 40500.0, 23.5 * 3600]))
    assert again.tolist() == pytest.approx([6 * 3600.0, 30000.0, 41000.0, 30 * 3600.0])
    flaps, up = (
        FleetLinks(LinkModel("flaps", 0.1, 0.0, 1e6, 1e6, mean_up_s=300.0, mean_down_s=100.0), 2000, Draws(2), [], 0.0),
        [],
    )
    everyone = np.arange(2000)
    for minute in range(20, 60):
        up.append(float(flaps.are_up(everyone, np.full(2000, 60.0 * minute)).mean()))
    assert np.mean(up) == pytest.approx(0.75, abs=0.02)


# whole runs ----------------------------------------------------------------------------------------------------------------------


def _scenario(**changes: object) -> Scenario:
    group = {
        "name": "jetsons",
        "devices": 30,
        "device": "jetson-orin-nano",
        "link": "office",
        "questions_per_day": 400,
        "dial": 0.3,
        "learning": {"steps_per_day": 48, "from_hour": 0, "until_hour": 24},
        "mind": {"ask": -1.5},
    }
    data = {"about": "A test.", "lasts_h": 4, "warm_up_h": 1, "groups": [group]}
    return Scenario.model_validate({**data, **changes})


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    first, again, other = (run_vectorised(_scenario(), seed).to_json() for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert SimulationResult.from_json(first).to_json() == first


def test_shards_hold_all_devices_and_find_the_same_within_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = _scenario(coordinator={"budgets": {"fleet": {"spend_limit_uusd": 100_001}}})
    whole = run_vectorised(scenario)
    monkeypatch.setattr(run_module, "DEVICES_OF_A_SHARD", 8)
    shards = shards_of(scenario)
    assert [shard.devices for shard in shards] == [8, 8, 7, 7]
    assert sum(shard.coordinator.budgets.fleet.spend_limit_uusd or 0 for shard in shards) == 100_001
    cut = run_vectorised(scenario, processes=1)
    assert cut.groups[0].devices == 30
    assert sum(cut.groups[0].answers.values()) == pytest.approx(sum(whole.groups[0].answers.values()), rel=0.1)
    assert cut.groups[0].spend_uusd <= 100_001
    assert cut.groups[0].steps == pytest.approx(whole.groups[0].steps, rel=0.1)


def test_spend_stays_within_a_budget_that_is_cut_while_calls_run() -> None:
    events = [{"at_h": 1, "coordinator": {"budgets": {"fleet": {"spend_limit_uusd": 20_000}}}}]
    result = run_vectorised(_scenario(events=events))
    spent = result.cloud.spend_uusd
    assert result.groups[0].refused["budget"] > 0
    assert spent[-1] <= max(20_000, spent[4])
    assert spent == sorted(spent)


def test_the_vectorised_fleet_finds_what_the_exact_simulation_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.simulate.fleet.run import play

    monkeypatch.setattr(validate, "FEWEST_ANSWERS", 100)
    scenario = resized(_scenario(lasts_h=3), 12)
    exact = play(scenario, "test", told=False)[0]
    rows = {row.figure: row for row in compared(exact, [run_vectorised(scenario, seed) for seed in range(6)])}
    for figure, off in (("answers", 0.15), ("assist rate", 0.15), ("training assist rate", 0.25), ("λ", 0.03), ("steps", 0.05)):
        assert rows[figure].vectorised == pytest.approx(rows[figure].exact, rel=off), figure
    for figure in ("latency p50 all", "latency p95 all", "first letter p50 all", "energy Wh"):
        assert rows[figure].vectorised == pytest.approx(rows[figure].exact, rel=0.08), figure


def test_a_thundering_herd_waits_in_the_upstreams_line() -> None:
    learning = {"steps_per_day": 1, "from_hour": 1, "until_hour": 2, "at_once": True}
    group = {
        "name": "herd",
        "devices": 300,
        "device": "jetson-orin-nano",
        "link": "office",
        "questions_per_day": 0,
        "learning": learning,
    }
    result = run_vectorised(_scenario(groups=[group], cloud={"slots": 4}))
    assert max(result.cloud.queue) > 30
    assert max(result.cloud.in_flight) == 4
    assert result.groups[0].steps == 300


def test_questions_that_meet_no_link_are_answered_on_the_device() -> None:
    events = [{"at_h": 0, "links_down_for_s": 4 * 3600}]
    group = _scenario(events=events).groups[0].model_copy(update={"learning": None})
    found = run_vectorised(_scenario(events=events).model_copy(update={"groups": (group,)})).groups[0]
    assert set(found.answers) == {"local", "local-fallback"}
    assert found.calls == 0
    assert found.series.online_share[:-1] == [0.0] * (len(found.series.online_share) - 1)
    assert all_sources(found.latency_total).count == sum(found.answers.values())
