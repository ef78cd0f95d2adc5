"""The compared methods of a main experiment, the families it tests, and the paper's published numbers.

MATH, TACO, MATH-500 and MMLU become arith, code, science and facts: the nearest practice family of each group. A family is evaluated in the
runs that learn its group first.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edge.core.errors import ConfigError, EdgeError
from edge.tasks.practice import GROUPS
from tools.experiments.findings import EvaluatedPart, ExperimentFindings
from tools.experiments.measures import Rule, at_random, by_threshold, never, own_decision, routed
from tools.experiments.spec import Phase, Spec, full_source, short_name

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
NAMES = {
    **METHODS,
    "da-grpo-paper": "DA-GRPO, paper's rule",
    "da-grpo-sampled": "DA-GRPO, sampled answers",
    "fine-tuning": "Fine-tuning w/ certainty",
}
"""What tables call them; DA-GRPO by the paper's integral rule of λ, and with sampled answers where the default has given ones, have rows of
their own."""
MODELS = {"nano-edge": "Qwen2.5-1.5B-Instruct", "nano-edge-llama": "Llama-3.2-3B-Instruct"}
"""The paper's SLM of the same architecture."""
STANDS_FOR = {"arith": "math", "code": "taco", "science": "math500", "facts": "mmlu"}
"""The data set of the paper that a family represents, as its published tables call it."""
TARGET = 0.3
"""τ of the main experiment."""
FIRST, SECOND = 1, 2
"""Phases done: during is after that of the family's own group, post after the other group's."""


@dataclass(frozen=True, slots=True)
class TestedFamily:
    """An evaluated source, and the list of phases in which its group comes first."""

    source: str
    order: str

    @property
    def name(self) -> str:
        """As tables call it."""
        return short_name(self.source)


def tables_of_families(spec: Spec) -> dict[str, tuple[TestedFamily, ...]]:
    """`table1`: the first evaluated family of each group, `table2` the second ones; a group is the source of a phase.

    Raises ConfigError where an evaluated source is of no group, or groups have different numbers of families.
    """
    by_group = {
        phases[0].full_source: [TestedFamily(source, order) for source in spec.evaluate.sources if _is_of(source, phases[0])]
        for order, phases in spec.phases.items()
    }
    if sorted(family.source for group in by_group.values() for family in group) != sorted(spec.evaluate.sources):
        raise ConfigError(f"{spec.name}: evaluate.sources: each has to be of one phase's source")
    if len({len(group) for group in by_group.values()}) != 1:
        raise ConfigError(f"{spec.name}: evaluate.sources: each phase's source needs as many")
    return {f"table{number}": pair for number, pair in enumerate(zip(*by_group.values(), strict=True), 1)}


def _is_of(source: str, phase: Phase) -> bool:
    families = GROUPS.get(phase.source, ())
    return source == phase.full_source or source in map(full_source, families)


def families_of(spec: Spec) -> tuple[TestedFamily, ...]:
    """All of them, as the tables have them."""
    return tuple(family for pair in tables_of_families(spec).values() for family in pair)


@dataclass(frozen=True, slots=True)
class Contestant:
    """One row: its runs (None: the model before learning), its decision rule, and the score that ranks items for a fixed rate."""

    name: str
    label: str
    runs_of: str | None
    rule: Rule
    ranked_by: Literal["help", "doubt", "router", "chance"] = "help"

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

    @property
    def families(self) -> tuple[TestedFamily, ...]:
        """Those of the experiment."""
        return families_of(self.findings.spec)

    def part(self, family: TestedFamily, phase: int, rule: Rule | None = None, order: str | None = None) -> EvaluatedPart:
        """The evaluation of a family after `phase` phases; for a model without learning always the same one.

        By its own rule and in the runs that learn the family's group first, unless said otherwise.
        """
        rule = rule or self.row.rule
        if self.row.runs_of is None:
            return EvaluatedPart(self.findings.bare(self.model), family.source, 0, rule)
        return EvaluatedPart(self.findings.runs(self.model, self.row.runs_of, order or family.order), family.source, phase, rule)

    def parts(self, phase: int, rule: Rule | None = None, families: Sequence[TestedFamily] | None = None) -> list[EvaluatedPart]:
        """The evaluations of several families (None: all) after `phase` phases."""
        return [self.part(family, phase, rule) for family in families or self.families]

    def held(self, phase: int, families: Sequence[TestedFamily] | None = None) -> list[EvaluatedPart]:
        """The same with exactly τ of the questions sent."""
        return self.parts(phase, self.row.held_to(TARGET), families)


def _row(name: str, runs_of: str, rule: Rule, ranked_by: Literal["help", "doubt", "router", "chance"] = "help") -> Contestant:
    return Contestant(name, NAMES[name], runs_of, rule, ranked_by)


BARE = Contestant("bare", "before learning", None, own_decision)
EDGE_ONLY = _row("edge-only", "edge-only", never, "chance")
NAIVE = _row("naive-router", "edge-only", at_random(TARGET), "chance")
ROUTER = _row("router", "edge-only", routed, "router")
DA_GRPO = _row("da-grpo", "da-grpo", own_decision)
PAPERS_RULE = _row("da-grpo-paper", "da-grpo-paper", own_decision)
SAMPLED = _row("da-grpo-sampled", "da-grpo-sampled", own_decision)
ASKING = (*(_row(name, name, own_decision) for name in ("grpo", "gvpo", "gapg")), PAPERS_RULE, SAMPLED, DA_GRPO)
PAPER = (EDGE_ONLY, NAIVE, ROUTER, *ASKING)
"""The rows of the paper's tables, DA-GRPO with either rule."""
BARE_DIAL = Contestant("bare-dial", "before learning, dial", None, own_decision)
EDGE_ONLY_DIAL = Contestant("edge-only-dial", "Edge Tuning w/ dial", "edge-only", never)
FINE_TUNING = _row("fine-tuning", "fine-tuning", never, "doubt")
"""Supervised: the right option is learned by its likelihood, and the least certain answers are sent."""
BARE_RANDOM = Contestant("bare-random", "before learning, random", None, at_random(TARGET), "chance")
BARE_CERTAINTY = Contestant("bare-certainty", "before learning, certainty", None, never, "doubt")
OWN_CERTAINTY = Contestant("da-grpo-certainty", "DA-GRPO, by its certainty", "da-grpo", never, "doubt")
HELD = (BARE_DIAL, BARE_RANDOM, BARE_CERTAINTY, NAIVE, EDGE_ONLY_DIAL, ROUTER, FINE_TUNING, *ASKING[:-1], OWN_CERTAINTY, DA_GRPO)
"""Who is compared at equal rate: the paper's methods and what costs least, the log-odds of asking of a model that never learned to."""


def rows_in(spec: Spec, rows: Sequence[Contestant]) -> tuple[Contestant, ...]:
    """Those of the methods that an experiment has; by certainty where answers are plain, which experiments with fine-tuning have."""
    known = {None, *spec.ways}
    return tuple(row for row in rows if row.runs_of in known and (row.ranked_by != "doubt" or FINE_TUNING.runs_of in known))


def rivals_in(spec: Spec) -> tuple[Contestant, ...]:
    """Of whom the best is compared with DA-GRPO in the primary comparison."""
    of_its_own = (PAPERS_RULE, SAMPLED, OWN_CERTAINTY, DA_GRPO)
    return rows_in(spec, [row for row in HELD if row not in (BARE_RANDOM, NAIVE, *of_its_own)])


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
