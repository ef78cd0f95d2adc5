"""The compared methods of the main experiment, the families, and the paper's published numbers.

MATH, TACO, MATH-500 and MMLU become arith, code, science and facts: the nearest family of each group. A family of group 1 is evaluated in
the runs that learn group 1 first, one of group 2 in the others.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edge.core.errors import EdgeError
from edge.tasks.practice import GROUPS
from tools.experiments.findings import EvaluatedPart, ExperimentFindings
from tools.experiments.measures import Rule, at_random, by_threshold, never, own_decision, routed

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "paper"
METHODS = {
    "edge-only": "Edge Tuning Only",
    "naive-router": "Edge Tuning w/ Naive Router",
    "router": "Edge Tuning w/ Router",
    "grpo": "GRPO",
    "gvpo": "GVPO",
    "gapg": "GAPG",
    "da-grpo": "DA-GRPO",
}
"""What the paper calls the rows."""
NAMES = {**METHODS, "da-grpo-paper": "DA-GRPO, paper's rule"}
"""What tables call them; DA-GRPO by the paper's integral rule of λ has a row of its own."""
MODELS = {"nano-edge": "Qwen2.5-1.5B-Instruct", "nano-edge-llama": "Llama-3.2-3B-Instruct"}
"""The paper's SLM of the same architecture."""
TARGET = 0.3
"""τ of the main experiment."""
FIRST, SECOND = 1, 2
"""Phases done: during is after that of the family's own group, post after the other group's."""


@dataclass(frozen=True, slots=True)
class TestedFamily:
    """A practice family and the data set of the paper that it represents."""

    name: str
    stands_for: str

    @property
    def source(self) -> str:
        """The evaluated source."""
        return f"practice:{self.name}"

    @property
    def direction(self) -> str:
        """The phases in which its group comes first."""
        return "g1-g2" if self.name in GROUPS["group1"] else "g2-g1"


TABLES: Mapping[str, tuple[TestedFamily, TestedFamily]] = {
    "table1": (TestedFamily("arith", "math"), TestedFamily("code", "taco")),
    "table2": (TestedFamily("science", "math500"), TestedFamily("facts", "mmlu")),
}
ALL_FAMILIES = tuple(family for pair in TABLES.values() for family in pair)


@dataclass(frozen=True, slots=True)
class Contestant:
    """One row: its runs (None: the model before learning), its decision rule, and the score that ranks items for a fixed rate."""

    name: str
    label: str
    runs_of: str | None
    rule: Rule
    ranked_by: Literal["help", "router", "chance"] = "help"

    @property
    def learns(self) -> bool:
        """False for the model before it learns, which forgets nothing either."""
        return self.runs_of is not None

    def held_to(self, share: float) -> Rule:
        """The same adapters with exactly this share of the questions sent to the cloud."""
        return at_random(share) if self.ranked_by == "chance" else by_threshold(share, self.ranked_by)


@dataclass(frozen=True, slots=True)
class Adapters:
    """What a contestant has learned with one SLM, in every run."""

    findings: ExperimentFindings
    model: str
    row: Contestant

    def of(self, row: Contestant) -> Adapters:
        """Another contestant's with the same SLM."""
        return Adapters(self.findings, self.model, row)

    def part(self, family: TestedFamily, phase: int, rule: Rule | None = None, order: str | None = None) -> EvaluatedPart:
        """The evaluation of a family after `phase` phases; for a model without learning always the same one.

        By its own rule and in the runs that learn the family's group first, unless said otherwise.
        """
        rule = rule or self.row.rule
        if self.row.runs_of is None:
            return EvaluatedPart(self.findings.bare(self.model), family.source, 0, rule)
        return EvaluatedPart(
            self.findings.runs(self.model, self.row.runs_of, order or family.direction), family.source, phase, rule
        )

    def parts(self, phase: int, rule: Rule | None = None, families: Sequence[TestedFamily] = ALL_FAMILIES) -> list[EvaluatedPart]:
        """The evaluations of several families after `phase` phases."""
        return [self.part(family, phase, rule) for family in families]

    def held(self, phase: int, families: Sequence[TestedFamily] = ALL_FAMILIES) -> list[EvaluatedPart]:
        """The same with exactly τ of the questions sent."""
        return self.parts(phase, self.row.held_to(TARGET), families)


def _of_the_paper(name: str, runs_of: str, rule: Rule, ranked_by: Literal["help", "router", "chance"] = "help") -> Contestant:
    return Contestant(name, NAMES[name], runs_of, rule, ranked_by)


BARE = Contestant("bare", "before learning", None, own_decision)
EDGE_ONLY = _of_the_paper("edge-only", "edge-only", never, "chance")
NAIVE = _of_the_paper("naive-router", "edge-only", at_random(TARGET), "chance")
ROUTER = _of_the_paper("router", "edge-only", routed, "router")
DA_GRPO = _of_the_paper("da-grpo", "da-grpo", own_decision)
PAPERS_RULE = Contestant("da-grpo-paper", NAMES["da-grpo-paper"], "da-grpo-paper", own_decision)
"""DA-GRPO whose rate is held by the paper's integral rule of λ alone."""
ASKING = (*(_of_the_paper(name, name, own_decision) for name in ("grpo", "gvpo", "gapg")), PAPERS_RULE, DA_GRPO)
PAPER = (EDGE_ONLY, NAIVE, ROUTER, *ASKING)
"""The rows of the paper's tables, DA-GRPO with either rule."""
BARE_DIAL = Contestant("bare-dial", "before learning, dial", None, own_decision)
EDGE_ONLY_DIAL = Contestant("edge-only-dial", "Edge Tuning w/ dial", "edge-only", never)
BARE_RANDOM = Contestant("bare-random", "before learning, random", None, at_random(TARGET), "chance")
HELD = (BARE_DIAL, BARE_RANDOM, NAIVE, EDGE_ONLY_DIAL, ROUTER, *ASKING)
"""Who is compared at equal rate: the paper's methods and what costs least, the log-odds of asking of a model that never learned to."""
RIVALS = tuple(row for row in HELD if row not in (BARE_RANDOM, NAIVE, PAPERS_RULE, DA_GRPO))
"""Of whom the best is compared with DA-GRPO in the primary comparison."""


@dataclass(frozen=True, slots=True)
class Published:
    """The rows of one of the paper's tables by (responses, model, method)."""

    rows: dict[tuple[str, str, str], dict[str, str]]

    def cell(self, responses: str, model: str, method: str, column: str) -> str:
        """One number as the paper prints it, in percent; "" where it has none."""
        row = self.rows.get((responses, MODELS.get(model, model), METHODS.get(method, method)), {})
        return row.get(column) or ""


def read_published(folder: Path, name: str) -> Published | None:
    """`table1` or `table2`; None where the folder has no such file. Raises EdgeError for one that cannot be read."""
    path = folder / f"{name}.csv"
    if not path.is_file():
        return None
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = {(row["responses"], row["model"], row["method"]): row for row in csv.DictReader(file)}
    except (OSError, KeyError, UnicodeDecodeError, csv.Error) as error:
        raise EdgeError(f"{path}: not a table of the paper ({error})") from error
    return Published(rows)
