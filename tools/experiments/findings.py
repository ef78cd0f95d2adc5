"""The results of one experiment, found by their place in its grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tools.experiments.cells import ChosenRewards, Grid, Placed, expand
from tools.experiments.measures import Evaluation, Rule, Statistic, estimated, own_decision, ranks, side_by_side, tally, together
from tools.experiments.result import RESULTS, Result, read_result
from tools.experiments.spec import Spec
from tools.experiments.stats import Estimate, over_seeds
from tools.experiments.tables import seeds_text


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one place that differ in their seeds only: those that are there, by seed, and how many there should be."""

    results: tuple[Result, ...]
    wanted: int
    every_seed: bool = False
    """There is one run, used for every seed: what is drawn without learning at T = 0 does not hang on it."""

    @property
    def seeds(self) -> str:
        """Its column of seeds."""
        return "-" if self.every_seed else seeds_text([len(self.results)], self.wanted)

    def mean(self, value: Any) -> Estimate | None:
        """Mean over seeds of a number of each run; None where there is no run, or a run without the number."""
        values = [value(result) for result in self.results]
        return over_seeds(values) if values and None not in values else None

    def by_seed(self, source: str, phase: int) -> dict[int, Evaluation]:
        """The evaluations of one source by seed."""
        found = {result.cell.seed: result.evaluation(source, phase) for result in self.results}
        return {seed: evaluation for seed, evaluation in found.items() if evaluation is not None}


class EvaluatedPart(NamedTuple):
    """An evaluation of one source after `phase` phases, in the runs of one place, under a rule."""

    runs: Runs
    source: str
    phase: int
    rule: Rule = own_decision


def seeds_of(parts: Sequence[EvaluatedPart]) -> str:
    """The column of seeds of a row with several runs: - where all of them represent every seed."""
    own = [part.runs for part in parts if not part.runs.every_seed]
    return seeds_text([len(runs.results) for runs in own], own[0].wanted) if own else "-"


def common_seeds_of(parts: Sequence[EvaluatedPart]) -> str:
    """The column of seeds of a row that pools several evaluations: how many seeds have them all; - where all of them represent every
    seed."""
    own = [part.runs for part in parts if not part.runs.every_seed]
    return seeds_text([len(by_common_seed(parts))], own[0].wanted) if own else "-"


def pooled(statistic: Statistic, *sides: Sequence[EvaluatedPart]) -> Estimate | None:
    """A statistic over the items of several evaluations together, by seed; several sides have the same sources in the same order and are
    compared item by item. None where no seed has them all.
    """
    grouped = any(ranks(part.rule) for side in sides for part in side)
    tallies_S = []
    for evaluations in by_common_seed([part for side in sides for part in side]):
        left = iter(evaluations)
        tallied = (together([tally(next(left), part.rule, grouped=grouped) for part in side]) for side in sides)
        tallies_S.append(side_by_side(*tallied))
    return estimated(tallies_S, statistic)


def by_common_seed(parts: Sequence[EvaluatedPart]) -> list[list[Evaluation]]:
    """For each common seed the evaluations of the parts, in their order; those that represent every seed are included in each."""
    found = [(part.runs.every_seed, part.runs.by_seed(part.source, part.phase)) for part in parts]
    if not found or not all(evaluations for _, evaluations in found):
        return []
    own = [set(evaluations) for every_seed, evaluations in found if not every_seed] or [set(found[0][1])]
    return [
        [next(iter(evaluations.values())) if every_seed else evaluations[seed] for every_seed, evaluations in found]
        for seed in sorted(set.intersection(*own))
    ]


@dataclass(frozen=True, slots=True)
class ExperimentFindings:
    """An experiment's grid with the results that are there."""

    grid: Grid
    results: Mapping[str, Result]

    @classmethod
    def of(cls, spec: Spec, chosen: ChosenRewards, folder: Path = RESULTS) -> ExperimentFindings:
        """Read the existing results. Raises EdgeError for a file that is no result."""
        grid = expand(spec, chosen)
        found = {cell.key: read_result(cell, folder) for cell in grid.cells}
        return cls(grid, {key: result for key, result in found.items() if result is not None})

    @property
    def spec(self) -> Spec:
        """The experiment."""
        return self.grid.spec

    def runs(
        self, model: str, method: str | None = None, phases: str | None = None, varied: Mapping[str, Any] | None = None
    ) -> Runs:
        """The runs of a place in the grid; None: the only one."""

        def meant(one: Placed) -> bool:
            return (
                one.cell.model == model
                and (method is None or one.method == method)
                and (phases is None or one.phases == phases)
                and (varied is None or dict(one.varied) == dict(varied))
            )

        keys = dict.fromkeys(one.cell.key for one in self.grid.placed if meant(one))
        found = sorted((self.results[key] for key in keys if key in self.results), key=lambda result: result.cell.seed)
        return Runs(tuple(found), len(self.spec.seeds))

    def bare(self, model: str) -> Runs:
        """The model before any learning."""
        cells = [cell for cell in self.grid.bare if cell.model == model]
        return Runs(tuple(self.results[cell.key] for cell in cells if cell.key in self.results), 1, every_seed=True)

    def missing(self) -> int:
        """Cells without a result."""
        return len(self.grid.cells) - len(self.results)
