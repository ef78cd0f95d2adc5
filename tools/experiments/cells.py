"""Cells: the runs that experiments are made of, how a specification becomes cells, and when two cells are one.

A cell is one complete configuration with its phases, seed and evaluation. Settings equal to the agent's defaults are left out, so that
equal cells of several experiments have the same key and are run once.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from edge.config.agent import resolve_agent_config
from edge.config.loader import Flag, Resolved
from edge.config.schema import AgentConfig
from tools.experiments.spec import ASSIST, CHOSEN, Evaluate, Phase, Scalar, Settings, Spec, model_name, short_name

METHOD = "learning.method"
ChosenRewards = Mapping[str, Mapping[str, Mapping[str, float]]]
"""The assistance reward by model, method and task label."""
_ONE_THREAD: Settings = {"engine.threads": 1, "learning.torch_threads": 1, "coordinator.embedded.threads": 1}
_MEASURED: Settings = {"gate.enabled": False, "device_profile": "none", **_ONE_THREAD}
_HASH_DIGITS = 8


@dataclass(frozen=True)
class Cell:
    """One run. `phases` (): nothing is learned, the bare model is evaluated. `router`: a classifier is trained after each phase."""

    model: str
    seed: int
    phases: tuple[Phase, ...]
    settings: Mapping[str, Any]
    evaluate: Evaluate
    router: bool = False

    @property
    def method(self) -> str:
        """How it learns."""
        return str(self.settings.get(METHOD, AgentConfig().learning.method)) if self.phases else "bare"

    @property
    def steps(self) -> int:
        """Learning steps over all phases."""
        return sum(phase.steps for phase in self.phases)

    @cached_property
    def key(self) -> str:
        """A readable name with a hash of all that the results depend on."""
        digest = hashlib.blake2b(json.dumps(self.to_json(), sort_keys=True).encode(), digest_size=_HASH_DIGITS // 2)
        parts = [model_name(self.model), _way(self.phases), self.method, f"s{self.seed}"]
        return f"{'.'.join(part for part in parts if part)}-{digest.hexdigest()}"

    def to_json(self) -> dict[str, Any]:
        """The cell as plain data without default values: a new key changes no cell that does not use it."""
        return {
            "model": self.model,
            "seed": self.seed,
            "phases": [phase.model_dump(mode="json", exclude_defaults=True) for phase in self.phases],
            "settings": dict(sorted((recorded_name(key), value) for key, value in self.settings.items())),
            "evaluate": self.evaluate.model_dump(mode="json", exclude_defaults=True),
            **({"router": True} if self.router else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cell:
        """The inverse of `to_json`."""
        phases = tuple(Phase(**phase) for phase in data["phases"])
        settings = {_key_of(name): value for name, value in data["settings"].items()}
        return cls(data["model"], data["seed"], phases, settings, Evaluate(**data["evaluate"]), data.get("router", False))

    def resolved(self, state_folder: str) -> Resolved[AgentConfig]:
        """The agent's configuration. Raises ConfigError for settings it does not have."""
        flags = [Flag(key, value, key) for key, value in {**_MEASURED, **self.settings}.items()]
        phases = [{"source": phase.full_source, "steps": phase.steps, "target_rate": phase.target_rate} for phase in self.phases]
        flags += [Flag("model.path", self.model, "models"), Flag("learning.seed", self.seed, "seeds")]
        flags += [Flag("state_folder", state_folder, "state_folder")]
        if phases:
            flags.append(Flag("phases", phases, "phases"))
        return resolve_agent_config(flags=flags)


# -- how results name settings: those of learning without their section, so that results outlive a change of sections -------------------


def recorded_name(key: str) -> str:
    """`learning.dual_init` of `learning.control.dual_init`."""
    section, _, rest = key.removeprefix("learning.").partition(".")
    is_learning = key.startswith("learning.") and section in section_of().values()
    return f"learning.{rest}" if is_learning else key


def _key_of(name: str) -> str:
    """The inverse of `recorded_name`."""
    own, _, _ = name.removeprefix("learning.").partition(".")
    is_learning = name.startswith("learning.") and own in section_of()
    return f"learning.{section_of()[own]}.{name.removeprefix('learning.')}" if is_learning else name


@cache
def section_of() -> Mapping[str, str]:
    """The section of `learning` by the names of its settings, of which no two are alike."""
    sections = AgentConfig().learning.model_dump(exclude={"when"})
    return {name: section for section, values in sections.items() if isinstance(values, dict) for name in values}


