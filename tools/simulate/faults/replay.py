"""A scenario in a file, to be played again exactly."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tools.simulate.faults.scenario import Scenario
from tools.simulate.reports.places import put_json, read_json

FORMAT = 2


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As it stands in the file. `plant`: the bug that is planted, "" for none; `violates`: the invariants that were, when it was
    written."""

    format: int
    violates: list[str]
    plant: str
    scenario: Scenario


def write_replay(path: Path, scenario: Scenario, violates: frozenset[str], plant: str) -> None:
    """Write a scenario. Raises EdgeError for a place that cannot be written."""
    put_json(Replay(FORMAT, sorted(violates), plant, scenario), path)


def read_replay(path: Path) -> Replay:
    """What a file says. Raises UsageError for one that cannot be read or is none."""
    return read_json(path, Replay, FORMAT, hint="explore writes such files")
