"""The results of one experiment, found by their place in its grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tools.experiments import left_out
from tools.experiments.cells import ChosenRewards, Grid, Placed, expand
from tools.experiments.left_out import LeftOut
from tools.experiments.measures import Evaluation, Rule, ranks, side_by_side
from tools.experiments.result import RESULTS, Result, read_result
from tools.experiments.spec import Spec
from tools.experiments.stats import Estimate, Statistic, over_seeds, over_seeds_and_items
from tools.experiments.tables import seeds_text

Pairs = Sequence[tuple[Evaluation, Evaluation]]


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one place that differ in their seeds only: those that are there, by seed, and how many there should be."""

    results: tuple[Result, ...]
    wanted: int
    every_seed: bool = False
    """There is one run, and it stands for every seed: what is drawn without learning at T = 0 does not hang on it."""

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


class Part(NamedTuple):
    """An evaluation of one source after so many phases, in the runs of one place."""

    runs: Runs
    source: str
    phase: int


def seeds_of(parts: Sequence[Part]) -> str:
    """The column of seeds of a row with several runs: - where all of them represent every seed."""
    own = [part.runs for part in parts if not part.runs.every_seed]
    return seeds_text([len(runs.results) for runs in own], own[0].wanted) if own else "-"


def common_seeds_of(parts: Sequence[Part]) -> str:
    """The column of seeds of a row that pools several evaluations: how many seeds have them all; - where all of them represent every
    seed."""
    own = [part.runs for part in parts if not part.runs.every_seed]
    return seeds_text([len(by_common_seed(parts))], own[0].wanted) if own else "-"


def pooled(parts: Sequence[Part], rule: Rule, statistic: Statistic) -> Estimate | None:
    """A statistic over the items of several evaluations together, by seed. None where no seed has them all."""
    evaluations_S = by_common_seed(parts)
    if ranks(rule):
        return left_out.estimated(
            [
                left_out.together([left_out.left_out(evaluation, rule) for evaluation in evaluations])
                for evaluations in evaluations_S
            ],
            statistic,
        )
    return _of_items(
        [[one.columns for evaluation in evaluations for one in rule(evaluation)] for evaluations in evaluations_S], statistic
    )


def compared(mine: Sequence[Part], theirs: Sequence[Part], rules: tuple[Rule, Rule], statistic: Statistic) -> Estimate | None:
    """A statistic of both sides' columns, item by item and seed by seed; `theirs` has the same sources in the same order as `mine`."""
    first, second = rules
    pairs_S = pairs_of(mine, theirs)
    if any(map(ranks, rules)):
        return of_pairs(pairs_S, lambda one, other: (left_out.left_out(one, first), left_out.left_out(other, second)), statistic)
    columns_S = [[row for one, other in pairs for row in side_by_side(first(one), second(other))] for pairs in pairs_S]
    return _of_items(columns_S, statistic)


def of_pairs(
    pairs_S: Sequence[Pairs], sums: Callable[[Evaluation, Evaluation], tuple[LeftOut, LeftOut]], statistic: Statistic
) -> Estimate | None:
    """A statistic of two evaluations, where items are ranked."""
    left_S = [left_out.together([left_out.side_by_side(*sums(one, other)) for one, other in pairs]) for pairs in pairs_S]
    return left_out.estimated(left_S, statistic)


def pairs_of(mine: Sequence[Part], theirs: Sequence[Part]) -> list[Pairs]:
    """For each common seed: both sides' evaluations of the same items."""
    return [
        list(zip(evaluations[: len(mine)], evaluations[len(mine) :], strict=True))
        for evaluations in by_common_seed([*mine, *theirs])
    ]


def _of_items(columns_S: Sequence[Sequence[Sequence[float]]], statistic: Statistic) -> Estimate | None:
    return over_seeds_and_items(columns_S, statistic) if columns_S else None


def by_common_seed(parts: Sequence[Part]) -> list[list[Evaluation]]:
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
class Findings:
    """An experiment's grid with the results that are there."""

    grid: Grid
    results: Mapping[str, Result]

    @classmethod
    def of(cls, spec: Spec, chosen: ChosenRewards, folder: Path = RESULTS) -> Findings:
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
        """The runs of a place in the grid; None stands for the only one."""

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
