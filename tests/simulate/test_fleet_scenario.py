"""Scenario files: what is refused and with which words, what is merged, and that the table in the README is that of the schema."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.core.errors import ConfigError
from tests.simulate.fleet_worlds import group, scenario
from tools.simulate.fleet.profiles import load_device, load_link
from tools.simulate.fleet.scenario import HOURS, Scenario, load_scenario
from tools.simulate.fleet.table import schema_table

HERE = Path(__file__).resolve().parents[2] / "tools" / "simulate"
READY = sorted((HERE / "scenarios").glob("*.yaml"))


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return path


GOOD = "about: A test.\ngroups:\n  - {name: a, device: phone, link: office}\n"


def test_a_short_scenario_has_all_its_defaults(tmp_path: Path) -> None:
    read = load_scenario(written(tmp_path, GOOD))
    assert read.lasts_s == 24 * 3600
    assert read.devices == 1
    assert read.groups[0].nature.hardness == 8.0
    assert read.coordinator.service.watch_heartbeat_s == 3600.0


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("lasts_h: -1", "scenario.yaml:4: lasts_h must be greater than 0"),
        ("lasst_h: 1", "scenario.yaml:4: unknown key lasst_h; did you mean lasts_h?"),
        ("warm_up_h: 30", "scenario.yaml:4: warm_up_h must be less than lasts_h (24), not 30"),
        ("events: [{at_h: 1}]", "needs exactly one of cloud_down_for_s, coordinator_down_for_s, coordinator, links_down_for_s"),
        ("events: [{at_h: 30, cloud_down_for_s: 1}]", "events.0.at_h must be at most lasts_h (24)"),
        ("events: [{at_h: 1, links_down_for_s: 1, groups: [b]}]", "events.0.groups names b; known: a"),
        ("assertions: [p95 < 4 s]", "scenario.yaml:4: assertions.0"),
        ("assertions: [{metric: p95, op: '<', value: 4, group: b}]", "assertions.0.group: no group is called b; known: a"),
        ("events: [{at_h: 1, coordinator: {budgets: {fleet: {limit: 1}}}}]", "events.0.coordinator.budgets.fleet.limit"),
        (
            "coordinator: {tasks: {math: {target_rate: 2}}}",
            "scenario.yaml:4: coordinator.tasks.math.target_rate must lie in [0, 1], not 2",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line_with_its_place(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_scenario(written(tmp_path, GOOD + line + "\n"))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_two_groups_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="groups has laptops twice"):
        scenario(group(), group())


def test_a_value_can_be_set_from_outside(tmp_path: Path) -> None:
    assert load_scenario(written(tmp_path, GOOD), ["groups.0.devices=7", "seed=3"]).devices == 7


def test_changes_of_the_configuration_add_up_in_the_order_of_time() -> None:
    limits = [{"budgets": {"fleet": {"spend_limit_uusd": limit}}} for limit in (1, 2)]
    events = [{"at_h": 4, "coordinator": limits[1]}, {"at_h": 2, "coordinator": limits[0]}]
    found = scenario(events=events).configurations()
    assert [at for at, _ in found] == [0.0, 7200.0, 14400.0]
    assert [part.budgets.fleet.spend_limit_uusd for _, part in found] == [None, 1, 2]
    assert all(part.tasks["math"].target_rate == 0.3 for _, part in found)


def test_a_profile_of_the_day_weighs_one_on_average() -> None:
    for name in HOURS:
        weights = scenario(group(by_hour=name)).groups[0].hour_weights
        assert sum(weights) / 24 == pytest.approx(1.0)


def test_there_is_a_ready_scenario_for_each_story() -> None:
    assert len(READY) >= 10


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_a_ready_scenario_can_be_read_with_its_devices_links_and_assertions(path: Path) -> None:
    read = load_scenario(path)
    assert read.assertions
    for each in read.groups:
        load_device(each.device, each.model)
        load_link(each.link)


def test_the_readme_has_the_table_of_the_schema() -> None:
    assert schema_table(Scenario) in (HERE / "README.md").read_text(encoding="utf-8")
