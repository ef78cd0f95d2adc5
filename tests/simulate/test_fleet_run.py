"""`python -m tools.simulate run`: what it prints and writes, how it ends, and what it refuses before anything is played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.simulate.fleet_worlds import group, scenario
from tools.simulate.__main__ import main
from tools.simulate.fleet.run import run_scenario
from tools.simulate.fleet.world import FleetWorld
from tools.simulate.reports.result import SimulationResult
from tools.simulate.virtual.loop import Deadlock


def written(folder: Path, **values: Any) -> Path:
    path = folder / "short.yaml"
    path.write_text(scenario(group(), **{"lasts_h": 2, **values}).model_dump_json(exclude_unset=True), encoding="utf-8")
    return path


def test_a_run_whose_assertions_hold_ends_with_0_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = (
        written(
            tmp_path, assertions=[{"metric": "p95", "op": "<", "value": 3600}, {"metric": "lost answers", "op": "==", "value": 0}]
        ),
        tmp_path / "new" / "out.json",
    )
    assert main(["run", str(path), "--json", str(out), "--seed", "5"]) == 0
    read = SimulationResult.from_json(out.read_bytes())
    assert (read.scenario, read.seed, read.engine, read.devices) == ("short", 5, "exact", 1)
    assert [each.holds for each in read.assertions] == [True, True]
    told = capsys.readouterr()
    assert "holds  p95 < 60 min" in told.out
    assert "2 h of 1 device in" in told.err


def test_an_assertion_that_does_not_hold_ends_it_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(written(tmp_path, assertions=[{"metric": "p95", "op": "<", "value": 0.001}]))]) == 1
    assert "fails  p95 < 1 ms" in capsys.readouterr().out


def test_the_report_is_written_where_it_is_wished(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert main(["run", str(written(tmp_path)), "--html", str(page)]) == 0
    assert "A test." in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "lasts_h=0"], "lasts_h must be greater than 0"),
        (["--set", "groups.0.device=toaster"], "toaster"),
        (["--set", "assertions=[p95 < 4 s]"], "p95 < 4 s"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main(["run", str(written(tmp_path)), *arguments]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


def test_a_scenario_that_is_not_there_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "none.yaml")]) != 0
    assert capsys.readouterr().err.count("\n") == 1


def test_a_stuck_world_ends_with_1_and_tells_who_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(world: FleetWorld) -> SimulationResult:
        raise Deadlock("nothing can run\n  laptops-00000: life waits in Event.wait, line 1")

    monkeypatch.setattr(FleetWorld, "run", stuck)
    assert main(["run", str(written(tmp_path))]) == 1
    assert "laptops-00000: life waits in" in capsys.readouterr().err


def test_a_sweep_plays_a_scenario_as_it_is_written_with_a_seed_of_its_own() -> None:
    values = {
        "about": "A test.",
        "lasts_h": 1,
        "groups": [group()],
        "assertions": [{"metric": "lost answers", "op": "==", "value": 0}],
    }
    result = run_scenario(values, 9)
    assert result.seed == 9
    assert result.assertions[0].holds
