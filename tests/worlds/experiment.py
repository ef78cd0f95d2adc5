"""Results of experiments that were never run: drawn from a seed, in the form of a cell's result."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.experiments.cells import Cell
from tools.experiments.result import FORM, result_file, write_result


def made_evaluation(step: int, phase: int, source: str, items: int, rng: random.Random, router: bool = False) -> dict[str, Any]:
    """One evaluation: the cloud is nearly always right, the local model in six of ten; items it fails on have higher log-odds."""
    forced = [rng.random() < 0.6 for _ in range(items)]
    cloud = [rng.random() < 0.98 for _ in range(items)]
    help_odds = [round(rng.gauss(-2.0 if right else 1.0, 1.5), 1) for right in forced]
    asked = [odds > 0.0 for odds in help_odds]
    joint = [theirs if asks else ours for asks, ours, theirs in zip(asked, forced, cloud, strict=True)]
    own = [right and not asks for asks, right in zip(asked, forced, strict=True)]
    body: dict[str, Any] = {
        "step": step, "phase": phase, "source": source, "items": items, "asked": bits(asked), "own": bits(own),
        "forced": bits(forced), "cloud": bits(cloud), "joint": bits(joint), "format": "1" * items, "help": help_odds, "tokens": 60.0,
    }  # fmt: skip
    if router:
        body["router"] = [round(min(1.0, max(0.0, 0.5 + odds / 6)), 3) for odds in help_odds]
        body["router_fit"] = {"threshold": 0.5, "auc": 0.8, "asked": 0.3, "fitted": 300}
    return body


def evaluation(source: str, forced: str, *, step: int = 100, phase: int = 1, **values: Any) -> dict[str, Any]:
    """One evaluation by hand: by default nothing is asked, and the cloud is always right."""
    items = len(forced)
    usual = {"asked": "0" * items, "own": forced, "forced": forced, "cloud": "1" * items, "joint": forced, "format": "1" * items}
    return {
        "step": step,
        "phase": phase,
        "source": source,
        "items": items,
        "help": [0.0] * items,
        "tokens": 9.0,
        **usual,
        **values,
    }


def made_result(cell: Cell, **changes: Any) -> dict[str, Any]:
    """A whole result of a cell."""
    rng = random.Random(cell.key)
    steps = cell.steps
    targets = [phase.target_rate for phase in cell.phases for _ in range(phase.steps)]
    evaluations, done = [], 0
    for number, phase in enumerate(cell.phases, 1):
        done += phase.steps
        sources = cell.evaluate.sources if cell.evaluate.items else ()
        evaluations += [made_evaluation(done, number, source, cell.evaluate.items, rng, cell.router) for source in sources]
    if not cell.phases:
        evaluations = [made_evaluation(0, 0, source, cell.evaluate.items, rng) for source in cell.evaluate.sources]
    training = {
        "steps": steps, "prompts": 8 * steps, "responses": 64 * steps, "help_units": 19 * steps, "billed_calls": 5 * steps,
        "cloud_tokens": 900 * steps, "spend_uusd": 200 * steps, "response_rate": 0.3, "billed_rate": 0.6, "seconds": 2.5 * steps,
    }  # fmt: skip
    return {
        "form": FORM, "key": cell.key, "cell": cell.to_json(), "commits": ["0123456789ab"],
        "machine": {"cpu": "A processor", "cores": 2, "memory_mib": 24000},
        "threads": {"engine": 1, "torch": 1, "coordinator": 1},
        "settings": {
            "learning": {
                "assist_reward": cell.settings.get("learning.objective.assist_reward", 0.4),
                "updates_per_rollout": cell.settings.get("learning.optimiser.updates_per_rollout"),
            },
            "adapter": {},
        },
        "cost": {
            "processes": 1, "wall_s": 2.5 * steps + 90, "cpu_agent_s": 2.0 * steps, "cpu_programs_s": 10.0,
            "cpu_coordinator_s": 30.0, "peak_agent_mib": 900, "peak_coordinator_mib": 210, "looks_s": 80.0, "training": training,
        },
        "series": {
            "dual": [round(0.5 + 0.001 * rng.gauss(0, 1), 4) for _ in range(steps)],
            "assist": [round(min(1.0, max(0.0, target + rng.gauss(0, 0.05))), 4) for target in targets],
            "joint": [0.8] * steps, "kept": [0.7] * steps, "reward": [0.8] * steps, "format": [1] * steps,
            "entropy": [0.1] * steps, "calls": [5] * steps,
        },
        "held_out": evaluations,
        **changes,
    }  # fmt: skip


def make_results(cells: Iterable[Cell], folder: Path) -> None:
    """Write a result for each cell."""
    for cell in cells:
        write_result(result_file(cell, folder), made_result(cell))


def bits(values: Iterable[bool]) -> str:
    """As results write truth values."""
    return "".join("01"[value] for value in values)
