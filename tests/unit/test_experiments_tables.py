"""Tables, figures and the report made of results that were never run."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from edge.core.errors import ConfigError, EdgeError
from tests.unit.experiment_world import made_result, make_results
from tests.unit.test_experiments_spec import CHOSEN
from tools.experiments.__main__ import main
from tools.experiments.cells import Cell, expand
from tools.experiments.chosen import choose, last_rate, read_chosen, write_chosen
from tools.experiments.contestants import ALL_FAMILIES, BARE_DIAL, DA_GRPO, HELD, RIVALS, Family
from tools.experiments.costs import cost_table
from tools.experiments.dynamics import (
    assist_table,
    end_mean,
    lambda_table,
    methods_table,
    rate_once_back,
    schedule_table,
    settled_after,
)
from tools.experiments.equal_rate import equal_rate_tables, equal_rates, forgotten, pooled_differences, primary
from tools.experiments.figures import draw_figures
from tools.experiments.findings import Findings, pooled
from tools.experiments.kept_rates import kept_rates_table
from tools.experiments.measures import accuracy
from tools.experiments.paper_tables import paper_table
from tools.experiments.provenance import models_of
from tools.experiments.published import read_published
from tools.experiments.report import _BEGIN, _END, RESULTS_PAGE, Report, with_main_table
from tools.experiments.result import Result, read_result, result_file, write_result
from tools.experiments.show import tables_of
from tools.experiments.spec import Evaluate, Phase, load_spec, spec_names
from tools.experiments.stats import Estimate
from tools.experiments.summary import summary_table
from tools.experiments.tables import signed, told_seeds

NO_DATA = Path("there-is-no-such-folder")


def _findings(name: str, folder: Path, *, missing: int = 0) -> Findings:
    """An experiment with made results, the last cells without one."""
    spec = load_spec(name)
    cells = expand(spec, CHOSEN).cells
    make_results(cells[: len(cells) - missing], folder)
    return Findings.of(spec, CHOSEN, folder)


def _schedule(rates: list[float]) -> Result:
    phases = (Phase(source="group1", steps=120, target_rate=0.3),)
    cell = Cell("nano-edge", 0, phases, {}, Evaluate(items=0))
    body = made_result(cell)
    body["series"]["assist"] = rates
    return Result(cell, body)


def test_every_accuracy_of_the_papers_tables_has_its_rate_and_interval(tmp_path: Path) -> None:
    joint = paper_table(_findings("table", tmp_path), "table1", "joint", None)
    row = next(row for row in joint.rows if row[:2] == ("nano-edge", "DA-GRPO"))
    accuracy, _, rate = row[3].partition(" @ ")
    assert " ± " in accuracy
    assert rate.endswith(" %")
    assert not any("missing" in cell for cell in row)


def test_what_was_not_run_is_shown_as_missing_and_what_is_there_says_how_many_seeds(tmp_path: Path) -> None:
    findings = _findings("table", tmp_path)
    for cell in findings.grid.cells:
        if cell.method == "gapg" or (cell.method == "grpo" and cell.seed == 2):
            result_file(cell, tmp_path).unlink()
    joint = paper_table(Findings.of(findings.spec, CHOSEN, tmp_path), "table1", "joint", None)
    rows = {row[1]: row for row in joint.rows if row[0] == "nano-edge"}
    assert rows["GAPG"][2:] == ("0 of 3", *("missing",) * 6)
    assert [rows[name][2] for name in ("GRPO", "DA-GRPO", "before learning")] == ["2 of 3", "3", "-"]


def test_rows_over_all_families_count_the_seeds_that_have_them_all(tmp_path: Path) -> None:
    findings = _findings("table", tmp_path)
    for cell in findings.grid.cells:
        if cell.seed == 2 or (cell.seed == 1 and [phase.source for phase in cell.phases] == ["group2", "group1"]):
            result_file(cell, tmp_path).unlink(missing_ok=True)
    some = Findings.of(findings.spec, CHOSEN, tmp_path)
    told = {
        row[2] for table in (summary_table(some), *equal_rate_tables(some)) if table.header[2] == "seeds" for row in table.rows
    }
    assert told == {"1 of 3", "-"}


def test_a_row_whose_places_have_unlike_seeds_says_the_fewest_and_the_most() -> None:
    assert [told_seeds(seeds, 3) for seeds in ([3, 3], [1, 1], [0, 1, 3], [])] == ["3", "1 of 3", "0 to 3 of 3", "0 of 3"]


def test_tables_without_any_result_are_all_missing(tmp_path: Path) -> None:
    for name in spec_names():
        for table in tables_of(Findings.of(load_spec(name), CHOSEN, tmp_path), NO_DATA, CHOSEN):
            assert table.rows
            assert all("missing" in row for row in table.rows)
            assert "missing" in table.to_markdown()


def test_what_the_model_was_before_learning_stands_below(tmp_path: Path) -> None:
    table = paper_table(_findings("table", tmp_path), "table2", "forced", None)
    row = next(row for row in table.rows if row[:2] == ("nano-edge", "before learning"))
    assert [cell == "-" for cell in row[2:]] == [True, False, True, True, False, True, True]
    assert "±" in row[3]


def test_published_numbers_stand_in_columns_of_their_own(tmp_path: Path) -> None:
    data = tmp_path / "paper"
    data.mkdir()
    (data / "table1.csv").write_text(
        "responses,model,method,math_during,math_post,math_forgetting,taco_during,taco_post,taco_forgetting\n"
        "joint,Qwen2.5-1.5B-Instruct,DA-GRPO,84.5,75.5,10.7,84.8,72.8,14.1\n",
        encoding="utf-8",
    )
    published = {"table1": read_published(data, "table1"), "table2": read_published(data, "table2")}
    assert published["table2"] is None
    joint = paper_table(_findings("table", tmp_path / "results"), "table1", "joint", published["table1"])
    row = next(row for row in joint.rows if row[:2] == ("nano-edge", "DA-GRPO"))
    assert joint.header[9:] == (
        "", "paper MATH during", "paper MATH post", "paper MATH forgetting", "paper TACO during", "paper TACO post",
        "paper TACO forgetting",
    )  # fmt: skip
    assert row[9:] == ("", "84.5", "75.5", "10.7", "84.8", "72.8", "14.1")
    grpo = next(row for row in joint.rows if row[:2] == ("nano-edge", "GRPO"))
    assert grpo[9:] == ("", "-", "-", "-", "-", "-", "-")


def test_the_cost_table_tells_asked_responses_beside_billed_prompts(tmp_path: Path) -> None:
    table = cost_table(_findings("table", tmp_path))
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert row["asked, % of responses"] == "30.0"
    assert row["billed, % of prompts"] == "60.0"
    assert row["cloud calls"] == "1000"


def test_the_rates_while_learning_tell_how_near_the_target_each_phase_ended(tmp_path: Path) -> None:
    findings = _findings("table", tmp_path)
    for key, result in list(findings.results.items()):
        if result.cell.method == "grpo" and result.cell.model == "nano-edge":
            result.body["series"]["assist"] = [0.9] * 50 + [0.4] * 50 + [0.1] * 50 + [0.32] * 50
        if result.cell.method == "gapg":
            del findings.results[key]
    rows = {row[:2]: dict(zip(table.header, row, strict=True)) for table in (kept_rates_table(findings),) for row in table.rows}
    grpo = rows["nano-edge", "GRPO"]
    assert [grpo[f"g1-g2, phase {number}"] for number in (1, 2)] == ["0.400", "0.320"]
    assert (grpo["seeds"], grpo["off τ"], grpo["within ±0.05"]) == ("3", "0.060", "6 of 12")
    assert list(rows["nano-edge", "GAPG"].values())[2:] == ["0 of 3", *["missing"] * 6]
    assert ("nano-edge", "Edge Tuning Only") not in rows


def test_a_rollout_that_is_updated_on_twice_counts_two_optimiser_steps(tmp_path: Path) -> None:
    table = cost_table(_findings("table", tmp_path))
    rows = {row[1]: dict(zip(table.header, row, strict=True)) for row in table.rows if row[0] == "nano-edge"}
    assert {name: row["optimiser steps"] for name, row in rows.items()} == {
        "Edge Tuning Only": "200", "GRPO": "200", "GVPO": "400", "GAPG": "200", "DA-GRPO": "200", "DA-GRPO, paper's rule": "200",
    }  # fmt: skip
    assert rows["GVPO"]["runs"] == "6"


def _plain_look(source: str, phase: int, forced: str, help_odds: list[float]) -> dict[str, Any]:
    """Nothing asked by itself; the cloud is always right."""
    none, every = "0" * len(forced), "1" * len(forced)
    return {
        "step": 100 * phase, "phase": phase, "source": source, "items": len(forced), "asked": none, "own": forced, "forced": forced,
        "cloud": every, "joint": forced, "format": every, "help": help_odds, "tokens": 9.0,
    }  # fmt: skip


_WRONG_FIRST, _RIGHT_FIRST = [9.0, 1.0, 0.0, -1.0], [0.0, -1.0, 9.0, 1.0]


def _world_by_hand(tmp_path: Path, seeds: tuple[int, ...], post: list[float] = _WRONG_FIRST) -> Findings:
    """Four items a family, two of them right. Before learning a right one has the highest log-odds of asking, after it a wrong one has."""
    spec = load_spec("table").model_copy(update={"models": ("nano-edge",), "seeds": seeds})
    forced = "0011"
    for cell in expand(spec, CHOSEN).cells:
        if cell.method not in ("bare", "da-grpo"):
            continue
        body, phases = made_result(cell), range(1, 3) if cell.phases else range(1)
        odds = {0: _RIGHT_FIRST, 1: _WRONG_FIRST, 2: post}
        body["held_out"] = [_plain_look(family.source, phase, forced, odds[phase]) for phase in phases for family in ALL_FAMILIES]
        write_result(result_file(cell, tmp_path), body)
    return Findings.of(spec, CHOSEN, tmp_path)


def test_at_equal_rate_it_counts_who_is_sent_and_the_untrained_model_stands_beside_every_seed(tmp_path: Path) -> None:
    findings = _world_by_hand(tmp_path, (0, 1, 2))
    rows = {row[1]: row[3:] for row in equal_rates(findings, 1).rows}
    # 30 % of four items is 1.2: one that ranks first, and a fifth of the next
    assert rows[BARE_DIAL.told][2].startswith("50.0 ")
    assert rows[DA_GRPO.told][2].startswith("80.0 ")
    assert rows["oracle over DA-GRPO"][2] == "80.0"
    assert rows["GAPG"] == ("missing",) * 4
    (against,) = [row for row in pooled_differences(findings).rows if row[1] == BARE_DIAL.told]
    assert against[3].startswith("+30.0 ") and against[3].endswith(" *")
    assert against[2:4] == ("3", against[4])


def test_one_seed_has_no_star_however_large_its_difference(tmp_path: Path) -> None:
    findings = _world_by_hand(tmp_path, (0,))
    (against,) = [row for row in pooled_differences(findings).rows if row[1] == BARE_DIAL.told]
    assert against[3].startswith("+30.0 ") and "*" not in against[3]


@pytest.mark.parametrize(("post", "lost"), [(_WRONG_FIRST, "+0.0 "), (_RIGHT_FIRST, "+30.0 ")])
def test_what_is_forgotten_at_equal_rate_is_what_the_second_phase_cost(tmp_path: Path, post: list[float], lost: str) -> None:
    table = forgotten(_world_by_hand(tmp_path, (0, 1, 2), post))
    (row,) = [row for row in table.rows if row[1] == DA_GRPO.told]
    assert row[2] == "3" and all(cell.startswith(lost) for cell in row[3:]) and len(row) == len(table.header)
    assert row[-1].endswith(" *") == (lost != "+0.0 ")
    assert BARE_DIAL.told not in {row[1] for row in table.rows}


@pytest.mark.parametrize(
    ("mean", "told"), [(-0.0004, "+0.0 ± 1.0"), (0.0, "+0.0 ± 1.0"), (-0.0006, "-0.1 ± 1.0"), (0.014, "+1.4 ± 1.0 *")]
)
def test_a_difference_that_rounds_to_nothing_is_not_below_it(mean: float, told: str) -> None:
    assert signed(Estimate(mean, 0.01, 3)) == told


def test_the_model_before_learning_forgets_nothing_and_is_the_same_after_every_phase(tmp_path: Path) -> None:
    findings = _world_by_hand(tmp_path, (0, 1, 2))
    during, post = (BARE_DIAL.part(findings, "nano-edge", Family("arith", "math"), phase) for phase in (1, 2))
    assert during == post
    table = paper_table(findings, "table1", "joint_equal", None)
    (bare,) = [row for row in table.rows if row[1] == BARE_DIAL.told]
    assert bare[4:6] == ("-", "-") and bare[3].startswith("50.0 ")
    assert {row[1] for row in table.rows} == {row.told for row in HELD}


def test_the_end_of_a_phase_weighs_kept_accuracy_by_what_was_kept() -> None:
    result = _schedule([0.0] * 119 + [1.0])
    result.body["series"]["kept"] = [0.5] * 119 + [None]
    assert end_mean(result, "kept") == pytest.approx(0.5)
    result.body["series"]["assist"] = [0.0] * 95 + [0.5] * 25
    result.body["series"]["kept"] = [1.0] * 95 + [0.4] * 25
    assert end_mean(result, "kept") == pytest.approx((25 * 1.0 + 25 * 0.5 * 0.4) / (25 + 12.5))


def test_a_level_is_judged_by_its_last_fifty_steps_and_by_the_twenty_after_the_fortieth() -> None:
    result = _schedule([0.9] * 40 + [0.5] * 20 + [0.9] * 10 + [0.3] * 50)
    assert end_mean(result, "assist", 0) == pytest.approx(0.3)
    assert rate_once_back(result, 0) == pytest.approx(0.5)
    # the means of 20 steps are within the band once at most one of them is from before
    assert settled_after(result, 0) == 89
    assert settled_after(_schedule([0.9] * 120), 0) is None


def test_runs_of_one_seed_are_no_evidence_of_each_other(tmp_path: Path) -> None:
    spec = load_spec("lambda").model_copy(update={"seeds": (0, 1)})
    make_results(expand(spec, CHOSEN).cells, tmp_path)
    findings = Findings.of(spec, CHOSEN, tmp_path)
    one_seed = {key: result for key, result in findings.results.items() if result.cell.seed == 0}
    for results, seeds, interval in ((dict(findings.results), "2", True), (one_seed, "1", False)):
        _, together = lambda_table(dataclasses.replace(findings, results=results))
        assert {row[1] for row in together.rows} == {seeds}
        assert all(("±" in row[2]) == interval and ("±" in row[4]) == interval for row in together.rows)


def test_a_method_without_a_price_has_no_price_and_what_was_not_looked_at_is_not_missing(tmp_path: Path) -> None:
    (table,) = methods_table(_findings("gvpo-rate", tmp_path))
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert (row["end λ"], row["λ's deviation"]) == ("-", "-")
    assert "±" in row["held-out joint, %"]
    spec = load_spec("gvpo-rate")
    unseen = spec.model_copy(update={"evaluate": Evaluate(items=0)})
    make_results(expand(unseen, CHOSEN).cells, tmp_path)
    (table,) = methods_table(Findings.of(unseen, CHOSEN, tmp_path))
    assert dict(zip(table.header, table.rows[0], strict=True))["held-out joint, %"] == "-"


def test_a_chosen_reward_that_misses_the_target_says_by_how_much(tmp_path: Path) -> None:
    findings = _findings("assist-reward-gapg", tmp_path)
    for result in findings.results.values():
        result.body["series"]["assist"] = [0.42 if result.cell.model == "nano-edge" else 0.34] * result.cell.steps
    chosen = {model: {"gapg": {"group1": 0.3, "group2": 0.3}} for model in ("nano-edge", "nano-edge-llama")}
    (table,) = assist_table(findings, chosen)
    assert [row[3] for row in table.rows] == ["0.420 * (+0.12)"] * 2 + ["0.340 *"] * 2


def test_levels_that_are_not_held_are_counted_seed_by_seed(tmp_path: Path) -> None:
    findings = _findings("schedules", tmp_path)
    body = dict(next(iter(findings.results.values())).body)
    body["series"]["assist"][300:400] = [0.95] * 100
    (table,) = schedule_table(findings)
    held = table.header.index("held")
    assert [row[held] for row in table.rows].count("no yes") == 1
    (count,) = table.notes[1:]
    assert "14 of 15 levels" in count and "29 of 30 one by one" in count


def test_the_primary_comparison_takes_the_best_other_of_each_slm_and_waits_for_all_of_them(tmp_path: Path) -> None:
    findings = _findings("table", tmp_path)
    table = primary(findings)
    assert [row[0] for row in table.rows] == [*findings.spec.models, "all"]
    means = {row.told: pooled(row.parts(findings, "nano-edge", 1), row.held_to(0.3), accuracy) for row in RIVALS}
    assert table.rows[0][1] == max(means, key=lambda name: means[name].mean if means[name] else 0.0)
    leads = [float(row[4].split()[0]) for row in table.rows]
    assert leads[2] == pytest.approx((leads[0] + leads[1]) / 2, abs=0.1)
    for cell in findings.grid.cells:
        if cell.method == "gapg" and cell.model == "nano-edge":
            result_file(cell, tmp_path).unlink()
    waiting = primary(Findings.of(findings.spec, CHOSEN, tmp_path))
    assert waiting.rows[0][1] == waiting.rows[2][4] == "missing" and waiting.rows[1][1] != "missing"


def test_forced_local_accuracy_is_followed_from_before_learning(tmp_path: Path) -> None:
    findings = _findings("edge-curves", tmp_path)
    (table,) = tables_of(findings, NO_DATA, CHOSEN)
    assert table.header[4:] == ("step 0", "step 300")
    row = next(row for row in table.rows if row[:3] == ("nano-edge", "g1", "arith"))
    assert all(0.0 < float(cell) < 100.0 for cell in row[4:])


def test_the_assistance_reward_nearest_to_the_target_is_chosen_and_kept(tmp_path: Path) -> None:
    spec = load_spec("assist-reward")
    searches = [spec, load_spec("assist-reward-gapg")]
    results = []
    for one in (placed for search in searches for placed in expand(search, {}).placed):
        body = made_result(one.cell)
        value = float(one.varied["learning.assist_reward"])
        body["settings"]["learning"]["assist_reward"] = value
        body["series"]["assist"] = [value] * one.cell.steps
        results.append(Result(one.cell, body))
    values = [float(str(value)) for value in spec.vary["learning.assist_reward"]]
    nearest = min(values, key=lambda value: (abs(value - 0.3), value))
    assert last_rate(results[0]) == pytest.approx(values[0])
    chosen = choose(results)
    assert chosen["nano-edge"]["grpo"] == {"group1": nearest, "group2": nearest}
    write_chosen(results, tmp_path / "chosen.json")
    assert read_chosen(tmp_path / "chosen.json") == chosen
    assert not expand(load_spec("table"), chosen).waits_for


def test_a_damaged_file_of_choices_is_told(tmp_path: Path) -> None:
    (tmp_path / "chosen.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="no chosen assistance rewards"):
        read_chosen(tmp_path / "chosen.json")


def test_a_result_of_another_cell_or_form_is_refused(tmp_path: Path) -> None:
    one, other = expand(load_spec("table"), CHOSEN).cells[:2]
    write_result(result_file(one, tmp_path), made_result(other))
    with pytest.raises(EdgeError, match="not the result of nano-edge") as caught:
        read_result(one, tmp_path)
    assert "remove the file" in caught.value.hint


def test_a_result_of_other_settings_or_another_model_is_refused(tmp_path: Path) -> None:
    cell = next(cell for cell in expand(load_spec("table"), CHOSEN).cells if cell.phases)
    now = models_of(cell.resolved("state").config)
    assert set(now) == {cell.model, "nano-cloud"}
    write_result(
        result_file(cell, tmp_path),
        made_result(cell, models=now, settings={"learning": {"of_before": 1}, "adapter": {"rank": 16}}),
    )
    assert read_result(cell, tmp_path) is not None  # what there was only then, or is only now, is not compared
    write_result(result_file(cell, tmp_path), made_result(cell, settings={"learning": {}, "adapter": {"rank": 3}}))
    with pytest.raises(EdgeError, match=r"measured with adapter\.rank 3, which is 16 now") as caught:
        read_result(cell, tmp_path)
    assert "remove the file" in caught.value.hint
    write_result(result_file(cell, tmp_path), made_result(cell, models={**now, cell.model: "0" * 16}))
    with pytest.raises(EdgeError, match=f"another file of {cell.model}"):
        read_result(cell, tmp_path)


def test_a_whole_result_stays_small(tmp_path: Path) -> None:
    cell = next(cell for cell in expand(load_spec("table"), CHOSEN).cells if cell.router)
    write_result(result_file(cell, tmp_path), made_result(cell))
    assert result_file(cell, tmp_path).stat().st_size < 32_000
    assert json.loads(result_file(cell, tmp_path).read_text(encoding="utf-8"))["key"] == cell.key


@pytest.mark.parametrize("name", [name for name in spec_names() if load_spec(name).figure])
def test_figures_are_small_pictures_and_always_the_same(tmp_path: Path, name: str) -> None:
    findings = _findings(name, tmp_path / "results")
    first = draw_figures(findings, tmp_path / "a")
    again = draw_figures(findings, tmp_path / "b") if name != "table" else first  # the largest: once is enough
    assert [path.name for path in first] == [f"{name}-{kind}.png" for kind in findings.spec.figure]
    for path, other in zip(first, again, strict=True):
        picture = path.read_bytes()
        assert picture.startswith(b"\x89PNG\r\n")
        assert 3_000 < len(picture) < 80_000
        assert picture == other.read_bytes()


@pytest.mark.parametrize("name", ["lambda", "schedules"])
def test_drawings_are_text_that_is_always_the_same_and_loads_nothing(tmp_path: Path, name: str) -> None:
    findings = _findings(name, tmp_path / "results")
    (path,), (again,) = draw_figures(findings, tmp_path / "a", "svg"), draw_figures(findings, tmp_path / "b", "svg")
    drawing = path.read_text(encoding="utf-8")
    assert path.name == f"{name}-{findings.spec.figure[0]}.svg"
    assert drawing == again.read_text(encoding="utf-8")
    assert path.stat().st_size < 200_000
    places = [
        value for one in ElementTree.fromstring(drawing).iter() for key, value in one.attrib.items() if key.endswith("href")
    ]
    assert all(place.startswith("#") for place in places)
    assert "assist rate" in drawing


def test_small_values_of_a_setting_stand_in_the_drawing_as_they_are(tmp_path: Path) -> None:
    (path,) = draw_figures(_findings("learning-rate", tmp_path / "results"), tmp_path / "figures", "svg")
    words = [one.text for one in ElementTree.parse(path).iter() if one.tag.endswith("text")]
    assert [word for word in words if word and word.startswith("learning_rate ")] == [
        f"learning_rate {value}" for value in ("0.0001", "0.0005", "0.001")
    ]


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    assert draw_figures(Findings.of(load_spec("schedules"), CHOSEN, tmp_path), tmp_path / "figures") == []
    spec = load_spec("std-scaling")
    make_results([cell for cell in expand(spec, CHOSEN).cells if not cell.phases], tmp_path)
    assert draw_figures(Findings.of(spec, CHOSEN, tmp_path), tmp_path / "figures") == []  # no one has learned yet


def test_figures_of_a_part_of_the_results_are_drawn(tmp_path: Path) -> None:
    for name in ("lambda-paper", "target-rates"):
        findings = _findings(name, tmp_path / name, missing=3)
        assert len(draw_figures(findings, tmp_path / "figures")) == len(findings.spec.figure)


def test_the_commands_print_tables_draw_figures_and_write_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings = _findings("schedules", tmp_path / "results")
    where = ["--results", str(tmp_path / "results"), "--chosen", str(tmp_path / "chosen.json")]
    assert main(["table", "schedules", "--data", str(NO_DATA), *where]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"# schedules: {findings.spec.about}\n")
    assert told.rstrip().endswith(f"{len(findings.grid.cells)} of {len(findings.grid.cells)} cells measured.")
    assert main(["figure", "schedules", "--out", str(tmp_path / "figures"), *where]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'figures' / 'schedules-schedules.png'}\n"
    readme = tmp_path / "README.md"
    readme.write_text(f"# A\n\n{_BEGIN}\nold\n{_END}\n\n# B\n", encoding="utf-8")
    out = [
        "--out",
        str(tmp_path / "REPORT.md"),
        "--readme",
        str(readme),
        "--figures",
        str(tmp_path / "figures"),
        "--data",
        str(NO_DATA),
    ]
    assert main(["report", *out, *where]) == 0
    report = (tmp_path / "REPORT.md").read_text(encoding="utf-8")
    assert main(["report", *out, *where]) == 0
    assert (tmp_path / "REPORT.md").read_text(encoding="utf-8") == report
    assert "(figures/schedules-schedules.png)" in report
    told = readme.read_text(encoding="utf-8")
    assert told.startswith(f"# A\n\n{_BEGIN}\n\n**Summary") and told.endswith(f"{_END}\n\n# B\n") and "old" not in told


def test_the_main_table_of_the_results_page_is_that_of_the_results() -> None:
    text, findings = RESULTS_PAGE.read_text(encoding="utf-8"), Findings.of(load_spec("table"), read_chosen())
    if _BEGIN not in text:
        assert not findings.results, "there are results: add the table's place to the page and run the report"
        return
    assert with_main_table(text, findings) == text, "run python -m tools.experiments report"


def _report(folder: Path, every: dict[str, Findings], template: str) -> str:
    (folder / "template").write_text(template, encoding="utf-8")
    return Report(every, CHOSEN, NO_DATA, folder / "figures", folder).filled(folder / "template")


def test_the_report_has_tables_between_paragraphs_and_is_always_the_same(tmp_path: Path) -> None:
    every = {name: _findings(name, tmp_path / "results") for name in ("schedules", "lambda-paper")}
    template = "# Title\n\nA paragraph.\n\n{{ setting }}\n\n{{ hours }}\n\n{{ table schedules }}\n{{ figure schedules }}\n"
    text = _report(tmp_path, every, template)
    assert text == _report(tmp_path, every, template)
    assert text.startswith("# Title\n\nA paragraph.\n\n")
    assert "| rising " in text
    assert "one thread each, at commit 0123456789ab (" in text
    assert "## Further experiments" in text
    assert "### lambda-paper" in text
    assert "png" not in text
    draw_figures(every["schedules"], tmp_path / "figures")
    assert "(figures/schedules-schedules.png)" in _report(tmp_path, every, template)


def test_compute_hours_are_summed_with_shared_cells_once(tmp_path: Path) -> None:
    one = _findings("lambda-paper", tmp_path)
    text = _report(tmp_path, {"first": one, "second": one}, "{{ hours }}\n{{ table first }}\n{{ table second }}\n")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith(("| first", "| second", "| all"))]
    cells = [int(row[1]) for row in rows]
    assert cells == [len(one.grid.cells), 0, len(one.grid.cells)]
    wall_h = sum(result.body["cost"]["wall_s"] for result in one.results.values()) / 3600
    assert float(rows[2][3]) == pytest.approx(wall_h, abs=0.05)


@pytest.mark.parametrize(
    ("mark", "told"),
    [
        ("{{ table tabel }}", "no experiment is called tabel"),
        ("{{ tables first }}", "no mark is called tables"),
        ("{{ figure first: Table 1 }}", "words after a name choose tables, not a figure"),
    ],
)
def test_a_mark_that_means_nothing_is_told_with_its_line(tmp_path: Path, mark: str, told: str) -> None:
    every = {"first": Findings.of(load_spec("schedules"), CHOSEN, tmp_path)}
    with pytest.raises(ConfigError, match=f"template:2: {told}"):
        _report(tmp_path, every, f"# Title\n{mark}\n")


def test_the_reports_template_names_experiments_that_there_are(tmp_path: Path) -> None:
    from tools.experiments.report import TEMPLATE

    every: dict[str, Any] = {name: Findings.of(load_spec(name), CHOSEN, tmp_path) for name in spec_names()}
    text = Report(every, CHOSEN, NO_DATA, tmp_path, tmp_path).filled(TEMPLATE)
    assert "No cell has been measured yet." in text
    assert "{{" not in text
