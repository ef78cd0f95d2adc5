"""The vectorised fleet: its laws are the product's own, and whole runs of it are near those of the exact simulation."""

from __future__ import annotations

import heapq
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.config import LimitConfig
from edge.budget.dial import HelpDial
from edge.core.errors import UsageError
from tools.simulate.__main__ import main
from tools.simulate.fleet.run import play
from tools.simulate.fleet.scenario import Scenario, load_scenario
from tools.simulate.reports.result import SimulationResult
from tools.simulate.vectorised import validate
from tools.simulate.vectorised.budgets import Bids, SharedBudget
from tools.simulate.vectorised.cloud import Slots
from tools.simulate.vectorised.fleet import FleetDials, run_vectorised
from tools.simulate.vectorised.validate import compared

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
        ({"price": "spend"}, {}, "a price other than calls in group jetsons"),
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
    assert told in str(refused.value) and refused.value.hint == "play it without --vectorised"


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
