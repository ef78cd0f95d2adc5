"""The assistance rewards chosen by the grid search: one committed file.

Methods with a fixed reward for help do not use τ, so for each model, method and source the value is chosen whose runs ended nearest to it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from edge.core.errors import ConfigError
from tools.experiments.cells import ChosenRewards
from tools.experiments.result import Result
from tools.places import put

CHOSEN_FILE = Path(__file__).resolve().parent / "specs" / "chosen-assist-rewards.json"
LAST_STEPS = 20
"""Steps at the end of a run whose mean rate is compared with τ."""


def read_chosen(path: Path = CHOSEN_FILE) -> ChosenRewards:
    """By model, method and source; {} where nothing was chosen. Raises ConfigError for a damaged file or a folder."""
    if not path.exists():
        return {}
    try:
        return _Chosen.model_validate_json(path.read_bytes()).chosen
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]["msg"]
    except OSError as error:
        wrong = str(error.strerror)
    raise ConfigError(
        f"{path}: no chosen assistance rewards ({wrong})", hint="run the grid search again, or name another --chosen"
    )


class _Chosen(BaseModel):
    """The file. Other keys are for people."""

    chosen: dict[str, dict[str, dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]]]]


def last_rate(result: Result, steps: int = LAST_STEPS) -> float:
    """Mean assist rate of the last steps."""
    rates = result.series["assist"][-steps:]
    return float(sum(rates) / len(rates))


def choose(results: Iterable[Result]) -> dict[str, dict[str, dict[str, float]]]:
    """For each model, method and source the value with the mean rate (over seeds) nearest to τ; of equally near ones the smaller."""
    rates: dict[tuple[str, str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        cell, phase = result.cell, result.cell.phases[-1]
        value = float(result.body["settings"]["learning"]["assist_reward"])
        misses = rates[cell.model, cell.method, phase.source]
        misses[value].append(last_rate(result) - phase.target_rate)
    chosen: dict[str, dict[str, dict[str, float]]] = {}
    for (model, method, source), by_value in sorted(rates.items()):
        nearest = min(sorted(by_value), key=lambda value: abs(sum(by_value[value]) / len(by_value[value])))
        chosen.setdefault(model, {}).setdefault(method, {})[source] = nearest
    return chosen


def write_chosen(results: Iterable[Result], path: Path = CHOSEN_FILE) -> dict[str, Any]:
    """Write the choices; returns the file."""
    chosen = choose(results)
    about = f"Nearest to the target rate over the last {LAST_STEPS} steps of each run of the grid search."
    put(json.dumps({"about": about, "chosen": chosen}, indent=1) + "\n", path)
    return chosen
