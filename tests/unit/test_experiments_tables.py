"""Tables and figures of results that were never run: made by hand, or drawn from a seed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from edge.core.errors import EdgeError
from tests.unit.experiment_world import evaluation, made_result, make_results
from tests.unit.test_experiments_spec import CHOSEN
from tools.experiments.cells import expand
from tools.experiments.chosen import choose, last_rate, read_chosen, write_chosen
from tools.experiments.contestants import ALL_FAMILIES, BARE_DIAL, DA_GRPO
from tools.experiments.findings import Findings
from tools.experiments.layouts import (
    lambda_tables,
)
from tools.experiments.main_tables import (
    equal_rates,
    pooled_differences,
)
from tools.experiments.measures import ranking
from tools.experiments.report import tables_of
from tools.experiments.result import Result, result_file, write_result
from tools.experiments.spec import load_spec, spec_names
from tools.experiments.tables import MISSING, Table

NO_DATA = Path("there-is-no-such-folder")


def _by_name(table: Table, model: str = "nano-edge") -> dict[str, dict[str, str]]:
    """The rows of one SLM by their second column, as cells by heading."""
    return {row[1]: dict(zip(table.header, row, strict=True)) for row in table.rows if row[0] == model}


# -- what is there and what is missing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", spec_names())
def test_tables_without_any_result_are_all_missing(tmp_path: Path, name: str) -> None:
    for tables in tables_of(Findings.of(load_spec(name), CHOSEN, tmp_path), NO_DATA, CHOSEN).values():
        for table in tables:
            assert table.rows and all(MISSING in row for row in table.rows)


# -- costs and rates while learning ----------------------------------------------------------------------------------------------------


def test_runs_of_one_seed_are_not_independent_evidence(tmp_path: Path) -> None:
    spec = load_spec("lambda").model_copy(update={"seeds": (0, 1)})
    make_results(expand(spec, CHOSEN).cells, tmp_path)
    findings = Findings.of(spec, CHOSEN, tmp_path)
    one_seed = {key: result for key, result in findings.results.items() if result.cell.seed == 0}
    for results, seeds, interval in ((dict(findings.results), "2", True), (one_seed, "1", False)):
        _, together = lambda_tables(dataclasses.replace(findings, results=results))
        assert {row[1] for row in together.rows} == {seeds}
        assert all(("±" in row[2]) == interval and ("±" in row[4]) == interval for row in together.rows)


# -- assistance rewards ----------------------------------------------------------------------------------------------------------------


def test_assistance_reward_nearest_to_the_target_is_chosen_and_stored(tmp_path: Path) -> None:
    spec = load_spec("assist-reward")
    results = []
    for one in (placed for search in (spec, load_spec("assist-reward-gapg")) for placed in expand(search, {}).placed):
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


# -- at equal rate ---------------------------------------------------------------------------------------------------------------------

_WRONG_FIRST, _RIGHT_FIRST = [9.0, 1.0, 0.0, -1.0], [0.0, -1.0, 9.0, 1.0]


def _small_world(folder: Path, seeds: tuple[int, ...], post: list[float] = _WRONG_FIRST) -> Findings:
    """Four items a family, two of them right. Before learning a right one has the highest log-odds of asking, after it a wrong one has."""
    odds = {0: _RIGHT_FIRST, 1: _WRONG_FIRST, 2: post}
    return _world(folder, seeds, lambda family, phase: ("0011", odds[phase]))


def _world(folder: Path, seeds: tuple[int, ...], verdicts: Any) -> Findings:
    """nano-edge before learning and with DA-GRPO; right answers and log-odds of asking by family and phase."""
    spec = load_spec("table").model_copy(update={"models": ("nano-edge",), "seeds": seeds})
    for cell in expand(spec, CHOSEN).cells:
        if cell.method in ("bare", "da-grpo"):
            held_out = []
            for phase in range(1, 3) if cell.phases else range(1):
                for family in ALL_FAMILIES:
                    forced, odds = verdicts(family.name, phase)
                    held_out.append(evaluation(family.source, forced, step=100 * phase, phase=phase, help=odds))
            write_result(result_file(cell, folder), made_result(cell, held_out=held_out))
    return Findings.of(spec, CHOSEN, folder)


def test_equal_rate_table_counts_sent_items_and_shows_the_untrained_model_for_every_seed(tmp_path: Path) -> None:
    findings = _small_world(tmp_path, (0, 1, 2))
    rows = _by_name(equal_rates(findings, 1))
    # 30 % of four items is 1.2: one that ranks first, and a fifth of the next
    assert rows[BARE_DIAL.label]["@ 30 %"].startswith("50.0 ")
    assert rows[DA_GRPO.label]["@ 30 %"].startswith("80.0 ")
    assert rows["oracle over DA-GRPO"]["@ 30 %"] == "80.0"
    assert rows["GAPG"]["@ 30 %"] == MISSING
    against = _by_name(pooled_differences(findings))[BARE_DIAL.label]
    assert against["seeds"] == "3" and against["during"].startswith("+30.0 ") and against["during"].endswith(" *")


# -- the model by itself ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forced", "asked", "odds", "found"),
    [
        ("0011", "0000", [9.0, 1.0, 0.0, -1.0], 1.0),
        ("0011", "0000", [0.0, -1.0, 9.0, 1.0], 0.0),
        ("0011", "0000", [0.0, 0.0, 0.0, 0.0], 0.5),
        ("0011", "0100", [1.0, -9.0, 0.0, 0.0], 1.0),  # what it asks for by itself comes first
        ("0011", "0000", [None, 1.0, 0.0, None], 1.0),
        ("0000", "0000", [0.0, 1.0, 2.0, 3.0], None),
        ("0011", "0000", [None, None, 0.0, 1.0], None),
    ],
)
def test_ranking_is_the_probability_that_a_failure_ranks_higher(forced: str, asked: str, odds: list[Any], found: float) -> None:
    assert ranking({"forced": forced, "cloud": "1111", "asked": asked, "help": odds}) == found


# -- a price in the prompt -------------------------------------------------------------------------------------------------------------


# -- retraining for a rate beside the dial on one adapter ------------------------------------------------------------------------------


# -- figures ---------------------------------------------------------------------------------------------------------------------------


def test_results_of_other_settings_or_models_are_refused(tmp_path: Path) -> None:
    spec = load_spec("lambda")
    cell = next(cell for cell in expand(spec, {}).cells if cell.phases)
    for changes in ({"settings": {"learning": {"learning_rate": 0.5}}}, {"models": {"nano-edge": "0123"}}):
        write_result(result_file(cell, tmp_path), made_result(cell, **changes))
        with pytest.raises(EdgeError, match="it was measured with"):
            Findings.of(spec, {}, tmp_path)
