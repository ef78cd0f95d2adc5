"""Retraining for a rate beside the dial on one adapter, with verdicts made by hand."""

from __future__ import annotations

from pathlib import Path

from tests.unit.experiment_world import made_result
from tools.experiments.cells import expand
from tools.experiments.dialled import dial_table
from tools.experiments.findings import Findings
from tools.experiments.result import result_file, write_result
from tools.experiments.spec import Spec
from tools.experiments.tables import MISSING

SPEC = Spec(
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


def look(**values: object) -> dict[str, object]:
    return {"step": 2, "phase": 1, "source": "practice:arith", "items": 4, "format": "1111", "tokens": 1.0, **values}


def findings(folder: Path, *, both: bool = True) -> Findings:
    looks = {
        "usual": look(asked="1000", own="0100", forced="0101", cloud="1111", joint="1100", help=[3.0, -1.0, 2.0, -2.0]),
        "half": look(asked="1100", own="0001", forced="0101", cloud="1111", joint="1101", help=[3.0, 2.0, -1.0, -2.0]),
    }
    for one in expand(SPEC, {}).placed:
        if both or one.phases == "half":
            write_result(result_file(one.cell, folder), made_result(one.cell, held_out=[looks[one.phases]]))
    return Findings.of(SPEC, {}, folder)


def test_the_dial_sends_the_likeliest_to_ask_until_the_retrained_ones_rate_is_reached(tmp_path: Path) -> None:
    """At half the items the dial sends the first and the third, which fail locally; the retrained adapter wastes one call."""
    (table,) = dial_table(findings(tmp_path))
    ((model, family, target, _, retrained, dialled, gained),) = table.rows
    assert (model, family, target) == ("nano-edge", "arith", "0.5")
    assert retrained.startswith("75.0 ±") and retrained.endswith("@ 50 %")
    assert dialled.startswith("100.0 ±") and dialled.endswith("@ 50 %")
    assert gained.startswith("-25.0 ±")


def test_what_was_not_run_is_missing(tmp_path: Path) -> None:
    (table,) = dial_table(findings(tmp_path, both=False))
    assert table.rows[0][-2:] == (MISSING, MISSING)


def test_an_experiment_without_the_usual_rate_has_no_such_table(tmp_path: Path) -> None:
    other = SPEC.model_copy(update={"phases": {"half": SPEC.phases["half"]}})
    assert dial_table(Findings.of(other, {}, tmp_path)) == []


def test_each_seeds_dial_sends_what_that_seeds_retrained_adapter_sends(tmp_path: Path) -> None:
    """The same adapter twice, at other rates in its two seeds: at the mean of both rates the dial would look better than itself."""
    spec = SPEC.model_copy(update={"seeds": (0, 1)})
    values = {"forced": "0011", "cloud": "1111", "help": [4.0, 3.0, 2.0, 1.0]}
    own = {0: look(asked="1000", own="0011", joint="1011", **values), 1: look(asked="1110", own="0001", joint="1111", **values)}
    for one in expand(spec, {}).placed:
        usual = look(asked="0000", own="0011", joint="0011", **values)
        write_result(
            result_file(one.cell, tmp_path),
            made_result(one.cell, held_out=[own[one.cell.seed] if one.phases == "half" else usual]),
        )
    (table,) = dial_table(Findings.of(spec, {}, tmp_path))
    ((*_, retrained, dialled, gained),) = table.rows
    assert retrained.startswith("87.5 ±") and retrained.endswith("@ 50 %")
    assert dialled.startswith("87.5 ±") and dialled.endswith("@ 50 %")
    assert gained.startswith("+0.0 ±")
