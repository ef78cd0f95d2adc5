"""Whether two sets of runs agree: λ, rates and accuracies, step by step.

Runs of `edge-agent learn` and of TRL over the same phases and seed see the same prompts in the same step, so that their steps are compared
in pairs; with several runs on a side, its mean in each step counts. The rest is sampling noise, which neighbouring steps share, because
they share their weights: so the standard error comes from means over blocks of steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from edge.core.errors import UsageError
from edge.core.formatting import shown
from edge.dagrpo.advantages import mean, standard_deviation
from edge.state.events import StepFinished
from tools.experiments.stats import t_quantile

CONFIDENCE = 0.99
"""Of a hundred comparisons of equal runs one is reported to differ, in any of its measures."""
BLOCKS = 10
Value = Callable[[StepFinished], float | None]
MEASURES: dict[str, Value] = {
    "assist_rate": lambda step: step.control.assist_rate,
    "joint_accuracy": lambda step: step.scores.joint_accuracy,
    "kept_accuracy": lambda step: step.scores.kept_accuracy,
    "reward": lambda step: step.scores.reward_mean,
    "format_ok": lambda step: step.scores.format_ok,
}
ABOUT: dict[str, Callable[[StepFinished], object]] = {
    "the source": lambda step: step.source,
    "the number of prompts": lambda step: step.scores.prompts,
    "the number of responses": lambda step: step.scores.responses,
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One measure: the means of both sides over the steps they share, b - a with its standard error, and whether that is chance."""

    measure: str
    a: float
    b: float
    difference: float
    standard_error: float
    agree: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """All measures over `steps` steps; `notes` list why steps may not be pairs."""

    steps: int
    runs_a: int
    runs_b: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()

    @property
    def agree(self) -> bool:
        """Whether no measure differs by more than chance."""
        return all(one.agree for one in self.differences)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "agree": self.agree}

    def text(self) -> str:
        """A table for people."""
        head = f"{self.steps} steps of {self.runs_a} and {self.runs_b} runs; standard errors from {blocks(self.steps)} blocks of steps"
        lines = [head, f"{'':16}{'a':>9}{'b':>9}{'b - a':>9}{'± s.e.':>9}"]
        lines += [
            f"{one.measure:16}{one.a:9.4f}{one.b:9.4f}{one.difference:+9.4f}{one.standard_error:9.4f}"
            f"{'' if one.agree else '   differs'}"
            for one in self.differences
        ]
        lines += [f"not in pairs: {note}" for note in self.notes]
        return "\n".join([*lines, "the same within noise" if self.agree else "not the same"])


def compare(runs_a: Sequence[Path], runs_b: Sequence[Path]) -> Comparison:
    """Compare over the steps that all of the runs have. Raises UsageError for folders without steps, or with steps that cannot be read, and
    for fewer than two steps in common."""
    a, b = [read_steps(folder) for folder in runs_a], [read_steps(folder) for folder in runs_b]
    shared = sorted(set.intersection(*(set(run) for run in [*a, *b])))
    if len(shared) < 2:
        raise UsageError("the runs have fewer than two steps in common", hint="compare runs with the same phases")
    side_a, side_b = ([[run[step] for step in shared] for run in side] for side in (a, b))
    found = [one for name, value in MEASURES.items() if (one := _measured(name, value, side_a, side_b)) is not None]
    # λ has added up η_λ times the difference of the rates, so its error is that much of theirs
    rate = next(one for one in found if one.measure == "assist_rate")
    dual_a, dual_b = (mean([run[-1].control.dual_after for run in side]) for side in (side_a, side_b))
    error = dual_lr(side_a[0]) * len(shared) * rate.standard_error
    dual = difference("dual at the end", dual_a, dual_b, error, blocks(len(shared)))
    return Comparison(len(shared), len(a), len(b), (dual, *found), _notes(runs_a, runs_b, side_a, side_b))


