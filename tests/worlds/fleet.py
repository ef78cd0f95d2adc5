"""Small fleets for tests: a scenario as keywords, played in a temporary folder."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tools.simulate.fleet.scenario import FleetScenario
from tools.simulate.fleet.world import FleetWorld
from tools.simulate.reports.result import SimulationResult
from tools.simulate.virtual.loop import SeededLoop

T = TypeVar("T")


def in_virtual_time(work: Callable[[SeededLoop], Coroutine[Any, Any, T]], *, seed: int = 0, limit_s: float = 1e7) -> T:
    """What the work comes to on a loop of its own."""
    loop = SeededLoop(seed)
    try:
        return loop.run_until_complete(work(loop), limit_s)
    finally:
        loop.close()


def group(name: str = "laptops", **values: Any) -> dict[str, Any]:
    """A group of one fast laptop on mains that is asked twice an hour."""
    return {"name": name, "device": "laptop-nvidia-8gb", "on_mains": True, "link": "home-wifi", "questions_per_day": 48} | values


def scenario(*groups: dict[str, Any], **values: Any) -> FleetScenario:
    """A scenario of six hours."""
    tasks = {"math": {"target_rate": 0.3, "dual_lr": 0.05}}
    known = {"about": "A test.", "lasts_h": 6, "groups": list(groups) or [group()], "coordinator": {"tasks": tasks}}
    return FleetScenario.model_validate(known | values)


def played(folder: Path, *groups: dict[str, Any], **values: Any) -> tuple[SimulationResult, FleetWorld]:
    """The scenario's result and the world it was played in."""
    world = FleetWorld(scenario(*groups, **values), "test", folder)
    return world.run(), world


LINK = {"name": "own", "rtt_ms": 20, "up_mbit_per_s": 10, "down_mbit_per_s": 10}
SPEEDS = [{"model": "m", "prefill_tokens_per_s": 100, "decode": [{"rows": 1, "tokens_per_s": 10}], "training_tokens_per_s": 10}]


def link_file(folder: Path, **values: Any) -> Path:
    """own.yaml: a link."""
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump({"link": LINK | values}))
    return path


def device_file(folder: Path, **values: Any) -> Path:
    """machine.yaml: a device."""
    path = folder / "machine.yaml"
    path.write_text(yaml.safe_dump({"device": {"speeds": SPEEDS} | values}))
    return path
