"""Which runs a sweep is made of.

A path goes through the scenario's keys, and through its groups by their names: `groups.laptops.questions_per_day`, with `*` for all of
them. A run's name ends in a hash of everything that its result depends on, so that a finished result is never taken for another one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from edge.core.errors import UsageError
from tools.simulate.fleet.scenario import FleetScenario
from tools.simulate.reports.result import FORMAT

_ROOT = Path(__file__).resolve().parents[3]
_PLAYED_BY = ("edge", "coordinator", "tools/simulate")
_EXAMPLE = "--vary groups.laptops.questions_per_day=10,30,60"
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class Variation:
    """One key of the scenario, by its path, and the values it takes in turn."""

    path: str
    values: tuple[Any, ...]

    @classmethod
    def of(cls, text: str) -> Variation:
        """From `path=value,value`; values are read as YAML. Raises UsageError."""
        path, separator, values = text.partition("=")
        if not separator or not path.strip() or not values.strip():
            raise UsageError(f"--vary {text} names no key with values", hint=_EXAMPLE)
        try:
            read = yaml.safe_load(f"[{values}]")
        except yaml.YAMLError:
            raise UsageError(f"--vary {text}: the values cannot be read", hint=_EXAMPLE) from None
        if len({_canonical(value) for value in read}) < len(read):
            raise UsageError(f"--vary {text} has a value twice", hint="give each value once")
        return cls(path.strip(), tuple(read))


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One run: the scenario with `settings` (path to value) in it, and its seed. `ingredients`: what else its result depends on."""

    settings: Mapping[str, Any]
    scenario: Mapping[str, Any]
    seed: int
    ingredients: str = ""

    @property
    def label(self) -> str:
        """For people: questions_per_day=10 seed=1."""
        words = [f"{name}={value}" for name, value in zip(short_names(list(self.settings)), self.settings.values(), strict=True)]
        return " ".join([*words, f"seed={self.seed}"])

    @property
    def file_name(self) -> str:
        """Of its result: told apart by people by its beginning, and by its hash from every other run."""
        known = _canonical([FORMAT, self.scenario, self.seed, self.ingredients])
        words = re.sub(r"[^A-Za-z0-9=._-]+", "_", self.label)[:_LONGEST_NAME]
        return f"{words}-{hashlib.blake2b(known.encode(), digest_size=6).hexdigest()}.json"


def short_names(paths: Sequence[str]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    return [_shortest_end(path, [other for other in paths if other != path]) for path in paths]


def _shortest_end(path: str, others: Sequence[str]) -> str:
    parts = path.split(".")
    for length in range(1, len(parts)):
        end = ".".join(parts[-length:])
        if not any(other == end or other.endswith(f".{end}") for other in others):
            return end
    return path


def runs_of(scenario: Mapping[str, Any], variations: Sequence[Variation], seeds: int) -> list[SweepRun]:
    """Every combination with every seed, beginning at the scenario's own. Raises UsageError for a path that cannot be."""
    paths = [variation.path for variation in variations]
    if len(set(paths)) < len(paths):
        raise UsageError("--vary names the same key twice", hint="give all of its values at once")
    first = scenario.get("seed", 1)
    if "seed" in paths or not isinstance(first, int):
        raise UsageError("seed is varied with --seeds", hint="--seeds 3")
    combinations = [dict(zip(paths, values, strict=True)) for values in product(*(variation.values for variation in variations))]
    return [
        SweepRun(settings, _changed(scenario, settings), first + number) for settings in combinations for number in range(seeds)
    ]


def _changed(scenario: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = copy.deepcopy(dict(scenario))
    for path, value in settings.items():
        _put(changed, path.split("."), value, path)
    return changed


def _put(at: Any, parts: Sequence[str], value: Any, path: str) -> None:
    part, further = parts[0], parts[1:]
    if isinstance(at, list):
        if not further:
            raise UsageError(f"{path} names a whole entry of a list", hint=_EXAMPLE)
        for entry in _entries(at, part, path):
            _put(entry, further, value, path)
    elif not isinstance(at, dict):
        raise UsageError(f"{path}: there is nothing under {part!r}'s place in the scenario", hint=_EXAMPLE)
    elif not further:
        at[part] = copy.deepcopy(value)
    else:
        if at.get(part) is None:
            at[part] = {}
        _put(at[part], further, value, path)


def _entries(at: Sequence[Any], part: str, path: str) -> list[Any]:
    """The entries of a list that a part of a path names: by `name`, by number, or all."""
    if part == "*":
        return list(at)
    if part.isdigit() and int(part) < len(at):
        return [at[int(part)]]
    names = [entry.get("name") for entry in at if isinstance(entry, dict)]
    found = [entry for entry in at if isinstance(entry, dict) and entry.get("name") == part]
    if not found:
        known = ", ".join(str(name) for name in names if name) or f"numbers from 0 to {len(at) - 1}"
        raise UsageError(f"{path}: nothing is called {part!r}", hint=f"there are: {known}")
    return found


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def ingredients_of(scenario: FleetScenario) -> str:
    """Equal texts give equal results for this scenario and a seed.

    Raises UsageError, ConfigError for a device or link that cannot be had.
    """
    return f"{[group.hardware() for group in scenario.groups]!r} {program()}"


@cache
def program() -> str:
    """A digest of the source of everything that plays a run."""
    digest = hashlib.blake2b(digest_size=8)
    for package in _PLAYED_BY:
        for path in sorted((_ROOT / package).rglob("*.py")):
            digest.update(f"{path.relative_to(_ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
