"""A specification: the models, methods, phases, settings and seeds of an experiment's grid, and its evaluation.

It is a YAML file of `tools/experiments/specs`. Sources are practice groups and families by their short names, or anything that
`edge-agent learn --tasks` takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from edge.app.settings import model_file
from edge.config.agent import resolve_agent_config
from edge.config.loader import Flag, Resolved, ValueAt, dotted, resolve
from edge.config.yaml_lines import KeyPath
from edge.core.errors import ConfigError, ModelFileError, TaskFileError, UsageError
from edge.core.limits import LARGEST_SEED
from edge.tasks.practice import FAMILIES, GROUPS
from tools.experiments.questions import QUESTIONS, open_questions

SPECS = Path(__file__).parent / "specs"
HELD_OUT = tuple(f"practice:{family}" for families in GROUPS.values() for family in families)
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Scalar = bool | int | float | str
Value = Scalar | list[Scalar] | dict[str, Scalar] | None
Settings = dict[str, Value]
"""Dotted keys of the agent's configuration and their values."""
ASSIST = "learning.objective.assist_rewards"
CHOSEN = "@chosen"
"""As the value of `learning.objective.assist_rewards`: what the grid search has chosen for this model and method."""
_OF_THE_GRID = {"learning.seed": "seeds", "model.path": "models", "phases": "phases", "state_folder": "--work"}
"""Settings of the agent that every cell gets from elsewhere."""
_LAYOUTS: Mapping[str, tuple[int | None, int | None, int | None]] = {
    "": (None, None, None),
    "methods": (None, None, None),
    "over-steps": (1, None, 0),
    "paper": (None, None, 0),
    "curves": (None, None, 0),
    "forgetting": (None, None, 0),
    "training": (None, None, 0),
    "assist-rewards": (None, None, 1),
    "lambda": (1, 1, 1),
    "sensitivity": (1, 1, 1),
    "schedules": (None, None, 0),
    "rates": (1, None, 0),
    "hand-off": (None, 1, 0),
}
"""How many methods and lists of phases a table or figure can show at most, and how many varied settings exactly (None: any number)."""
_BOTH_ORDERS = ("paper", "curves", "forgetting")
"""Layouts of the main experiment, whose phases are g1-g2 and g2-g1."""


def full_source(name: str) -> str:
    """As the agent's configuration writes it: practice groups and families have short names."""
    return f"practice:{name}" if name in {*FAMILIES, *GROUPS} else name


def short_name(source: str) -> str:
    """As tables and keys call a source: a practice family or group without `practice:`, a task file without its folder and ending."""
    return Path(source.removeprefix("practice:")).name.removesuffix(".jsonl")


def model_name(model: str) -> str:
    """As tables and keys call a model: a file without its folder and ending."""
    return model.rpartition("/")[2].removesuffix(".gguf")


class SpecSection(BaseModel):
    """A frozen group of keys that refuses unknown ones."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())


class Phase(SpecSection):
    """One stretch of learning."""

    source: str = Field(min_length=1, description="A practice group or family, or another task source.")
    steps: int = Field(ge=1, le=100_000, description="Learning steps.")
    target_rate: Share = Field(0.3, description="τ.")

    @property
    def full_source(self) -> str:
        """As the agent's configuration writes it."""
        return full_source(self.source)


class Evaluate(SpecSection):
    """The evaluation after each phase, at T = 0 and with the cloud's answer to every item."""

    sources: tuple[str, ...] = Field(HELD_OUT, description="Sources whose held-out items are answered.")
    items: int = Field(150, ge=0, le=10_000, description="Held-out items of each source, always the same ones (0: nothing).")
    every: int | None = Field(None, ge=1, description="Also after each multiple of this number of steps.")
    router_items: int = Field(
        400, ge=8, le=100_000, description="Training items of the phase's source that a router is fitted to."
    )

    @field_validator("sources")
    @classmethod
    def _in_full(cls, sources: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(full_source, sources))