@dataclass(frozen=True)
class Placed:
    """A cell in its experiment's grid: the names of its method and phases there, and the varied values."""

    cell: Cell
    method: str
    phases: str
    varied: Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """The cells of an experiment. `waits_for`: choices that are needed to name the remaining cells."""

    spec: Spec
    placed: tuple[Placed, ...]
    bare: tuple[Cell, ...]
    waits_for: tuple[str, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        """Each cell once, seed by seed, those without learning first."""
        by_seed = sorted((one.cell for one in self.placed), key=lambda cell: self.spec.seeds.index(cell.seed))
        return list({cell.key: cell for cell in [*self.bare, *by_seed]}.values())


def expand(spec: Spec, chosen: ChosenRewards) -> Grid:
    """All cells of an experiment. Raises ConfigError, naming the experiment, for settings that the agent does not have."""
    placed: list[Placed] = []
    waits: dict[str, None] = {}
    for model, (phases_name, phases), (method, settings), varied, seed in _points(spec):
        merged = {**spec.settings, **settings, **varied}
        try:
            merged = _with_chosen(merged, model, phases, chosen)
        except KeyError as missing:
            waits[str(missing.args[0])] = None
            continue
        cell = Cell(model, seed, phases, _that_matter(spec, merged), spec.evaluate, method in spec.routers)
        placed.append(Placed(cell, method, phases_name, varied))
    return Grid(spec, tuple(placed), tuple(_bare_cells(spec)), tuple(waits))


def shared(grids: Sequence[Grid]) -> list[Cell]:
    """The cells of several experiments, each once, those without learning first."""
    cells = {cell.key: cell for grid in grids for cell in grid.cells}
    return sorted(cells.values(), key=lambda cell: bool(cell.phases))


def _points(spec: Spec) -> Iterator[tuple[str, tuple[str, tuple[Phase, ...]], tuple[str, Settings], Settings, int]]:
    varied = [dict(zip(spec.vary, values, strict=True)) for values in itertools.product(*spec.vary.values())]
    return itertools.product(spec.models, spec.phases.items(), spec.ways.items(), varied, spec.seeds)


def _bare_cells(spec: Spec) -> Iterator[Cell]:
    """The models before any learning, with the same cloud LLM; answers are drawn at T = 0, so one seed is enough."""
    if spec.bare and spec.evaluate.items:
        evaluate = spec.evaluate.model_copy(update={"every": None})
        asked = {key: value for key, value in spec.settings.items() if key.startswith("coordinator.")}
        yield from (Cell(model, 0, (), _that_matter(spec, asked), evaluate) for model in spec.models)


def _with_chosen(settings: Settings, model: str, phases: Sequence[Phase], chosen: ChosenRewards) -> Settings:
    """The settings with the assistance rewards of this model, method and these phases. Raises KeyError: which one is missing."""
    if settings.get(ASSIST) != CHOSEN:
        return settings
    method = str(settings.get(METHOD))
    rewards: dict[str, Scalar] = {}
    for source in dict.fromkeys(phase.source for phase in phases):
        try:
            rewards[source] = chosen[model][method][source]
        except KeyError:
            raise KeyError(f"the assistance reward of {method} for {model} on {source}") from None
    return {**settings, ASSIST: rewards}


def _that_matter(spec: Spec, settings: Settings) -> Settings:
    """The settings that differ from the defaults."""
    flags = [Flag(key, value, f"experiment {spec.name}") for key, value in settings.items()]
    given = resolve_agent_config(flags=flags).config.model_dump(mode="json")
    return {key: _at(given, key) for key in settings if _at(given, key) != _at(_usual(), key)}


@cache
def _usual() -> Mapping[str, Any]:
    """The settings of a cell without its own."""
    flags = [Flag(key, value, key) for key, value in _MEASURED.items()]
    return resolve_agent_config(flags=flags).config.model_dump(mode="json")


def _at(data: Any, key: str) -> Any:
    """The value at a dotted key; None for a name that a section by names does not have."""
    for part in key.split("."):
        data = data.get(part)
    return data


def _way(phases: Sequence[Phase]) -> str:
    """`group1-group2`, or `group1x4` for one source repeated."""
    names = [short_name(phase.source) for phase in phases]
    if len(names) > 1 and len(set(names)) == 1:
        return f"{names[0]}x{len(names)}"
    return "-".join(names)
