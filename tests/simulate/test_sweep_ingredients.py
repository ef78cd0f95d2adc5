"""What a sweep's results belong to: device and link files and the program count, too; seeds alone may differ; what the exit code says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.simulate.fleet_worlds import group
from tests.simulate.test_fleet_files import device_file, link_file
from tests.simulate.test_reports_sweep import RUN, SCENARIO, anything, chosen
from tools.simulate.sweeps import plan as ingredients
from tools.simulate.sweeps.command import read_scenario, sweep
from tools.simulate.sweeps.plan import Job, ingredients_of, program


def of(folder: Path) -> dict[str, Any]:
    return {"about": "x", "groups": [group(link=str(folder / "own.yaml"), device=str(folder / "machine.yaml"))]}


def test_another_link_or_device_gives_other_ingredients_and_a_comment_does_not(tmp_path: Path) -> None:
    link, device = link_file(tmp_path), device_file(tmp_path)
    seen = [ingredients_of(of(tmp_path))]
    link.write_text(f"# a remark\n{link.read_text()}")
    assert ingredients_of(of(tmp_path)) == seen[0]
    link_file(tmp_path, rtt_ms=5000)
    seen.append(ingredients_of(of(tmp_path)))
    device.write_text(device.read_text().replace("prefill_tokens_per_s: 100", "prefill_tokens_per_s: 50"))
    seen.append(ingredients_of(of(tmp_path)))
    assert len(set(seen)) == 3


def test_a_result_is_not_taken_for_one_of_other_ingredients() -> None:
    job = Job({"dial": 0.1}, SCENARIO, 1, "one")
    assert job.file_name != replace(job, ingredients="two").file_name
    assert job.file_name == Job({"dial": 0.1}, SCENARIO, 1, "one").file_name


def test_the_program_is_an_ingredient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "edge").mkdir()
    monkeypatch.setattr(ingredients, "_ROOT", tmp_path)
    digests = set()
    for text in ("a = 1\n", "a = 2\n", "a = 1\n"):
        (tmp_path / "edge" / "one.py").write_text(text)
        digests.add(program.__wrapped__())
    assert len(digests) == 2
    assert program() in ingredients_of({"groups": [group()]})


def scenario_file(folder: Path, **changed: Any) -> Path:
    path = folder / "day.yaml"
    path.write_text(yaml.safe_dump({**SCENARIO, **changed}))
    return path


def test_a_sweep_plays_again_what_other_ingredients_gave(tmp_path: Path) -> None:
    path, asked = scenario_file(tmp_path, count=str(tmp_path / "count")), ("groups.*.dial=0.1",)
    for ingredient in ("old", "old", "new"):
        sweep(chosen(path, tmp_path / "out", *asked), run=RUN, check=lambda _, what=ingredient: what)
    assert (tmp_path / "count").read_text().split() == ["5", "5"]


def test_seeds_alone_may_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(chosen(scenario_file(tmp_path), tmp_path / "out", seeds=3), run=RUN, check=anything) == 0
    page = (tmp_path / "out" / "sweep.html").read_text(encoding="utf-8")
    assert "3 runs" in page and "Charts" not in page
    assert "means over the seeds" in capsys.readouterr().out


@pytest.mark.parametrize(("limits_s", "code"), [([3600], 0), ([0.001], 1), ([3600, 0.001], 1)])
def test_the_exit_code_says_whether_every_run_does_what_the_scenario_states(
    tmp_path: Path, limits_s: list[float], code: int
) -> None:
    path = scenario_file(tmp_path, assertions=[{"metric": "p95", "op": "<", "value": limit_s} for limit_s in limits_s])
    assert sweep(chosen(path, tmp_path / "out", seeds=2), run=RUN, check=anything) == code


def test_a_figure_that_is_0_in_every_run_has_a_column_and_no_chart(tmp_path: Path) -> None:
    scenario = scenario_file(tmp_path)
    sweep(chosen(scenario, tmp_path / "out", "groups.*.dial=0.1,0.2"), run=RUN, check=anything)
    page = (tmp_path / "out" / "sweep.html").read_text(encoding="utf-8")
    assert '<th scope="col">Lost answers</th>' in page
    assert "<h3>Lost answers</h3>" not in page and "<h3>Spend</h3>" in page


def test_a_scenario_is_the_same_one_from_wherever_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = scenario_file(tmp_path, groups=[{"name": "laptops", "device": "machine.yaml", "link": "./own.yaml"}])
    whole = read_scenario(path)
    monkeypatch.chdir(tmp_path)
    assert read_scenario(Path("day.yaml")) == whole
