"""Files of scenarios, devices and links, and `python -m tools.simulate run`: where paths begin, what is refused, how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge.core.errors import ConfigError, UsageError
from tests.worlds.fleet import device_file, group, link_file, scenario
from tools.simulate.__main__ import main
from tools.simulate.fleet.formula import main as estimate
from tools.simulate.fleet.profiles import load_device, load_link
from tools.simulate.fleet.scenario import load_scenario, schema_table
from tools.simulate.fleet.world import FleetWorld
from tools.simulate.reports.result import SimulationResult
from tools.simulate.virtual.loop import Deadlock

HERE = Path(__file__).resolve().parents[2] / "tools" / "simulate"
GOOD = "about: A test.\ngroups:\n  - {name: a, device: phone, link: office}\n"


def written(folder: Path, *groups: dict[str, Any], **values: Any) -> Path:
    path = folder / "day.yaml"
    path.write_text(scenario(*groups, **{"lasts_h": 1, **values}).model_dump_json(exclude_unset=True), encoding="utf-8")
    return path


def test_paths_in_a_scenario_begin_at_its_own_folder_and_set_ones_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
    link_file(home, rtt_ms=7)
    link_file(elsewhere, rtt_ms=900)
    device_file(home)
    path = written(home, group(link="own.yaml", device="./machine.yaml"), group("known"), group("wrong", link="wfi"))
    monkeypatch.chdir(elsewhere)
    own, known, wrong = load_scenario(path).groups
    assert load_link(own.link).rtt_s == 0.007
    assert load_device(own.device).model == "m"
    assert (known.link, known.device) == ("home-wifi", "laptop-nvidia-8gb")
    assert load_link(load_scenario(path, ["groups.0.link=own.yaml"]).groups[0].link).rtt_s == 0.9
    with pytest.raises(UsageError, match="there is no link wfi"):
        load_link(wrong.link)


def test_changes_of_the_configuration_add_up_in_the_order_of_time() -> None:
    limits = [{"budgets": {"fleet": {"spend_limit_uusd": limit}}} for limit in (1, 2)]
    events = [{"at_h": 4, "coordinator": limits[1]}, {"at_h": 2, "coordinator": limits[0]}]
    found = scenario(events=events).configurations()
    assert [at for at, _ in found] == [0.0, 7200.0, 14400.0]
    assert [part.budgets.fleet.spend_limit_uusd for _, part in found] == [None, 1, 2]
    assert all(part.tasks["math"].target_rate == 0.3 for _, part in found)


@pytest.mark.parametrize("path", sorted((HERE / "scenarios").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_ready_scenario_can_be_read_with_its_devices_links_and_assertions(path: Path) -> None:
    read = load_scenario(path)
    assert read.assertions
    for each in read.groups:
        load_device(each.device, each.model)
        load_link(each.link)


def test_the_readme_has_the_table_of_the_schema() -> None:
    assert schema_table() in (HERE / "README.md").read_text(encoding="utf-8")


# what is refused ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"loss": 1}, "link.loss must be at most 0.9"),
        ({"mean_up_s": 0.001, "mean_down_s": 0.001}, "link.mean_up_s must be at least 1"),
        ({"mean_up_s": float("inf"), "mean_down_s": 1}, "link.mean_up_s"),
        ({"offline_from_hour": 5, "offline_until_hour": 5}, "0 and 24 are all day"),
        ({"rtt_ms": None}, "own.yaml:4: link.rtt_ms"),
    ],
)
def test_a_link_over_which_a_simulation_would_not_end_is_refused(tmp_path: Path, values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_link(str(link_file(tmp_path, **values)))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"throttle_after_s": 1, "throttle_share": 0}, "device.throttle_share"),
        ({"idle_w": 10, "busy_w": 5}, "idle_w must be at most busy_w"),
        ({"speeds": []}, "no speeds of any model"),
    ],
)
def test_a_device_that_cannot_be_is_refused(tmp_path: Path, values: dict[str, Any], says: str) -> None:
    with pytest.raises((ConfigError, UsageError), match=says):
        load_device(str(device_file(tmp_path, **values)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "day.yaml"),
        ("a: [", "day.yaml"),
        ("", "day.yaml: about is required"),
        ("about: x\ngroups: []\n", "day.yaml:2: groups must name at least one group"),
        ("about: x\ngroups:\n  - {name: a, device: phone}\n", "day.yaml:2: groups.0.link is required"),
        ("about: x\ngroups: [{name: a, device: phone, link: bad.yaml}]\n", "bad.yaml:1: link.rtt_ms is required"),
        ("about: x\ngroups: [{name: a, device: toaster, link: office}]\n", "toaster"),
        (GOOD + "  - {name: a, device: phone, link: office}\n", "groups has a twice"),
        (GOOD + "lasts_h: -1\n", "day.yaml:4: lasts_h must be greater than 0"),
        (GOOD + "lasst_h: 1\n", "day.yaml:4: unknown key lasst_h; did you mean lasts_h?"),
        (GOOD + "warm_up_h: 30\n", "day.yaml:4: warm_up_h must be less than lasts_h (24)"),
        (GOOD + "events: [{at_h: 1}]\n", "needs exactly one of cloud_down_for_s"),
        (GOOD + "events: [{at_h: 30, cloud_down_for_s: 1}]\n", "events.0.at_h must be at most lasts_h"),
        (GOOD + "events: [{at_h: 1, links_down_for_s: 1, groups: [b]}]\n", "events.0.groups names b; known: a"),
        (GOOD + "events: [{at_h: 1, coordinator: {budgets: {fleet: {limit: 1}}}}]\n", "events.0.coordinator.budgets.fleet.limit"),
        (GOOD + "assertions: [p95 < 4 s]\n", "day.yaml:4: assertions.0"),
        (
            GOOD + "assertions: [{metric: p95, op: '<', value: 4, group: b}]\n",
            "assertions.0.group: no group is called b; known: a",
        ),
        (GOOD + "coordinator: {tasks: {math: {target_rate: 2}}}\n", "day.yaml:4: coordinator.tasks.math.target_rate"),
    ],
)
def test_what_cannot_be_played_ends_with_2_and_one_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str
) -> None:
    (tmp_path / "bad.yaml").write_text("link: {name: x}")
    if text is not None:
        (tmp_path / "day.yaml").write_text(text)
    assert main(["run", str(tmp_path / "day.yaml")]) == 2
    message = capsys.readouterr().err
    assert says in message and message.count("\n") == 1


# the command -------------------------------------------------------------------------------------------------------------------


def test_a_run_whose_assertions_hold_ends_with_0_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = [{"metric": "p95", "op": "<", "value": 3600}, {"metric": "lost answers", "op": "==", "value": 0}]
    path, out, page = written(tmp_path, assertions=claims), tmp_path / "new" / "out.json", tmp_path / "report.html"
    assert main(["run", str(path), "--json", str(out), "--html", str(page), "--seed", "5", "--set", "groups.0.devices=2"]) == 0
    read = SimulationResult.from_json(out.read_bytes())
    assert (read.scenario, read.seed, read.devices) == ("day", 5, 2)
    assert [each.holds for each in read.assertions] == [True, True]
    assert "holds  p95 < 60 min" in capsys.readouterr().out
    assert "A test." in page.read_text(encoding="utf-8")


def test_an_assertion_that_does_not_hold_and_a_stuck_world_end_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(written(tmp_path, assertions=[{"metric": "p95", "op": "<", "value": 0.001}]))
    assert main(["run", path]) == 1
    assert "fails  p95 < 1 ms" in capsys.readouterr().out

    def stuck(world: FleetWorld) -> SimulationResult:
        raise Deadlock("nothing can run\n  laptops-00000: life waits in Event.wait, line 1")

    monkeypatch.setattr(FleetWorld, "run", stuck)
    assert main(["run", path]) == 1
    assert "laptops-00000: life waits in" in capsys.readouterr().err


# the formula -------------------------------------------------------------------------------------------------------------------


def test_the_rows_of_the_formula_complete_the_file_they_were_made_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text("device:\n  processor: cpu\n  memory_mib: 2048\n  bandwidth_gb_per_s: 50\n  peak_gflop_per_s: 400\n")
    with pytest.raises(UsageError) as refused:
        load_device(str(path))
    assert "fleet.formula" in refused.value.hint
    assert estimate([str(path)]) == 0
    path.write_text(path.read_text() + capsys.readouterr().out)
    assert load_device(str(path)).model == "0.5B-Q4_K_M"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("device: {processor: cpu}", "no model is known to fit the device's memory"),
        ("device: {processor: cpu, memory_mib: 8192}", "the formula needs device.processor, device.bandwidth_gb_per_s"),
    ],
)
def test_an_incomplete_profile_for_the_formula_is_one_line_and_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str
) -> None:
    if text is not None:
        (tmp_path / "machine.yaml").write_text(text)
    assert estimate([str(tmp_path / "machine.yaml")]) == 2
    printed = capsys.readouterr()
    assert says in printed.err and printed.err.count("\n") == 1 and printed.out == ""
    assert "machine.yaml" in printed.err
