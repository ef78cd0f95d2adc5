"""The result of one cell: a JSON file from which every table and figure can be made again. Knows its form; knows nothing of how it came
about or what is made of it.

Form 1. `series` has one value a step: `dual` (λ after the step), `assist`, `joint`, `kept` (accuracy of kept responses, null: none was
kept), `reward`, `format`, `entropy`, `calls` (billed). `held_out` has one entry for each look and source: `step`, `phase` (phases done),
and per-item texts of 0, 1 and - as `tools.experiments.held_out` packs them. `models` has a digest of each model file. Later versions only
add keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.core.errors import EdgeError
from edge.state.events import StepFinished
from tools.experiments.cells import Cell
from tools.experiments.form import require_form
from tools.experiments.held_out import write_whole
from tools.experiments.provenance import changed

RESULTS = Path(__file__).parent / "results"
_SERIES_DIGITS = {"dual": 4, "assist": 4, "joint": 3, "kept": 3, "reward": 3, "format": 3, "entropy": 3}


@dataclass(frozen=True, slots=True)
class Result:
    """A finished cell and what it gave."""

    cell: Cell
    body: Mapping[str, Any]

    @property
    def series(self) -> Mapping[str, list[Any]]:
        """One value a step by name."""
        found: Mapping[str, list[Any]] = self.body["series"]
        return found

    def looks(self, phase: int | None = None) -> Iterator[Mapping[str, Any]]:
        """What was seen of each source after so many phases (None: whenever)."""
        return (look for look in self.body["held_out"] if phase is None or look.get("phase") == phase)

    def look(self, source: str, phase: int) -> Mapping[str, Any] | None:
        """What was seen of one source after so many phases."""
        return next((look for look in self.looks(phase) if look["source"] == source), None)


def result_file(cell: Cell, folder: Path = RESULTS) -> Path:
    """Where a cell's result lies."""
    return folder / f"{cell.key}.json"


def read_result(cell: Cell, folder: Path = RESULTS) -> Result | None:
    """The result of a cell, None where there is none. Raises EdgeError for a damaged file, or one of other settings or models."""
    path = result_file(cell, folder)
    if not path.is_file():
        return None
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        require_form(cell, body)
    except (OSError, ValueError, RecursionError) as error:
        raise EdgeError(
            f"{path}: not the result of {cell.key} ({error})", hint="remove the file to run the cell again"
        ) from error
    if (difference := changed(cell, body)) is not None:
        raise EdgeError(
            f"{path}: {difference}", hint=f"to run the cell again remove the file, and {cell.key} from the runs (--work)"
        )
    return Result(cell, body)


def strays(cells: Iterable[Cell], folder: Path = RESULTS) -> list[str]:
    """The names of the files of a folder that are the result of none of these cells; hidden ones aside."""
    known = {result_file(cell, folder).name for cell in cells}
    return sorted(path.name for path in folder.iterdir() if path.name not in known and not path.name.startswith("."))


def write_result(path: Path, body: Mapping[str, Any]) -> None:
    """The file, whole, one line for each of its parts, so that a person can read its beginning."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'), allow_nan=False)}" for name, value in body.items()]
    write_whole(path, "{" + ",\n".join(lines) + "}\n")


def series_of(steps: Sequence[StepFinished]) -> dict[str, list[Any]]:
    """The arrays of a run's steps."""
    values: dict[str, list[float | None]] = {
        "dual": [step.control.dual_after for step in steps],
        "assist": [step.control.assist_rate for step in steps],
        "joint": [step.scores.joint_accuracy for step in steps],
        "kept": [step.scores.kept_accuracy for step in steps],
        "reward": [step.scores.reward_mean for step in steps],
        "format": [step.scores.format_ok for step in steps],
        "entropy": [step.update.entropy for step in steps],
    }
    rounded = {name: [_rounded(value, _SERIES_DIGITS[name]) for value in column] for name, column in values.items()}
    return {**rounded, "calls": [step.cloud.cloud_calls for step in steps]}


def training_cost(steps: Sequence[StepFinished]) -> dict[str, Any]:
    """What learning asked and paid: responses that asked (help units) beside billed calls, their tokens and micro-USD, and seconds."""
    prompts, responses = sum(step.scores.prompts for step in steps), sum(step.scores.responses for step in steps)
    help_units = sum(round(step.control.assist_rate * step.scores.responses) for step in steps)
    calls = sum(step.cloud.cloud_calls for step in steps)
    return {
        "steps": len(steps),
        "prompts": prompts,
        "responses": responses,
        "help_units": help_units,
        "billed_calls": calls,
        "cloud_tokens": sum(step.cloud.cloud_tokens for step in steps),
        "spend_uusd": sum(step.cloud.spend_uusd for step in steps),
        "response_rate": _rounded(help_units / responses, 4) if responses else None,
        "billed_rate": _rounded(calls / prompts, 4) if prompts else None,
        "masked": sum(step.scores.masked for step in steps),
        "refused": sum(step.scores.refused for step in steps),
        "skipped_updates": sum(bool(step.update.learner_skipped) for step in steps),
        "local_tokens": sum(step.time.tokens for step in steps),
        "seconds": round(sum(step.time.seconds for step in steps), 1),
        "seconds_by_part": {
            name: round(sum(getattr(step.time.seconds_by_part, name) for step in steps), 1)
            for name in ("rollout", "cloud", "update", "save", "close", "swap")
        },
    }


def _rounded(value: float | None, digits: int) -> float | int | None:
    """Whole numbers without a fraction, which are shorter."""
    if value is None:
        return None
    short = round(value, digits)
    return int(short) if short == int(short) else short
