"""Tables and figures of results that were never run: made by hand, or drawn from a seed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from edge.core.errors import EdgeError
from tests.unit.test_experiments_spec import CHOSEN
from tests.worlds.experiment import bits, evaluation, made_result, make_results
from tools.experiments.cells import Cell, expand
from tools.experiments.chosen import choose, last_rate, read_chosen, write_chosen
from tools.experiments.contestants import BARE_DIAL, DA_GRPO, families_of
from tools.experiments.figures import draw_figures
from tools.experiments.findings import ExperimentFindings
from tools.experiments.layouts import (
    end_mean,
    lambda_tables,
    rate_once_back,
    rates_tables,
    settled_after,
)
from tools.experiments.main_tables import (
    ability_table,
    equal_rates,
    forgotten,
    one_threshold_table,
    pooled_differences,
    ranking_table,
)
from tools.experiments.measures import GROUPS, ranking
from tools.experiments.report import tables_of
from tools.experiments.result import Result, result_file, write_result
from tools.experiments.spec import Evaluate, Phase, Spec, load_spec, spec_names
from tools.experiments.stats import Estimate
from tools.experiments.tables import MISSING, TextTable, at_share, signed

NO_DATA = Path("there-is-no-such-folder")


def _findings(name: str, folder: Path, *, missing: int = 0) -> ExperimentFindings:
    """An experiment with made results, the last cells without one."""
    spec = load_spec(name)
    cells = expand(spec, CHOSEN).cells
    make_results(cells[: len(cells) - missing], folder)
    return ExperimentFindings.of(spec, CHOSEN, folder)


def _by_name(table: TextTable, model: str = "nano-edge") -> dict[str, dict[str, str]]:
    """The rows of one SLM by their second column, as cells by heading."""
    return {row[1]: dict(zip(table.header, row, strict=True)) for row in table.rows if row[0] == model}


# -- what is there and what is missing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", spec_names())
def test_tables_without_any_result_are_all_missing(tmp_path: Path, name: str) -> None:
    for tables in tables_of(ExperimentFindings.of(load_spec(name), CHOSEN, tmp_path), NO_DATA, CHOSEN).values():
        for table in tables:
            assert table.rows and all(MISSING in row for row in table.rows)


# -- costs and rates while learning ----------------------------------------------------------------------------------------------------


def _schedule(rates: list[float]) -> Result:
    cell = Cell("nano-edge", 0, (Phase(source="group1", steps=120, target_rate=0.3),), {}, Evaluate(items=0))
    body = made_result(cell)
    body["series"]["assist"] = rates
    return Result(cell, body)


def test_phase_end_weights_local_accuracy_by_local_answers() -> None:
    result = _schedule([0.0] * 119 + [1.0])
    result.body["series"]["kept"] = [0.5] * 119 + [None]
    assert end_mean(result, "kept") == pytest.approx(0.5)
    result.body["series"]["assist"] = [0.0] * 95 + [0.5] * 25
    result.body["series"]["kept"] = [1.0] * 95 + [0.4] * 25
    assert end_mean(result, "kept") == pytest.approx((25 * 1.0 + 25 * 0.5 * 0.4) / (25 + 12.5))


def test_level_is_judged_by_its_last_fifty_steps_and_by_steps_forty_to_sixty() -> None:
    result = _schedule([0.9] * 40 + [0.5] * 20 + [0.9] * 10 + [0.3] * 50)
    assert end_mean(result, "assist", 0) == pytest.approx(0.3)
    assert rate_once_back(result, 0) == pytest.approx(0.5)
    # the means of 20 steps are within the band once at most one of them is from before
    assert settled_after(result, 0) == 89
    assert settled_after(_schedule([0.9] * 120), 0) is None


def test_runs_of_one_seed_are_not_independent_evidence(tmp_path: Path) -> None:
    spec = load_spec("lambda").model_copy(update={"seeds": (0, 1)})
    make_results(expand(spec, CHOSEN).cells, tmp_path)
    findings = ExperimentFindings.of(spec, CHOSEN, tmp_path)
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
        value = float(one.varied["learning.objective.assist_reward"])
        body["settings"]["learning"]["assist_reward"] = value
        body["series"]["assist"] = [value] * one.cell.steps
        results.append(Result(one.cell, body))
    values = [float(str(value)) for value in spec.vary["learning.objective.assist_reward"]]
    nearest = min(values, key=lambda value: (abs(value - 0.3), value))
    assert last_rate(results[0]) == pytest.approx(values[0])
    chosen = choose(results)
    assert chosen["nano-edge"]["grpo"] == {"group1": nearest, "group2": nearest}
    write_chosen(results, tmp_path / "chosen.json")
    assert read_chosen(tmp_path / "chosen.json") == chosen
    assert not expand(load_spec("table"), chosen).waits_for


# -- at equal rate ---------------------------------------------------------------------------------------------------------------------

_WRONG_FIRST, _RIGHT_FIRST = [9.0, 1.0, 0.0, -1.0], [0.0, -1.0, 9.0, 1.0]


def _small_world(folder: Path, seeds: tuple[int, ...], post: list[float] = _WRONG_FIRST) -> ExperimentFindings:
    """Four items a family, two of them right. Before learning a right one has the highest log-odds of asking, after it a wrong one has."""
    odds = {0: _RIGHT_FIRST, 1: _WRONG_FIRST, 2: post}
    return _world(folder, seeds, lambda family, phase: ("0011", odds[phase]))


def _wide_world(folder: Path, seeds: tuple[int, ...] = (0, 1, 2), arith: int = 0) -> ExperimentFindings:
    """arith is always wrong before learning, the rest always right; after it `arith` items are right, and wrong items are asked about
    first."""
    items = 2 * GROUPS

    def verdicts(family: str, phase: int) -> tuple[str, list[float]]:
        right = items if family != "arith" else arith if phase else 0
        return bits(index < right for index in range(items)), [0.0] * right + [5.0 if phase else -5.0] * (items - right)

    return _world(folder, seeds, verdicts)


def _world(folder: Path, seeds: tuple[int, ...], verdicts: Any) -> ExperimentFindings:
    """nano-edge before learning and with DA-GRPO; right answers and log-odds of asking by family and phase."""
    spec = load_spec("table").model_copy(update={"models": ("nano-edge",), "seeds": seeds})
    for cell in expand(spec, CHOSEN).cells:
        if cell.method in ("bare", "da-grpo"):
            held_out = []
            for phase in range(1, 3) if cell.phases else range(1):
                for family in families_of(spec):
                    forced, odds = verdicts(family.name, phase)
                    held_out.append(evaluation(family.source, forced, step=100 * phase, phase=phase, help=odds))
            write_result(result_file(cell, folder), made_result(cell, held_out=held_out))
    return ExperimentFindings.of(spec, CHOSEN, folder)


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


def test_model_that_keeps_nothing_was_measured_all_the_same() -> None:
    asked = Estimate(1.0, 0.0, 3)
    assert at_share(None, asked, kept=True) == "none kept @ 0 %"
    assert at_share(None, None, kept=True) == MISSING


def test_empty_interval_has_no_star() -> None:
    assert [signed(Estimate(0.1, half, seeds))[-1] == "*" for half, seeds in ((0.05, 3), (0.2, 3), (0.05, 1), (None, 3))] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(("post", "lost"), [(_WRONG_FIRST, "+0.0 "), (_RIGHT_FIRST, "+30.0 ")])
def test_forgetting_at_equal_rate_is_the_cost_of_the_second_phase(tmp_path: Path, post: list[float], lost: str) -> None:
    (row,) = [row for row in forgotten(_small_world(tmp_path, (0, 1, 2), post)).rows if row[1] == DA_GRPO.label]
    assert row[2] == "3" and all(cell.startswith(lost) for cell in row[3:])


def test_one_threshold_may_send_more_of_one_family_than_of_another(tmp_path: Path) -> None:
    findings = _wide_world(tmp_path)
    rows = {row[1]: row for row in one_threshold_table(findings).rows}
    # 30 % of 160 items are 48: all 40 of arith where they rank first; where they rank last, none
    assert rows[DA_GRPO.label][2:5] == ("3", "100.0 ± 0.0", "100.0 ± 0.0")
    assert all(cell.startswith("75.0 ") for cell in rows[BARE_DIAL.label][3:5])
    assert all(cell.startswith("+25.0 ") and cell.endswith(" *") for cell in rows[BARE_DIAL.label][5:])
    assert rows["GAPG"][3:] == (MISSING,) * 4
    assert _by_name(equal_rates(findings, 1))[DA_GRPO.label]["@ 30 %"].startswith("82.5 ")


# -- the model by itself ---------------------------------------------------------------------------------------------------------------


def test_local_ability_is_compared_with_the_untrained_model(tmp_path: Path) -> None:
    findings = _wide_world(tmp_path, arith=GROUPS)
    rows = _by_name(ability_table(findings))
    row = rows["DA-GRPO"]
    assert row["seeds"] == "3" and row["arith during"].startswith("+50.0 ") and row["arith post"].endswith(" *")
    assert row["science post"] == "+0.0 ± 0.0" and row["all during"].startswith("+12.5 ")
    ranked = _by_name(ranking_table(findings))
    assert ranked["DA-GRPO"]["arith during"] == "1.00 ± 0.00"
    assert ranked["DA-GRPO"]["code during"] == "-"  # nothing fails
    assert rows["GRPO"]["arith during"] == ranked["GRPO"]["arith post"] == MISSING


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


# -- retraining for a rate beside the dial on one adapter ------------------------------------------------------------------------------

ARITH = "practice:arith"
RATES = Spec(
    name="rates",
    about="What is a rate worth?",
    models=("nano-edge",),
    seeds=(0,),
    phases={
        "usual": ({"source": "group1", "steps": 2, "target_rate": 0.3},),  # type: ignore[dict-item]
        "half": ({"source": "group1", "steps": 2, "target_rate": 0.5},),  # type: ignore[dict-item]
    },
    evaluate={"sources": ("practice:arith",), "items": 4},  # type: ignore[arg-type]
    table="rates",
)


def _dialled(folder: Path, scores: Any, spec: Spec = RATES) -> tuple[str, ...]:
    """The only row; `scores` returns the evaluation of an adapter by phases and seed, None where it was not run."""
    for one in expand(spec, {}).placed:
        if (found := scores(one.phases, one.cell.seed)) is not None:
            write_result(result_file(one.cell, folder), made_result(one.cell, held_out=[found]))
    _, table = rates_tables(ExperimentFindings.of(spec, {}, folder))
    return table.rows[0]


def test_dial_sends_the_likeliest_items_up_to_the_retrained_adapters_rate(tmp_path: Path) -> None:
    """At half the items the dial sends the first and the third, which fail locally; the retrained adapter wastes one call."""
    by_phases = {
        "usual": evaluation(ARITH, "0101", step=2, asked="1000", own="0100", joint="1100", help=[3.0, -1.0, 2.0, -2.0]),
        "half": evaluation(ARITH, "0101", step=2, asked="1100", own="0001", joint="1101", help=[3.0, 2.0, -1.0, -2.0]),
    }
    row = _dialled(tmp_path / "both", lambda phases, seed: by_phases[phases])
    assert row[:3] == ("nano-edge", "arith", "0.5")
    assert [cell.partition(" ")[0] for cell in row[4:]] == ["75.0", "100.0", "-25.0"]
    assert row[4].endswith("@ 50 %") and row[5].endswith("@ 50 %")
    row = _dialled(tmp_path / "one", lambda phases, seed: by_phases["half"] if phases == "half" else None)
    assert row[-2:] == (MISSING, MISSING)


def test_dial_uses_the_retrained_rate_of_each_seed(tmp_path: Path) -> None:
    """The same adapter twice, at other rates in its two seeds: at the mean of both rates the dial would outperform itself."""
    odds = [4.0, 3.0, 2.0, 1.0]
    own = {
        0: evaluation(ARITH, "0011", step=2, help=odds, asked="1000", own="0011", joint="1011"),
        1: evaluation(ARITH, "0011", step=2, help=odds, asked="1110", own="0001", joint="1111"),
    }
    usual = evaluation(ARITH, "0011", step=2, help=odds)
    spec = RATES.model_copy(update={"seeds": (0, 1)})
    row = _dialled(tmp_path, lambda phases, seed: own[seed] if phases == "half" else usual, spec)
    assert [cell.partition(" ")[0] for cell in row[4:]] == ["87.5", "87.5", "+0.0"]


# -- figures ---------------------------------------------------------------------------------------------------------------------------


def test_figures_of_partial_results_are_reproducible(tmp_path: Path) -> None:
    findings = _findings("lambda-paper", tmp_path / "results", missing=3)
    (first,), (second,) = (draw_figures(findings, tmp_path / name) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size > 1000


def test_no_figure_is_drawn_without_results(tmp_path: Path) -> None:
    spec = load_spec("schedules")
    make_results([cell for cell in expand(spec, CHOSEN).cells if not cell.phases], tmp_path)
    assert draw_figures(ExperimentFindings.of(spec, CHOSEN, tmp_path), tmp_path / "figures") == []  # no one has learned yet


def test_results_of_other_settings_or_models_are_refused(tmp_path: Path) -> None:
    spec = load_spec("lambda")
    cell = next(cell for cell in expand(spec, {}).cells if cell.phases)
    for changes in ({"settings": {"learning": {"learning_rate": 0.5}}}, {"models": {"nano-edge": "0123"}}):
        write_result(result_file(cell, tmp_path), made_result(cell, **changes))
        with pytest.raises(EdgeError, match="it was measured with"):
            ExperimentFindings.of(spec, {}, tmp_path)