class Spec(SpecSection):
    """One experiment: the grid models x methods x phases x vary x seeds."""

    name: str = Field(min_length=1, pattern=r"^[a-z0-9][a-z0-9-]*$", description="As the file is called.")
    about: str = Field(min_length=1, description="One sentence: what is asked.")
    models: tuple[str, ...] = Field(("nano-edge", "nano-edge-llama"), min_length=1, description="The SLMs.")
    seeds: tuple[Annotated[int, Field(ge=0, le=LARGEST_SEED, strict=True)], ...] = Field(
        (0, 1, 2), min_length=1, description="Seeds of prompts, responses and first weights."
    )
    methods: dict[str, Settings] = Field({}, description="Settings of each method by its name (none: DA-GRPO as it is).")
    phases: dict[str, tuple[Phase, ...]] = Field(min_length=1, description="Lists of phases by name, such as g1-g2.")
    vary: dict[str, tuple[Value, ...]] = Field({}, description="Settings of which each value is tried with each of the others.")
    settings: Settings = Field({}, description="Settings of every cell.")
    evaluate: Evaluate = Field(Evaluate(), description="What is evaluated after each phase.")
    routers: tuple[str, ...] = Field((), description="Methods after whose phases a router classifier is trained, too.")
    bare: bool = Field(True, description="The models before any learning are evaluated, too.")
    table: Literal[
        "", "paper", "assist-rewards", "lambda", "schedules", "sensitivity", "rates", "methods", "over-steps", "hand-off"
    ] = Field("", description="The table that is made of the results.")
    figure: tuple[
        Literal["forgetting", "lambda", "schedules", "sensitivity", "rates", "curves", "over-steps", "training"], ...
    ] = Field((), description="The figures that are drawn of the results.")

    @property
    def ways(self) -> dict[str, Settings]:
        """The methods; a default in addition to those of a file would be merged with them."""
        return self.methods or {"da-grpo": {}}

    @model_validator(mode="after")
    def _can_be_run_and_shown(self) -> Spec:
        for path, wrong in self._mistakes():
            raise ValueAt(path, wrong)
        return self

    def _mistakes(self) -> Iterator[tuple[KeyPath, str]]:
        """Settings that cannot be run or shown by the layouts: key and reason."""
        for index, name in enumerate(self.routers):
            if name not in self.ways:
                yield ("routers", index), f"{name} is no method of this experiment; there is: {', '.join(self.ways)}"
        yield from ((("phases", name), f"{name} has no phase") for name, phases in self.phases.items() if not phases)
        yield from ((("vary", key), f"{key} has no value to try") for key, values in self.vary.items() if not values)
        layouts: list[tuple[KeyPath, str]] = [(("table",), self.table)]
        layouts += [(("figure", index), name) for index, name in enumerate(self.figure)]
        for path, layout in layouts:
            if (unmet := self._unmet(layout)) is not None:
                yield path, f"{dotted(path)}: {layout} {unmet}; table: methods shows any grid"
        lists: list[tuple[KeyPath, Sequence[Any]]] = [(("models",), self.models), (("seeds",), self.seeds)]
        lists.append((("evaluate", "sources"), self.evaluate.sources))
        lists += [(("vary", key), values) for key, values in self.vary.items()]
        for path, values in lists:
            for index, value in enumerate(values):
                if value in values[:index]:
                    yield (*path, index), f"{dotted(path)} has {value} twice"

    def _unmet(self, layout: str) -> str | None:
        """What a layout cannot show of this grid."""
        methods, phases, varied = _LAYOUTS[layout]
        if methods is not None and len(self.ways) > methods:
            return f"shows one method, and there are {len(self.ways)} ({', '.join(self.ways)})"
        if phases is not None and len(self.phases) > phases:
            return f"shows one list of phases, and there are {len(self.phases)} ({', '.join(self.phases)})"
        if varied is not None and len(self.vary) != varied:
            return f"shows {'one setting' if varied else 'nothing'} under vary, and there is {', '.join(self.vary) or 'none'}"
        if layout == "lambda" and "learning.control.dual_init" not in self.vary:
            return f"shows learning.control.dual_init under vary, and there is {', '.join(self.vary)}"
        if layout in _BOTH_ORDERS and sorted(self.phases) != ["g1-g2", "g2-g1"]:
            return f"shows the phases g1-g2 and g2-g1, and there is {', '.join(self.phases)}"
        return None

    @property
    def sources(self) -> dict[KeyPath, str]:
        """All sources by their keys."""
        places: dict[KeyPath, str] = {("evaluate", "sources", index): name for index, name in enumerate(self.evaluate.sources)}
        for name, phases in self.phases.items():
            places |= {("phases", name, index, "source"): phase.full_source for index, phase in enumerate(phases)}
        return places


