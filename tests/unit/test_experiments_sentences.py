"""Numbers in sentences are those of the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.core.errors import ConfigError
from tests.unit.experiment_world import make_results
from tests.unit.test_experiments_spec import CHOSEN
from tools.experiments.cells import expand
from tools.experiments.equal_rate import pooled_differences
from tools.experiments.findings import Findings
from tools.experiments.kept_rates import kept_rates_table
from tools.experiments.sentences import with_numbers
from tools.experiments.spec import load_spec


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    folder = tmp_path_factory.mktemp("results")
    spec = load_spec("table").model_copy(update={"seeds": (0, 1)})
    make_results([cell for cell in expand(spec, CHOSEN).cells if cell.method in ("bare", "da-grpo", "grpo")], folder)
    return Findings.of(spec, CHOSEN, folder)


def test_a_lead_is_that_of_the_table(findings: Findings) -> None:
    (row,) = [row for row in pooled_differences(findings).rows if row[:2] == ("nano-edge", "GRPO")]
    told = with_numbers("by [[lead grpo nano-edge during]] and [[lead grpo nano-edge post]] points", findings, "here")
    assert told == f"by {row[3].removesuffix(' *')} and {row[4].removesuffix(' *')} points"
    leads = [float(row[3].partition(" ")[0]) for row in pooled_differences(findings).rows if row[1] == "GRPO"]
    assert with_numbers("[[leads grpo,gapg during]]", findings, "here") == f"{min(leads):+.1f} to {max(leads):+.1f}"


def test_rates_are_those_of_the_table(findings: Findings) -> None:
    rows = [row for row in kept_rates_table(findings).rows if row[1] == "DA-GRPO"]
    ends = [float(cell) for row in rows for cell in row[3:7]]
    assert with_numbers("[[rates da-grpo]]", findings, "here") == f"{min(ends):.2f} to {max(ends):.2f}".replace("0.", ".")
    assert with_numbers("[[rate da-grpo]]", findings, "here") == f"{sum(ends) / len(ends):.3f}".removeprefix("0")
    held = sum(int(row[-1].partition(" ")[0]) for row in rows)
    assert with_numbers("[[held da-grpo]] of them", findings, "here") == f"{held} of 16 of them"


def test_what_was_not_run_is_missing_in_a_sentence_too(findings: Findings) -> None:
    line = "[[lead gapg nano-edge during]], [[rates gapg]], [[held gapg]]; [[seeds]]"
    assert with_numbers(line, findings, "here") == "missing, missing, missing; nano-edge 2, nano-edge-llama 2"


@pytest.mark.parametrize(
    "mark", ["[[length]]", "[[lead nobody nano-edge during]]", "[[lead grpo nano-egde during]]", "[[rates]]", "[[rates x]]"]
)
def test_a_number_that_is_none_is_told_with_its_line(mark: str, findings: Findings) -> None:
    with pytest.raises(ConfigError) as error:
        with_numbers(f"It is {mark} ahead.", findings, "report.md.in:7")
    assert str(error.value) == f"report.md.in:7: {mark} is no number"


def test_a_line_without_numbers_is_left(findings: Findings, tmp_path: Path) -> None:
    assert with_numbers("a [link](x) and a list[0]", findings, "here") == "a [link](x) and a list[0]"
