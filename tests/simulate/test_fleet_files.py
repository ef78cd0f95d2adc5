"""Files of scenarios, devices and links: where their paths begin, which values are refused, and what the exit code says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from edge.core.errors import ConfigError, UsageError
from tests.simulate.fleet_worlds import group, scenario
from tools.simulate.__main__ import main
from tools.simulate.fleet.formula import main as estimate
from tools.simulate.fleet.profiles import load_device, load_link
from tools.simulate.fleet.scenario import load_scenario
from tools.simulate.sweeps.command import check_scenario, read_scenario

LINK = {"name": "own", "rtt_ms": 20, "up_mbit_per_s": 10, "down_mbit_per_s": 10}
SPEEDS = [{"model": "m", "prefill_tokens_per_s": 100, "decode": [{"rows": 1, "tokens_per_s": 10}], "training_tokens_per_s": 10}]


def link_file(folder: Path, **values: Any) -> Path:
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump({"link": LINK | values}))
    return path


def device_file(folder: Path, **values: Any) -> Path:
    path = folder / "machine.yaml"
    path.write_text(yaml.safe_dump({"device": {"speeds": SPEEDS} | values}))
    return path


def scenario_file(folder: Path, *groups: dict[str, Any], **values: Any) -> Path:
    path = folder / "day.yaml"
    path.write_text(scenario(*groups, lasts_h=1, **values).model_dump_json(exclude_unset=True))
    return path


# where paths begin -------------------------------------------------------------------------------------------------------------------


def test_paths_in_a_scenario_begin_at_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir(), elsewhere.mkdir()
    link_file(home, rtt_ms=7)
    link_file(elsewhere, rtt_ms=900)
    device_file(home)
    path = scenario_file(home, group(link="own.yaml", device="./machine.yaml"), group("known"))
    monkeypatch.chdir(elsewhere)
    own, known = load_scenario(path).groups
    assert load_link(own.link).rtt_s == 0.007
    assert load_device(own.device).model == "m"
    assert (known.link, known.device) == ("home-wifi", "laptop-nvidia-8gb")
    assert read_scenario(path)["groups"][0]["link"] == own.link
    set_here = load_scenario(path, ["groups.0.link=own.yaml"]).groups[0]
    assert load_link(set_here.link).rtt_s == 0.9


def test_a_name_that_is_not_known_is_told_as_it_was_written(tmp_path: Path) -> None:
    path = scenario_file(tmp_path, group(link="wfi"))
    with pytest.raises(UsageError, match="there is no link wfi"):
        load_link(load_scenario(path).groups[0].link)


# values ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"loss": 1}, "link.loss must be at most 0.9, not 1"),
        ({"loss": -0.1}, "link.loss must be at least 0"),
        ({"mean_up_s": 0.001, "mean_down_s": 0.001}, "link.mean_up_s must be at least 1"),
        ({"mean_up_s": float("inf"), "mean_down_s": 1}, "link.mean_up_s"),
        ({"offline_from_hour": 5, "offline_until_hour": 5}, "are the same: 0 and 24 are all day"),
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
        ({"throttle_after_s": 1, "throttle_share": 0}, "device.throttle_share must be at least 0.01, not 0"),
        ({"idle_w": 10, "busy_w": 5}, "idle_w must be at most busy_w (5), not 10"),
    ],
)
def test_a_device_that_cannot_be_is_refused(tmp_path: Path, values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_device(str(device_file(tmp_path, **values)))
    assert says in str(refused.value)


def test_a_device_of_which_only_idle_watts_are_known_takes_no_less_at_work(tmp_path: Path) -> None:
    assert load_device(str(device_file(tmp_path, idle_w=4))).busy_w == 4


@pytest.mark.parametrize(
    "named", [{}, {"processor": "cpu", "memory_mib": 8192, "bandwidth_gb_per_s": 50, "peak_gflop_per_s": 400}]
)
def test_a_profile_without_speeds_says_what_makes_them(tmp_path: Path, named: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no speeds of any model") as refused:
        load_device(str(device_file(tmp_path, speeds=[], **named)))
    assert ("fleet.formula" if named else "doctor --write-profile") in refused.value.hint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "day.yaml: about is required"),
        ("about: x\n", "day.yaml: groups is required"),
        ("about: x\ngroups: []\n", "day.yaml:2: groups must name at least one group"),
        ("about: x\ngroups:\n  - {name: a, device: phone}\n", "day.yaml:2: groups.0.link is required"),
    ],
)
def test_what_a_scenario_lacks_is_told_with_its_file(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "day.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_scenario(tmp_path / "day.yaml")
    assert str(refused.value).endswith(says)


def test_what_a_link_lacks_is_told_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("{}")
    with pytest.raises(ConfigError, match=r"own.yaml: link.name is required"):
        load_link(str(tmp_path / "own.yaml"))


def test_a_sweeps_scenario_is_refused_with_file_and_line_where_the_file_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "day.yaml"
    path.write_text("about: x\ngroups:\n  - {name: a, device: phone, link: office, devices: none}\n")
    with pytest.raises(ConfigError, match=r"day.yaml:3: groups.0.devices must be a whole number"):
        check_scenario(read_scenario(path), path)
    with pytest.raises(UsageError, match="no group is called zzz"):
        check_scenario(
            {"about": "x", "groups": [group()], "assertions": [{"metric": "p95", "op": "<", "value": 4, "group": "zzz"}]}
        )


# exit codes --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (None, []),
        ("a: [", []),
        ("lasst_h: 1", []),
        ("about: x\ngroups: [{name: a, device: phone, link: office}]\nevents: [{at_h: 1}]\n", []),
        ("about: x\ngroups: [{name: a, device: phone, link: bad.yaml}]\n", []),
        (
            "about: x\ngroups: [{name: a, device: phone, link: office}]\nassertions: [{metric: p95, op: '<', value: 4, group: zzz}]\n",
            [],
        ),
        ("about: x\ngroups: [{name: a, device: phone, link: office}]\n", ["--set", "lasts_h=-1"]),
    ],
)
@pytest.mark.parametrize("engine", [[], ["--vectorised"]])
def test_what_cannot_be_read_ends_with_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, arguments: list[str], engine: list[str]
) -> None:
    path = tmp_path / "day.yaml"
    (tmp_path / "bad.yaml").write_text("link: {name: x}")
    if text is not None:
        path.write_text(text)
    assert main(["run", str(path), *arguments, *engine]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# the formula -------------------------------------------------------------------------------------------------------------------------

FOUR = {"processor": "cpu", "memory_mib": 2048, "bandwidth_gb_per_s": 50, "peak_gflop_per_s": 400}


def test_the_rows_of_the_formula_complete_the_file_they_were_made_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text("device:\n" + "".join(f"  {key}: {value}\n" for key, value in FOUR.items()))
    assert estimate([str(path)]) == 0
    path.write_text(path.read_text() + capsys.readouterr().out)
    assert load_device(str(path)).model == "0.5B-Q4_K_M"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("device: {processor: cpu}", "no model is known to fit the device's memory"),
        ("device: {processor: cpu, memory_mib: 8192}", "the formula needs device.processor, device.bandwidth_gb_per_s"),
        ("device: {procesor: cpu}", "did you mean processor"),
    ],
)
def test_a_profile_that_says_too_little_for_the_formula_is_one_line_and_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str
) -> None:
    if text is not None:
        (tmp_path / "machine.yaml").write_text(text)
    assert estimate([str(tmp_path / "machine.yaml")]) == 2
    told = capsys.readouterr()
    assert says in told.err and told.err.count("\n") == 1 and told.out == ""
    assert "machine.yaml" in told.err
