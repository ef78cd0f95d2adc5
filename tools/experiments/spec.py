"""An experiment as data: which methods, phases, seeds and settings make its grid, and what is looked at. Knows every key of a specification
and its range; knows nothing of how a cell is run or drawn.

A specification is a YAML file of `tools/experiments/specs`. Sources are practice groups and families by their short names, or anything
that `edge-agent learn --tasks` takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edge.config.loader import ValueAt, resolve
from edge.config.schema import Price
from edge.core.errors import UsageError
from edge.tasks.practice import FAMILIES, GROUPS

SPECS = Path(__file__).parent / "specs"
HELD_OUT = tuple(f"practice:{family}" for families in GROUPS.values() for family in families)
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Scalar = bool | int | float | str
Value = Scalar | list[Scalar] | dict[str, Scalar] | None
Settings = dict[str, Value]
"""Dotted keys of the agent's configuration and their values."""
CHOSEN = "@chosen"
"""As the value of `learning.assist_rewards`: what the grid search has chosen for this model and method."""


class Section(BaseModel):
    """A frozen group of keys that refuses unknown ones."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())


class Phase(Section):
    """One stretch of learning."""

    source: str = Field(min_length=1, description="A practice group or family, or another task source.")
    steps: int = Field(ge=1, le=100_000, description="Learning steps.")
    target_rate: Share = Field(0.3, description="τ.")

    @property
    def full_source(self) -> str:
        """As the agent's configuration writes it."""
        return f"practice:{self.source}" if self.source in {*FAMILIES, *GROUPS} else self.source


class Evaluate(Section):
    """What is looked at after each phase, at T = 0 and with the cloud's answer to every item."""

    sources: tuple[str, ...] = Field(HELD_OUT, description="Sources whose held-out items are answered.")
    items: int = Field(150, ge=0, le=10_000, description="Held-out items of each source, always the same ones (0: nothing).")
    every: int | None = Field(None, ge=1, description="Also after each multiple of so many steps.")
    prices: tuple[Price, ...] = Field(
        (), description="Prices of help that the prompts tell, a look at each (none: one look, as learning.price says)."
    )
    router_items: int = Field(
        400, ge=8, le=100_000, description="Training items of the phase's source that a router is fitted to."
    )

    @property
    def places(self) -> tuple[tuple[str, str, float | None], ...]:
        """What is looked at: name in the results, source, and the price that its prompts tell (None: as configured)."""
        if not self.prices:
            return tuple((source, source, None) for source in self.sources)
        return tuple((priced(source, price), source, price) for source in self.sources for price in self.prices)


def priced(source: str, price: float) -> str:
    """How results name a source whose prompts tell a price."""
    return f"{source}@{price:g}"


class Spec(Section):
    """One experiment: the grid models x methods x phases x vary x seeds."""

    name: str = Field(min_length=1, pattern=r"^[a-z0-9][a-z0-9-]*$", description="As the file is called.")
    about: str = Field(min_length=1, description="One sentence: what is asked.")
    models: tuple[str, ...] = Field(("nano-edge", "nano-edge-llama"), min_length=1, description="The SLMs.")
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1, description="Seeds of prompts, responses and first weights.")
    methods: dict[str, Settings] = Field({}, description="Settings of each method by its name (none: DA-GRPO as it is).")
    phases: dict[str, tuple[Phase, ...]] = Field(min_length=1, description="Lists of phases by name, such as g1-g2.")
    vary: dict[str, tuple[Value, ...]] = Field({}, description="Settings of which each value is tried with each of the others.")
    settings: Settings = Field({}, description="Settings of every cell.")
    evaluate: Evaluate = Field(Evaluate(), description="What is looked at after each phase.")
    routers: tuple[str, ...] = Field((), description="Methods after whose phases a router classifier is trained, too.")
    bare: bool = Field(True, description="The models before any learning are looked at, too.")
    table: Literal["", "paper", "assist-rewards", "lambda", "schedules", "sensitivity", "rates", "methods", "prices"] = Field(
        "", description="The table that is made of the results."
    )
    figure: tuple[Literal["forgetting", "lambda", "schedules", "sensitivity", "rates", "curves"], ...] = Field(
        (), description="The figures that are drawn of the results."
    )

    @property
    def ways(self) -> dict[str, Settings]:
        """The methods; a default beside those of a file would be merged with them."""
        return self.methods or {"da-grpo": {}}

    @model_validator(mode="after")
    def _routers_are_methods(self) -> Spec:
        for index, name in enumerate(self.routers):
            if name not in self.ways:
                raise ValueAt(("routers", index), f"{name} is no method of this experiment; there is: {', '.join(self.ways)}")
        for name, phases in self.phases.items():
            if not phases:
                raise ValueAt(("phases", name), f"{name} has no phase")
        for key, values in self.vary.items():
            if not values:
                raise ValueAt(("vary", key), f"{key} has no value to try")
        return self


def spec_names(folder: Path = SPECS) -> list[str]:
    """The names of all specifications."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def load_spec(name: str, folder: Path = SPECS) -> Spec:
    """The specification of this name, or of this file. Raises UsageError, ConfigError with file, line and key."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        raise UsageError(f"{name}: no such experiment", hint=f"there is: {', '.join(spec_names(folder)) or 'none'}")
    return resolve(Spec, files=[path], example="seeds=[0]").config
