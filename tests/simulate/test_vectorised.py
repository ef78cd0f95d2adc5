"""The vectorised fleet: its laws are the product's own, and whole runs of it are near those of the exact simulation."""

from __future__ import annotations

import heapq
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.calls.prices import Price
from coordinator.config import BudgetsConfig, LimitConfig
from coordinator.ledger.fairness import highest_floor
from edge.budget.dial import HelpDial
from edge.core.errors import UsageError
from edge.core.types import TokenUsage
from tools.simulate.__main__ import main
from tools.simulate.fleet.run import play
from tools.simulate.fleet.scenario import CloudPart, CoordinatorPart, Scenario, load_scenario
from tools.simulate.reports.result import SimulationResult
from tools.simulate.vectorised import validate
from tools.simulate.vectorised.budgets import Bids, SharedBudget, charged, highest
from tools.simulate.vectorised.cloud import ANSWERED, FAILED, REFUSED, Calls, Cloud, Slots
from tools.simulate.vectorised.draws import Draws
from tools.simulate.vectorised.fleet import FleetDials, run_vectorised
from tools.simulate.vectorised.validate import Compared, compared

READY = sorted((Path(__file__).resolve().parents[2] / "tools" / "simulate" / "scenarios").glob("*.yaml"))
PLAYED = ("budget-cut",)
"""Ready scenarios of dials, budgets and latencies alone; each of the others has learning, outages or a battery in it."""


@pytest.mark.parametrize("target_rate", [0.05, 0.3, 0.7, 0.0, 1.0])
def test_fleet_dials_move_as_the_dial_of_one_agent_does(target_rate: float) -> None:
    rng, devices = random.Random(7), 3
    fleet, dials = FleetDials(devices, target_rate), [HelpDial(target_rate) for _ in range(devices)]
    for _ in range(260):
        who = np.array([device for device in range(devices) if device == 0 or rng.random() < 0.6])
        asked_with = fleet.settings(who)
        log_odds = [None if rng.random() < 0.1 else float(np.float32(rng.gauss(-1.0, 2.0))) for _ in who]
        asked = []
        for place, device in enumerate(who):
            own, odds = dials[device].setting(), log_odds[place]
            assert asked_with.bias[place] == pytest.approx(own.bias, abs=2e-4)
            assert asked_with.rate[place] == pytest.approx(own.rate, abs=2e-5)
            asked.append(odds is not None and odds + own.bias > 0.0)
            dials[device].answered(own, asked[-1], odds)
        fleet.answered(
            who, asked_with, np.array(asked), np.array([np.inf if odds is None else odds for odds in log_odds], np.float32)
        )


@settings(deadline=None)
@given(st.integers(0, 300), st.lists(st.integers(0, 200), min_size=1, max_size=12), st.integers(0, 500))
def test_the_highest_floor_of_sorted_amounts_is_the_ledgers(target: int, used: list[int], free: int) -> None:
    assert highest(target, np.sort(np.array(used)), free) == highest_floor(target, used, free)


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


def test_calls_cost_what_the_ledger_charges() -> None:
    price, usages = Price(150_000, 600_000), [(120, 250), (1, 1), (0, 0), (999, 4096)]
    amounts = charged(*(np.array([usage[place] for usage in usages]) for place in (0, 1)), 150_000, 600_000)
    expected = [price.charge(TokenUsage(*usage)) for usage in usages]
    assert amounts.T.tolist() == [[each.calls, each.tokens, each.uusd] for each in expected]


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


def _bids(who: list[int], at: list[float], lasts_s: float, hold: int, charge: int) -> Bids:
    count, when = len(at), np.array(at)
    amounts = [np.stack([np.ones(count, np.int64), np.full(count, each), np.full(count, each)]) for each in (hold, charge)]
    return Bids(np.array(who), np.zeros(count, np.int64), when, when + lasts_s, *amounts)


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


def _calls(at: list[float], patience_s: float = 60.0) -> Calls:
    count, none = len(at), np.zeros(len(at), np.int64)
    tokens = np.full((2, count), [[136], [400]])
    return Calls(np.arange(count), none, np.array(at), none + 120, none + 241, tokens, np.full(count, patience_s))


def _cloud(**coordinator: object) -> Cloud:
    part = CloudPart(first_token_s=1.0, spread=0.0, tokens_per_s=80.0)
    return Cloud(part, CoordinatorPart.model_validate(coordinator), 100, 1, Draws(1, "cloud"))


def test_budgets_of_a_device_and_of_the_fleet_refuse_and_changed_ones_allow_again() -> None:
    cloud = _cloud(budgets={"fleet": {"calls_limit": 2}})
    assert cloud.ask(_calls([0.0, 1.0, 2.0]), 0.0).outcome.tolist() == [ANSWERED, ANSWERED, REFUSED]
    cloud.configure(CoordinatorPart(budgets=BudgetsConfig(device=LimitConfig(calls_limit=1))))
    assert cloud.ask(_calls([60.0, 61.0]), 60.0).outcome.tolist() == [ANSWERED, ANSWERED]
    assert cloud.ask(_calls([120.0, 121.0]), 120.0).outcome.tolist() == [REFUSED, REFUSED]


