"""A scenario in a file, to be played again exactly."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edge.core.errors import UsageError
from tools.simulate.faults.scenario import Scenario

FORMAT = 2


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As it stands in the file. `plant`: the bug that is planted, "" for none; `violates`: the invariants that were, when it was
    written."""

    format: int
    violates: list[str]
    plant: str
    scenario: Scenario


class _Head(msgspec.Struct):
    format: int


def write_replay(path: Path, scenario: Scenario, violates: frozenset[str], plant: str) -> None:
    """Write a scenario. Raises UsageError for a place that cannot be written."""
    replay = Replay(FORMAT, sorted(violates), plant, scenario)
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(replay), indent=1) + b"\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}", hint="choose another file with --write") from error


def read_replay(path: Path) -> Replay:
    """What a file says. Raises UsageError for one that cannot be read or is none."""
    try:
        text = path.read_bytes()
        found = msgspec.json.decode(text, type=_Head).format
        if found != FORMAT:
            raise UsageError(f"{path}: format {found}, this program reads {FORMAT}", hint="explore its seed again")
        return msgspec.json.decode(text, type=Replay)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", hint="explore writes such files") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: no scenario to be played again: {error}", hint="explore writes such files") from error
