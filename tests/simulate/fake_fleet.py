"""A run that takes no time: what a sweep plays in the place of a real one."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from edge.core.errors import UsageError
from tests.worlds.sample_results import sample_group, sample_result
from tools.simulate.reports.assertions import Assertion, evaluate
from tools.simulate.reports.result import SimulationResult


def run_scenario(scenario: Mapping[str, Any], seed: int) -> SimulationResult:
    """Groups of the scenario, slower the more they are asked. What else to do is in `about`: `fail`, `crash`: the seed that does;
    `count`: a file that gets a line for each run; `hang`: a file that is written before the run of seed `hang_at` waits for ever."""
    orders = json.loads(scenario["about"])
    _note(orders.get("count"), seed)
    if orders.get("fail") == seed:
        raise UsageError(f"seed {seed} is to fail", hint="try another one")
    if orders.get("crash") == seed:
        raise RuntimeError("nobody foresaw this")
    if "hang" in orders and seed == orders["hang_at"]:
        _note(orders["hang"], seed)
        threading.Event().wait(3600)
    groups = [
        sample_group(
            seed, group["name"], devices=10, median_s=0.5 + group.get("questions_per_day", 30) / 20, target=_target(scenario)
        )
        for group in scenario["groups"]
    ]
    claims = [Assertion.model_validate(each) for each in scenario.get("assertions", [])]
    result = sample_result(seed, groups, scenario="fake", about="A fake.")
    return msgspec.structs.replace(result, assertions=evaluate(result, claims))


def _target(scenario: Mapping[str, Any]) -> float:
    tasks = scenario.get("coordinator", {}).get("tasks", {})
    return float(tasks.get("math", {}).get("target_rate", 0.3))


def _note(path: str | None, seed: int) -> None:
    if path is not None:
        with Path(path).open("a") as file:
            file.write(f"{seed}\n")
