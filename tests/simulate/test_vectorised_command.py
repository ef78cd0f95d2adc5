"""The vectorised fleet from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.simulate.__main__ import main
from tools.simulate.reports.result import SimulationResult
from tools.simulate.vectorised import validate
from tools.simulate.vectorised.validate import Compared

SCENARIO = """
about: Boards with a dial.
lasts_h: 3
groups:
  - {name: boards, devices: 40, device: jetson-orin-nano, link: office, questions_per_day: 200, dial: 0.2}
  - {name: phones, devices: 20, device: phone, link: lte-good, questions_per_day: 200}
assertions: ["rate of boards within 0.05 of τ", "no lost answers"]
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "boards.yaml"
    path.write_text(SCENARIO)
    return path


def test_a_vectorised_run_is_judged_and_written_as_an_exact_one_is(scenario: Path, tmp_path: Path) -> None:
    file = tmp_path / "found" / "result.json"
    assert main(["run", str(scenario), "--vectorised", "--json", str(file)]) == 0
    result = SimulationResult.from_json(file.read_bytes())
    assert (result.engine, result.scenario, result.devices) == ("vectorised", "boards", 60)
    assert [assertion.holds for assertion in result.assertions] == [True, True]


def test_a_result_that_is_far_from_the_exact_one_fails_the_validation(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate, "FEWEST_ANSWERS", 100)
    near, far = tmp_path / "near.json", tmp_path / "far.json"
    main(["run", str(scenario), "--vectorised", "--json", str(near)])
    main(["run", str(scenario), "--vectorised", "--json", str(far), "--set", "cloud.tokens_per_s=20"])
    capsys.readouterr()
    assert main(["validate-fleet", str(scenario), "--devices", "60", "--exact", str(near)]) == 0
    assert "latency p95 all" in capsys.readouterr().out
    assert main(["validate-fleet", str(scenario), "--devices", "60", "--exact", str(far)]) == 1


def test_fewer_devices_than_groups_cannot_be_compared(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate-fleet", str(scenario), "--devices", "1"]) == 2
    assert "2 groups need at least as many devices" in capsys.readouterr().err


@pytest.mark.parametrize(("found", "verdict"), [(1.02, "yes"), (1.2, "by chance"), (1.4, "no")])
def test_what_chance_explains_is_told_from_what_it_does_not(found: float, verdict: str) -> None:
    assert Compared("boards", "λ", 1.0, found, 0.1, judged=True).verdict == verdict
