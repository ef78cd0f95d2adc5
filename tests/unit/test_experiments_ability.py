"""What learning does to the model without the cloud, and the comparison with one threshold for everything, on looks made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.experiment_world import bits, made_result
from tests.unit.test_experiments_spec import CHOSEN
from tools.experiments.cells import expand
from tools.experiments.contestants import ALL_FAMILIES, BARE_DIAL, DA_GRPO
from tools.experiments.equal_rate import equal_rates
from tools.experiments.findings import Findings
from tools.experiments.left_out import GROUPS
from tools.experiments.measures import ranking
from tools.experiments.one_threshold import one_threshold_table
from tools.experiments.own_ability import ability_table, ranking_table
from tools.experiments.paper_tables import paper_tables
from tools.experiments.result import result_file, write_result
from tools.experiments.spec import load_spec

ITEMS = 2 * GROUPS


def _look(source: str, phase: int, right: int, asking_for_wrong: float) -> dict[str, Any]:
    """The first `right` items are right and have log-odds 0, the others `asking_for_wrong`; the cloud is always right."""
    forced, none, every = bits(index < right for index in range(ITEMS)), "0" * ITEMS, "1" * ITEMS
    return {
        "step": 100 * phase, "phase": phase, "source": source, "items": ITEMS, "asked": none, "own": forced, "forced": forced,
        "cloud": every, "joint": forced, "format": every, "tokens": 9.0,
        "help": [0.0 if index < right else asking_for_wrong for index in range(ITEMS)],
    }  # fmt: skip


def _world(folder: Path, seeds: tuple[int, ...] = (0, 1, 2), arith: int = 0) -> Findings:
    """arith is always wrong before learning, the rest always right; after it `arith` items are, and what is wrong is asked for first."""
    spec = load_spec("table").model_copy(update={"models": ("nano-edge",), "seeds": seeds})
    for cell in expand(spec, CHOSEN).cells:
        if cell.method not in ("bare", "da-grpo"):
            continue
        body = made_result(cell)
        right, odds = (arith, 5.0) if cell.phases else (0, -5.0)
        body["held_out"] = [
            _look(family.source, phase, right if family.name == "arith" else ITEMS, odds)
            for phase in (range(1, 3) if cell.phases else range(1))
            for family in ALL_FAMILIES
        ]
        write_result(result_file(cell, folder), body)
    return Findings.of(spec, CHOSEN, folder)


def test_one_threshold_may_give_a_family_more_of_the_calls_than_another(tmp_path: Path) -> None:
    findings = _world(tmp_path)
    rows = {row[1]: row for row in one_threshold_table(findings).rows}
    # 30 % of 160 items are 48: all 40 of arith where they rank first; where they rank last, none
    assert rows[DA_GRPO.told][2:5] == ("3", "100.0 ± 0.0", "100.0 ± 0.0")
    assert rows[BARE_DIAL.told][2] == "-"
    assert all(cell.startswith("75.0 ") for cell in rows[BARE_DIAL.told][3:5])
    assert all(cell.startswith("+25.0 ") and cell.endswith(" *") for cell in rows[BARE_DIAL.told][5:])
    assert rows["GAPG"][3:] == ("missing",) * 4
    by_family = {row[1]: row for row in equal_rates(findings, 1).rows}
    assert by_family[DA_GRPO.told][5].startswith("82.5 ")


def test_one_seed_has_no_star_with_one_threshold_either(tmp_path: Path) -> None:
    rows = {row[1]: row for row in one_threshold_table(_world(tmp_path, (0,))).rows}
    assert rows[BARE_DIAL.told][5].startswith("+25.0 ") and "*" not in rows[BARE_DIAL.told][5]


def test_what_the_model_can_by_itself_is_told_against_what_it_could_before(tmp_path: Path) -> None:
    table = ability_table(_world(tmp_path, arith=ITEMS // 2))
    told = {row[1]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert told["DA-GRPO"]["seeds"] == "3"
    assert told["DA-GRPO"]["arith during"].startswith("+50.0 ") and told["DA-GRPO"]["arith post"].endswith(" *")
    assert told["DA-GRPO"]["science post"] == "+0.0 ± 0.0"
    assert told["DA-GRPO"]["all during"].startswith("+12.5 ")
    assert told["GRPO"]["arith during"] == "missing"


def test_asking_is_ranked_where_some_fail_and_some_do_not(tmp_path: Path) -> None:
    table = ranking_table(_world(tmp_path, arith=ITEMS // 2))
    told = {row[1]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert told["DA-GRPO"]["arith during"] == "1.00 ± 0.00"
    assert told["DA-GRPO"]["code during"] == "-"  # nothing fails
    assert told["before learning"]["arith post"] == "-"
    assert told["GRPO"]["arith post"] == "missing"


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
def test_the_ranking_is_the_chance_that_a_failure_stands_above(forced: str, asked: str, odds: list[Any], found: float) -> None:
    assert ranking({"forced": forced, "cloud": "1111", "asked": asked, "help": odds}) == found


def test_the_main_experiment_tells_all_three(tmp_path: Path) -> None:
    titles = [table.title for table in paper_tables(_world(tmp_path), {})]
    for began in ("Forced local accuracy minus", "How well asking ranks", "One threshold for all"):
        assert sum(title.startswith(began) for title in titles) == 1