def read_steps(folder: Path) -> dict[int, StepFinished]:
    """A run's steps by number, from its events. Raises UsageError where there are none, or one cannot be read."""
    path, steps = folder / "events.jsonl", dict[int, StepFinished]()
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        message = f"{shown(str(folder))}: no run ({error.strerror}: events.jsonl)"
        raise UsageError(message, hint="give the folder of --out") from error
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            if event.get("kind") == StepFinished.kind:
                step = _with_numbers(StepFinished.from_json(event))
                steps[step.step] = step
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) and number == len(lines):
                continue  # a kill cut it off
            raise UsageError(
                f"{shown(str(path))}, line {number}: not a step as this version writes it",
                hint="compare runs that this version made",
            ) from error
    if not steps:
        raise UsageError(f"{shown(str(folder))}: no step was finished there", hint="give the folder of --out")
    return steps


def _with_numbers(step: StepFinished) -> StepFinished:
    """The step. Raises TypeError where something that is compared is no number."""
    control = step.control
    compared = (
        step.step,
        control.target_rate,
        control.dual_before,
        control.dual_after,
        *(value(step) for value in MEASURES.values()),
    )
    if not all(isinstance(value, int | float | None) for value in compared):
        raise TypeError
    return step


def _notes(
    runs_a: Sequence[Path], runs_b: Sequence[Path], a: list[list[StepFinished]], b: list[list[StepFinished]]
) -> tuple[str, ...]:
    """Reasons why the steps of both sides may not have the same prompts, as far as events and settings show."""
    seeds_a, seeds_b = (sorted(seed for folder in side if (seed := _seed(folder)) is not None) for side in (runs_a, runs_b))
    notes = []
    if seeds_a != seeds_b and (len(seeds_a), len(seeds_b)) == (len(runs_a), len(runs_b)):
        notes.append(f"learning.seed is {', '.join(map(str, seeds_a))} and {', '.join(map(str, seeds_b))}")
    for name, fields in ABOUT.items():
        for steps in zip(*a, *b, strict=True):
            if len(values := dict.fromkeys(str(fields(step)) for step in steps)) > 1:
                notes.append(f"in step {steps[0].step} {name} is {' and '.join(map(shown, values))}")
                break
    return tuple(notes)


def _seed(folder: Path) -> int | None:
    """The seed of a run's prompts from its settings; None where they do not contain it."""
    try:
        settings = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        return int(settings.get("agent", settings)["learning"]["seed"])
    except (OSError, ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError):
        return None


def _measured(name: str, value: Value, a: list[list[StepFinished]], b: list[list[StepFinished]]) -> Difference | None:
    """None where a side never had anything to count."""
    pairs = [(_mean_of(value, [run[i] for run in a]), _mean_of(value, [run[i] for run in b])) for i in range(len(a[0]))]
    known = [(x, y) for x, y in pairs if x is not None and y is not None]
    if len(known) < 2:
        return None
    error, count = of_blocks([y - x for x, y in known])
    return difference(name, mean([x for x, _ in known]), mean([y for _, y in known]), error, count)


def _mean_of(value: Value, steps: Sequence[StepFinished]) -> float | None:
    known = [number for number in map(value, steps) if number is not None]
    return mean(known) if known else None


def difference(name: str, a: float, b: float, error: float, count: int) -> Difference:
    """Whether equal runs may have such a difference, given its error from `count` blocks.

    Student's t with Bonferroni's correction. The final λ is no separate measure: it follows from the rates.
    """
    largest = t_quantile(count - 1, 1.0 - (1.0 - CONFIDENCE) / len(MEASURES)) * error
    return Difference(name, a, b, b - a, error, abs(b - a) <= largest + 1e-12)


def dual_lr(steps: Sequence[StepFinished]) -> float:
    """η_λ as the steps show it: the largest move of λ for each unit of the rate's distance from τ."""
    moves = [
        abs(step.control.dual_after - step.control.dual_before) / abs(step.control.assist_rate - step.control.target_rate)
        for step in steps
        if abs(step.control.assist_rate - step.control.target_rate) > 1e-9
    ]
    return max(moves, default=0.0)


def blocks(steps: int) -> int:
    """The number of blocks of `steps` steps."""
    return min(BLOCKS, steps)


def of_blocks(differences: Sequence[float]) -> tuple[float, int]:
    """Standard error of the mean from the means of blocks, and how many blocks."""
    count = blocks(len(differences))
    bounds = [round(index * len(differences) / count) for index in range(count + 1)]
    means = [mean(differences[low:high]) for low, high in pairwise(bounds)]
    return standard_deviation(means) / math.sqrt(count), count
