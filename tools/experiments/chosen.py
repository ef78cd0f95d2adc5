"""The assistance rewards that the grid search has chosen. Knows one committed file and how values are chosen.

Methods with a fixed reward for help cannot be told τ, so for each model, method and source that value is taken whose runs ended nearest.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edge.core.errors import ConfigError
from tools.experiments.cells import METHOD, ChosenRewards
from tools.experiments.held_out import write_whole
from tools.experiments.result import Result

CHOSEN_FILE = Path(__file__).parent / "specs" / "chosen-assist-rewards.json"
VALUE = "learning.assist_reward"
LAST_STEPS = 20
"""Steps at the end of a run whose mean rate is compared with τ."""


def read_chosen(path: Path = CHOSEN_FILE) -> ChosenRewards:
    """By model, method and source; {} where nothing was chosen. Raises ConfigError for a damaged file."""
    if not path.is_file():
        return {}
    try:
        found: ChosenRewards = json.loads(path.read_text(encoding="utf-8"))["chosen"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: no chosen assistance rewards ({error})", hint="run the grid search again") from error
    return found


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
        misses = rates[cell.model, str(cell.settings[METHOD]), phase.source]
        misses[value].append(last_rate(result) - phase.target_rate)
    chosen: dict[str, dict[str, dict[str, float]]] = {}
    for (model, method, source), by_value in sorted(rates.items()):
        nearest = min(sorted(by_value), key=lambda value: abs(sum(by_value[value]) / len(by_value[value])))
        chosen.setdefault(model, {}).setdefault(method, {})[source] = nearest
    return chosen


def write_chosen(results: Iterable[Result], path: Path = CHOSEN_FILE) -> dict[str, Any]:
    """Write what is chosen; returns it."""
    chosen = choose(results)
    about = f"Nearest to the target rate over the last {LAST_STEPS} steps of each run of the grid search."
    write_whole(path, json.dumps({"about": about, "chosen": chosen}, indent=1) + "\n")
    return chosen