def spec_names(folder: Path = SPECS) -> list[str]:
    """The names of all specifications."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def load_spec(name: str, folder: Path = SPECS, *, to_run: bool = False) -> Spec:
    """The specification of this name, or of this file. Raises UsageError, ConfigError with file, line and key.

    `to_run`: its models and task files must be on this machine, which tables of results do not need.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if path.is_dir():
        raise UsageError(f"{name}: is a folder, not a specification", hint="give a .yaml file in it")
    if not path.is_file():
        raise UsageError(f"{name}: no such experiment", hint=f"there is: {', '.join(spec_names(folder)) or 'none'}")
    read = _read(path)
    if read.config.name != path.stem:
        raise ConfigError(
            f"{_place(read, ('name',))}: name: is {read.config.name}, and the file is called {path.name}",
            hint="give both one name",
        )
    _require_settings(read)
    _require_sources(read, to_run=to_run)
    if to_run:
        _require_models(read)
    return read.config


def _read(path: Path) -> Resolved[Spec]:
    """The specification in a file; errors begin with the file, also where a key is missing."""
    try:
        return resolve(Spec, files=[path], example="seeds=[0]")
    except ConfigError as error:
        if str(error).startswith(str(path)):
            raise
        raise ConfigError(f"{path}: {error}", hint=error.hint) from error


def _require_settings(read: Resolved[Spec]) -> None:
    """Raises ConfigError with file and line for a setting that the agent does not have, or a value it refuses."""
    spec = read.config
    for way, own in spec.ways.items():
        for values in itertools.product(*spec.vary.values()):
            parts: tuple[tuple[KeyPath, Mapping[str, Any]], ...] = (
                (("settings",), spec.settings),
                (("methods", way), own),
                (("vary",), dict(zip(spec.vary, values, strict=True))),
            )
            for path, settings in parts:
                if taken := next((key for key in settings if key in _OF_THE_GRID), None):
                    place = _place(read, (*path, taken))
                    raise ConfigError(f"{place}: {taken} is set by {_OF_THE_GRID[taken]}", hint="say it there")
            flags = {
                key: Flag(key, value, _place(read, (*path, key))) for path, settings in parts for key, value in settings.items()
            }
            resolve_agent_config(flags=[flag for flag in flags.values() if (flag.key, flag.value) != (ASSIST, CHOSEN)])


def _require_sources(read: Resolved[Spec], *, to_run: bool) -> None:
    """Raises ConfigError with file and line for a source that cannot be opened; task files that `questions` writes are needed to run."""
    for path, source in read.config.sources.items():
        if source.startswith(f"{QUESTIONS}/") and not to_run:
            continue
        try:
            open_questions(source)
        except (UsageError, TaskFileError) as error:
            raise ConfigError(
                f"{_place(read, path)}: {dotted(path)}: {error}" + (f"; {error.hint}" if error.hint else "")
            ) from error


def _require_models(read: Resolved[Spec]) -> None:
    """Raises ConfigError with file and line for a model that is not on this machine."""
    for index, model in enumerate(read.config.models):
        try:
            model_file(model)
        except ModelFileError as error:
            place = _place(read, ("models", index))
            raise ConfigError(f"{place}: models.{index}: {error}", hint=error.hint) from error


def _place(read: Resolved[Spec], path: KeyPath) -> str:
    """`FILE:LINE` of a value or of the nearest section around it."""
    within = (dotted(path[:length]) for length in range(len(path), 0, -1))
    return next((read.origins[key] for key in within if key in read.origins), read.config.name)
