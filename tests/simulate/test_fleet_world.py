"""Whole worlds: the real agents and the real coordinator in virtual time, through calm and trouble, and the same bytes again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from coordinator.ledger.tables import CALL
from tests.worlds.fleet import group, played, scenario
from tools.simulate.fleet.device import FleetDevice
from tools.simulate.fleet.world import FleetWorld, violations
from tools.simulate.reports.result import GroupResult, all_sources
from tools.simulate.virtual.loop import Deadlock

ROOT = Path(__file__).resolve().parents[2]
EAGER = {"ask": 0.5, "ask_slope": 0.0}
LESSONS = {"steps_per_day": 96, "from_hour": 0, "until_hour": 0, "prompts_per_step": 2, "group_size": 4}


def answers(result: GroupResult) -> int:
    return sum(result.answers.values())


def test_a_calm_day_answers_everybody_and_the_books_agree(tmp_path: Path) -> None:
    result, world = played(tmp_path, group(devices=3, mind=EAGER))
    laptops = result.groups[0]
    assert answers(laptops) > 20
    assert set(laptops.answers) == {"local", "cloud"}
    assert laptops.calls == laptops.answers["cloud"]
    assert laptops.spend_uusd == result.cloud.spend_uusd[-1] > 0
    assert laptops.lost == result.cloud.ledger_violations == 0
    assert all_sources(laptops.latency_total).count == answers(laptops) == sum(laptops.series.answers)
    assert world.found == []


def test_local_answers_take_the_time_of_their_tokens_and_cloud_answers_that_of_the_cloud_besides(tmp_path: Path) -> None:
    tokens = {"local": 200, "local_spread": 0.0, "cloud": 160, "cloud_spread": 0.0, "asking_share": 0.5}
    cloud = {"first_token_s": 1.0, "spread": 0.0, "tokens_per_s": 80}
    result, world = played(tmp_path, group(devices=2, tokens=tokens, mind=EAGER), cloud=cloud)
    speed = world.devices[0].machine.speed
    local_s = speed.overhead_s + 120 / speed.prefill_tokens_per_s + 200 / speed.decode_rate(1)
    asking_s = speed.overhead_s + 120 / speed.prefill_tokens_per_s + 100 / speed.decode_rate(1)
    latency = result.groups[0].latency_total
    assert latency["local"].quantile(0.5) == pytest.approx(local_s, rel=0.01)
    assert latency["cloud"].quantile(0.5) == pytest.approx(asking_s + 1.0 + 159 / 80 + 0.04, abs=0.05)


def test_while_the_cloud_is_down_devices_answer_themselves(tmp_path: Path) -> None:
    events = [{"at_h": 2, "cloud_down_for_s": 7200}]
    result, _ = played(tmp_path, group(devices=3, mind={"ask": 20.0}), events=events)
    laptops = result.groups[0]
    hours = [laptops.series.assist_rate[place] for place in range(2, 24)]
    assert laptops.answers["local-fallback"] >= 3
    assert laptops.refused == {"unreachable": laptops.answers["local-fallback"]}
    assert set(hours[6 + 1 : 6 + 7]) <= {0.0, None}
    assert hours[-1] in (1.0, None)
    assert laptops.lost == result.cloud.ledger_violations == 0
    assert result.cloud.errors["down"] > 0


def test_a_coordinator_that_is_killed_and_comes_back_loses_and_doubles_nothing(tmp_path: Path) -> None:
    events = [{"at_h": hour, "coordinator_down_for_s": 300} for hour in (1, 2, 3, 4, 5)]
    busy = group(devices=4, questions_per_day=800, mind={"ask": 20.0}, learning=LESSONS)
    result, world = played(tmp_path, busy, events=events)
    assert world.found == []
    assert result.groups[0].lost == 0
    assert result.groups[0].answers["local-fallback"] > 5
    assert world.site.kills == 5
    assert min(result.cloud.up) < 1.0


def test_links_that_are_down_hold_up_their_group_alone(tmp_path: Path) -> None:
    events = [{"at_h": 2, "links_down_for_s": 3600, "groups": ["cut"]}]
    groups = [group(name, devices=2, questions_per_day=200, mind={"ask": 20.0}) for name in ("cut", "whole")]
    result, _ = played(tmp_path, *groups, events=events)
    cut, whole = result.groups
    assert cut.answers["local-fallback"] > 3
    assert "local-fallback" not in whole.answers
    assert result.cloud.ledger_violations == 0


def test_a_budget_that_is_cut_in_a_running_coordinator_holds_at_once(tmp_path: Path) -> None:
    events = [{"at_h": 3, "coordinator": {"budgets": {"fleet": {"spend_limit_uusd": 4000}}}}]
    coordinator = {"tasks": {"math": {}}, "budgets": {"fleet": {"spend_limit_uusd": 100_000}}}
    result, _ = played(
        tmp_path, group(devices=4, questions_per_day=200, mind={"ask": 20.0}), events=events, coordinator=coordinator
    )
    assert result.cloud.limit_uusd[0] == 100_000
    assert result.cloud.limit_uusd[-1] == 4000
    before = result.cloud.spend_uusd[11]
    assert result.cloud.spend_uusd[-1] <= max(4000, before)
    assert result.groups[0].refused["budget"] > 0
    assert result.groups[0].lost == 0


def test_learning_follows_the_dual_towards_the_target_rate(tmp_path: Path) -> None:
    often = {**LESSONS, "steps_per_day": 480, "group_size": 8}
    learner = group(learning=often, mind={"ask": 2.0}, rates={"ask": 2.0}, questions_per_day=1)
    result, world = played(tmp_path, learner)
    rates = [rate for rate in result.groups[0].series.training_assist_rate if rate is not None]
    assert result.groups[0].steps > 100
    assert rates[0] > 0.6
    assert sum(rates[-6:]) / 6 < 0.45
    assert world.devices[0].backend.adapter_version == result.groups[0].steps
    assert world.devices[0].backend.mind != world.scenario.groups[0].mind


def test_the_dial_holds_its_rate(tmp_path: Path) -> None:
    result, _ = played(tmp_path, group(devices=2, questions_per_day=1000, dial=0.2), warm_up_h=1)
    assert result.groups[0].settled_assist_rate == pytest.approx(0.2, abs=0.03)


def test_an_empty_phone_is_asked_nothing_until_midnight(tmp_path: Path) -> None:
    phone = group("phones", device="phone", on_mains=False, questions_per_day=2000, tokens={"local": 700})
    result, _ = played(tmp_path, phone, starts_at_h=12, lasts_h=14)
    phones = result.groups[0]
    assert phones.refused["battery empty"] > 0
    assert phones.battery_empty_s > 0
    assert phones.lost == 0
    assert phones.series.answers[-1] > 0


def test_the_same_seed_gives_the_same_bytes_whatever_strings_hash_to(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    busy = group(devices=3, learning=LESSONS, mind=EAGER, link="flapping", dial=0.3)
    events = [{"at_h": 1, "coordinator_down_for_s": 60}, {"at_h": 2, "links_down_for_s": 90}]
    path.write_text(scenario(busy, group("phones", device="phone"), events=events, lasts_h=3).model_dump_json(), encoding="utf-8")
    texts = []
    for hashes in ("0", "77"):
        out = tmp_path / f"{hashes}.json"
        command = [sys.executable, "-m", "tools.simulate", "run", str(path), "--json", str(out)]
        env = os.environ | {"PYTHONHASHSEED": hashes, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, env=env, cwd=ROOT, check=True, capture_output=True)
        texts.append(out.read_bytes())
    assert texts[0] == texts[1]


def test_a_deadlock_names_who_waits_for_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(device: FleetDevice, number: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(FleetDevice, "_ask", never)
    with pytest.raises(Deadlock) as stuck:
        FleetWorld(scenario(lasts_h=1, groups=[group(questions_per_day=500)]), "stuck", tmp_path).run()
    assert "not done after" in str(stuck.value)
    assert "laptops-00000: life waits in Event.wait" in str(stuck.value)


def test_an_answer_without_a_record_and_a_charge_nobody_knows_are_found(tmp_path: Path) -> None:
    _, world = played(tmp_path, group(mind={"ask": 20.0}))
    device, tables = world.devices[0], world.disk.tables
    key, charged = next(iter(device.charges.items()))
    assert charged
    device.figures.asked += 1
    device.charges[key] = charged + 1
    tables.rows[CALL][device.name, "planted"] = msgspec.structs.replace(tables.rows[CALL][device.name, key], key="planted")
    found = violations(tables, world.devices, {key: 2})
    report = "\n".join(found)
    assert f"{key} was executed 2 times" in report
    assert "questions," in report
    assert f"the device knows of {charged + 1}" in report
    assert "planted, of which the device knows nothing" in report


def test_who_was_switched_on_offline_has_the_clouds_answer_to_the_first_question_of_the_morning(tmp_path: Path) -> None:
    """A coordinator that the budget's stream has reached again is not asked with the short patience for one that is away."""
    morning = [0.0] * 7 + [1.0] * 17
    early = group("phones", devices=3, device="phone", link="offline-nights", by_hour=morning, mind={"ask": 20.0})
    result, _ = played(tmp_path, early, starts_at_h=4, cloud={"first_token_s": 4.0})
    assert result.groups[0].answers.keys() == {"cloud"}
    assert result.cloud.errors == {}
