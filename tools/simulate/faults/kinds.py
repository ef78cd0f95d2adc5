"""The kinds of fault worlds, and one play of one of them. Knows where each kind's parts are; knows nothing of seeds beyond that they are
drawn from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tools.simulate.faults import agent_checker, agent_scenario, agent_world, smaller, world
from tools.simulate.faults.outcome import Outcome
from tools.simulate.faults.planted import planted
from tools.simulate.faults.scenario import FAULTS, FEATURES, POINTS, Scenario, draw
from tools.simulate.faults.tally import Catalogue

INVARIANTS = tuple(f"I{number}" for number in range(1, 15))
EVERY_FAULT = frozenset(FAULTS) | {f"killed at {point}" for point in POINTS}


@dataclass(frozen=True, slots=True)
class Kind:
    """What exploring needs of a kind of world."""

    name: str
    scenario: type
    catalogue: Catalogue
    draw: Callable[[int], Any]
    play: Callable[[Any], Outcome]
    smaller: Callable[[Any], Iterator[Any]]
    words: Callable[[Any], list[str]]


COORDINATOR = Kind(
    "coordinator",
    Scenario,
    Catalogue(INVARIANTS, EVERY_FAULT, FEATURES),
    draw,
    world.play,
    smaller.smaller,
    smaller.words,
)
AGENTS = Kind(
    "agents",
    agent_scenario.AgentScenario,
    Catalogue(
        (*agent_checker.INVARIANTS, *INVARIANTS),
        frozenset(agent_scenario.AGENT_FAULTS) | {f"agent died at {point}" for point in agent_scenario.AGENT_POINTS},
        frozenset(agent_scenario.AGENT_FEATURES),
    ),
    agent_scenario.draw_agents,
    agent_world.play_agents,
    agent_scenario.smaller_agents,
    agent_scenario.agent_words,
)
KINDS = {kind.name: kind for kind in (COORDINATOR, AGENTS)}


def played(kind: Kind, scenario: Any, plant: str = "") -> Outcome:
    """One scenario, with the bug of this name planted for as long as it is played."""
    with planted(plant):
        return kind.play(scenario)
