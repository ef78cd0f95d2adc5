"""Small fleets for tests: a scenario as keywords, played in a temporary folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.simulate.fleet.scenario import Scenario
from tools.simulate.fleet.world import FleetWorld
from tools.simulate.reports.result import SimulationResult


def group(name: str = "laptops", **values: Any) -> dict[str, Any]:
    """A group of one fast laptop on mains that is asked twice an hour."""
    return {"name": name, "device": "laptop-nvidia-8gb", "on_mains": True, "link": "home-wifi", "questions_per_day": 48} | values


def scenario(*groups: dict[str, Any], **values: Any) -> Scenario:
    """A scenario of six hours."""
    tasks = {"math": {"target_rate": 0.3, "dual_lr": 0.05}}
    known = {"about": "A test.", "lasts_h": 6, "groups": list(groups) or [group()], "coordinator": {"tasks": tasks}}
    return Scenario.model_validate(known | values)


def played(folder: Path, *groups: dict[str, Any], **values: Any) -> tuple[SimulationResult, FleetWorld]:
    """The scenario's result and the world it was played in."""
    world = FleetWorld(scenario(*groups, **values), "test", folder)
    return world.run(), world
