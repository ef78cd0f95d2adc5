"""Looks at several prices: what is looked at, how results name it, and the table of one adapter's prices."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.unit.experiment_world import made_result
from tools.experiments.cells import expand
from tools.experiments.findings import Findings
from tools.experiments.priced import price_table
from tools.experiments.result import result_file, write_result
from tools.experiments.spec import Evaluate, load_spec
from tools.experiments.tables import MISSING

ARITH, SCIENCE = "practice:arith", "practice:science"


def look(source: str, asked: str, own: str, joint: str) -> dict[str, object]:
    bits = {"asked": asked, "own": own, "joint": joint, "forced": "0101", "cloud": "1111", "format": "1111"}
    return {"step": 240, "phase": 1, "source": source, "items": 4, "help": [0.0] * 4, "tokens": 1.0, **bits}


def test_without_prices_each_source_is_looked_at_once_under_its_own_name() -> None:
    assert Evaluate(sources=(ARITH,)).places == ((ARITH, ARITH, None),)


def test_each_source_is_looked_at_once_a_price() -> None:
    places = Evaluate(sources=(ARITH, SCIENCE), prices=(0.0, 0.5)).places
    assert [name for name, _, _ in places] == [f"{ARITH}@0", f"{ARITH}@0.5", f"{SCIENCE}@0", f"{SCIENCE}@0.5"]
    assert [(source, price) for _, source, price in places[:2]] == [(ARITH, 0.0), (ARITH, 0.5)]


@pytest.mark.parametrize("price", [-0.1, 0.005, 10.0])
def test_a_price_that_no_prompt_can_tell_is_refused(price: float) -> None:
    with pytest.raises(ValidationError):
        Evaluate(prices=(price,))


def test_the_table_pools_the_sources_at_each_price_and_shows_what_is_missing(tmp_path: Path) -> None:
    spec = load_spec("price-prompt")
    ((cell,),) = [expand(spec, {}).cells]
    (table,) = price_table(Findings.of(spec, {}, tmp_path))
    assert {row[5] for row in table.rows} == {MISSING}
    first, *others = cell.evaluate.prices
    looks = [look(f"{ARITH}@{first:g}", "1111", "0000", "1111"), look(f"{SCIENCE}@{first:g}", "1100", "0001", "1101")]
    looks += [look(f"{source}@{price:g}", "0000", "0101", "0101") for source in (ARITH, SCIENCE) for price in others]
    write_result(result_file(cell, tmp_path), made_result(cell, held_out=looks))
    (table,) = price_table(Findings.of(spec, {}, tmp_path))
    row, *later = table.rows
    assert row[3] == "0" and row[5].startswith("75.0 ±"), "6 of 8 ask"
    assert row[6].startswith("87.5 ±") and row[7].startswith("50.0 ±") and row[8].startswith("50.0 ±")
    assert all(row[5].startswith("0.0 ±") for row in later)
