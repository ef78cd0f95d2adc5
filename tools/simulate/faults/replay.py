"""A scenario in a file, to be played again exactly. Knows JSON and the kinds of worlds; knows nothing of how they are played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from edge.core.errors import UsageError
from tools.simulate.faults.kinds import KINDS, Kind

FORMAT = 1


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As it stands in the file. `plant`: the bug that is planted, "" for none; `violates`: the invariants that were, when it was
    written."""

    format: int
    kind: str
    violates: list[str]
    plant: str
    scenario: msgspec.Raw

    @property
    def world(self) -> Kind:
        """The kind of world. Raises UsageError for an unknown one."""
        if self.kind not in KINDS:
            raise UsageError(f"{self.kind!r} is no kind of world", hint=f"one of {', '.join(KINDS)}")
        return KINDS[self.kind]


def write_replay(path: Path, kind: Kind, scenario: Any, violates: frozenset[str], plant: str) -> None:
    """Write a scenario. Raises UsageError for a place that cannot be written."""
    text = msgspec.json.format(msgspec.json.encode(scenario), indent=1)
    replay = Replay(FORMAT, kind.name, sorted(violates), plant, msgspec.Raw(text))
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(replay), indent=1) + b"\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}", hint="choose another file with --write") from error


def read_replay(path: Path) -> tuple[Replay, Any]:
    """What a file says, and its scenario. Raises UsageError for one that cannot be read or is none."""
    try:
        replay = msgspec.json.decode(path.read_bytes(), type=Replay)
        if replay.format != FORMAT:
            raise UsageError(f"{path}: format {replay.format}, this program reads {FORMAT}", hint="explore its seed again")
        return replay, msgspec.json.decode(replay.scenario, type=replay.world.scenario)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", hint="explore writes such files") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: no scenario to be played again: {error}", hint="explore writes such files") from error