def test_a_call_that_ends_after_its_clients_patience_fails_and_is_charged_at_its_hold() -> None:
    replies = _cloud().ask(_calls([0.0], patience_s=2.0), 0.0)
    assert (replies.outcome.tolist(), replies.spend_uusd.tolist(), replies.done_at.tolist()) == ([FAILED], [261], [2.0])


def _scenario(**changes: object) -> Scenario:
    group = {
        "name": "jetsons",
        "devices": 30,
        "device": "jetson-orin-nano",
        "link": "office",
        "questions_per_day": 400,
        "dial": 0.3,
    }
    return Scenario.model_validate({"about": "A test.", "lasts_h": 4, "warm_up_h": 1, "groups": [group], **changes})


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    first, again, other = (run_vectorised(_scenario(), seed).to_json() for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert SimulationResult.from_json(first).to_json() == first


def test_spend_stays_within_a_budget_that_is_cut_while_calls_run() -> None:
    events = [{"at_h": 1, "coordinator": {"budgets": {"fleet": {"spend_limit_uusd": 20_000}}}}]
    result = run_vectorised(_scenario(events=events))
    spent = result.cloud.spend_uusd
    assert result.groups[0].refused["budget"] > 0
    assert spent[-1] <= max(20_000, spent[4])
    assert spent == sorted(spent)


@pytest.mark.parametrize(
    ("group", "values", "told"),
    [
        ({"learning": {"steps_per_day": 4}}, {}, "learning in group jetsons"),
        ({"dual_unit": "spend"}, {}, "a dual_unit other than calls in group jetsons"),
        ({"by_weekday": [1, 1, 1, 1, 1, 1, 2]}, {}, "demand that changes"),
        ({"tokens": {"prompt_further": 10}}, {}, "prompts of different lengths"),
        ({"device": "phone"}, {}, "batteries (on_mains is false) in group jetsons"),
        ({"link": "flapping"}, {}, "a link that is down for long"),
        ({"link": "offline-nights"}, {}, "a link that is down for long"),
        ({}, {"events": [{"at_h": 1, "cloud_down_for_s": 5}]}, "outages"),
        ({}, {"cloud": {"error_rate": 0.1}}, "errors of the cloud"),
        ({}, {"events": [{"at_h": 1, "coordinator": {"rates": {"fleet": {"calls_per_min": 5}}}}]}, "rates of starting calls"),
    ],
)
def test_what_only_the_exact_simulation_plays_is_refused(group: dict[str, object], values: dict[str, object], told: str) -> None:
    own = _scenario().groups[0].model_dump(exclude_unset=True) | group
    with pytest.raises(UsageError) as refused:
        run_vectorised(_scenario(groups=[own], **values))
    assert told in str(refused.value) and "without --vectorised" in refused.value.hint


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_a_ready_scenario_is_played_as_the_exact_simulation_does_or_refused(path: Path) -> None:
    """Every figure is within 5 % of the exact one; or the command says what it does not play."""
    scenario = load_scenario(path)
    if path.stem not in PLAYED:
        with pytest.raises(UsageError, match="dials, budgets and latencies only"):
            run_vectorised(scenario)
        return
    rows = compared(play(scenario, path.stem, show_progress=False)[0], [run_vectorised(scenario, seed) for seed in range(8)])
    assert len(rows) >= 20
    assert [(row.figure, row.off_by) for row in rows if row.verdict != "yes"] == []


SCENARIO = """
about: Boards with a dial.
lasts_h: 3
groups:
  - {name: boards, devices: 40, device: jetson-orin-nano, link: office, questions_per_day: 200, dial: 0.2}
  - {name: phones, devices: 20, device: phone, on_mains: true, link: lte-good, questions_per_day: 200}
assertions:
  - {metric: rate off target, op: "<=", value: 0.05, group: boards}
  - {metric: lost answers, op: "==", value: 0}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "boards.yaml"
    path.write_text(SCENARIO)
    return path


def test_a_vectorised_run_is_judged_and_written_as_an_exact_one_is(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "found" / "result.json"
    assert main(["run", str(file), "--vectorised", "--json", str(out)]) == 0
    result = SimulationResult.from_json(out.read_bytes())
    assert (result.engine, result.scenario, result.devices) == ("vectorised", "boards", 60)
    assert [assertion.holds for assertion in result.assertions] == [True, True]


def test_a_result_that_is_far_from_the_exact_one_fails_the_validation(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate, "FEWEST_ANSWERS", 100)
    near, far = tmp_path / "near.json", tmp_path / "far.json"
    main(["run", str(file), "--vectorised", "--json", str(near)])
    main(["run", str(file), "--vectorised", "--json", str(far), "--set", "cloud.tokens_per_s=20"])
    capsys.readouterr()
    assert main(["validate-fleet", str(file), "--exact", str(near)]) == 0
    assert "p95, all" in capsys.readouterr().out
    assert main(["validate-fleet", str(file), "--exact", str(far)]) == 1


@pytest.mark.parametrize(("found", "verdict"), [(1.04, "yes"), (1.2, "by chance"), (1.4, "no")])
def test_the_verdict_separates_chance_from_difference(found: float, verdict: str) -> None:
    assert Compared("boards", "spend", 1.0, found, 0.1).verdict == verdict
