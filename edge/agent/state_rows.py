"""What a state folder keeps, as values. Knows rows and their fields; knows nothing of tables or files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge.agent.events import FamilyScores, PriceRate, StepFinished, StepSeconds
from edge.agent.line import Line


@dataclass(frozen=True, slots=True)
class Position:
    """How far learning has come: steps done in all, the phase, and steps done in it."""

    steps_done: int = 0
    phase: int = 0
    phase_step: int = 0


@dataclass(frozen=True, slots=True)
class Terms:
    """What a task was last held to: τ, λ and the step that the coordinator expects next, which reports that wait come to first."""

    task: str
    target_rate: float
    dual: float
    next_step: int


@dataclass(frozen=True, slots=True)
class StepUnits:
    """Responses of a step: `help` of `total` validly asked, `uncalled` of these in groups that the cloud was not called for."""

    total: int
    help: int
    uncalled: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """A step's report to the coordinator."""

    task: str
    task_step: int
    planned_prompts: int
    group_size: int
    target_rate: float
    units: StepUnits


@dataclass(frozen=True, slots=True)
class Exam:
    """Which items of one source a version got right, by their keys."""

    adapter_version: int
    source: str
    task: str
    right: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class WentBackRow:
    """That at some time another version was made to serve: by a person, or by what found the first one worse (anchors, feedback)."""

    at: float
    from_version: int
    to_version: int
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Commit:
    """All that one finished step changes."""

    event: StepFinished
    task_step: int
    position: Position
    cursor_source: str
    cursor_seed: int
    cursor: int
    terms: Terms
    adapter_folder: str
    unreported: Report | None
    line: Line
    gate_memory: str = ""
    """What the promotion gate remembers, as JSON; "": unchanged."""
    exams: tuple[Exam, ...] = ()
    used: tuple[str, ...] = ()
    """Keys of one's own items that were learned from, each one use more."""


def step_from_json(data: dict[str, Any]) -> StepFinished:
    """A StepFinished event from its JSON object; steps of older folders have no families."""
    fields = {key: value for key, value in data.items() if key != "kind"}
    families = tuple(FamilyScores(**family) for family in fields.pop("families", ()))
    prices = tuple(PriceRate(**rate) for rate in fields.pop("prices", ()))
    return StepFinished(
        **{**fields, "seconds_by_part": StepSeconds(**fields["seconds_by_part"])}, families=families, prices=prices
    )
