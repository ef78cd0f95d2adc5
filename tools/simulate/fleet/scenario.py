"""A scenario as data: which devices ask what over which links, what the cloud and the coordinator are like, what happens when, and
what must hold.

Calendar: the local clock is UTC, and a scenario begins on Monday 2024-01-01 at `starts_at_h`; windows of budgets and dates of
`target_rate_schedule` refer to it. `python -m tools.simulate.fleet.scenario` prints the schema as the README has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from coordinator.config import (
    ANY_TASK,
    BudgetsConfig,
    Count,
    FleetConfig,
    RatesConfig,
    ServiceConfig,
    TaskConfig,
)
from edge.config.loader import Flag, ValueAt, resolve
from edge.config.reference import keys_of, terms
from edge.config.section import NotNegative, Positive, Rate, Section
from tools.simulate.fleet.hardware import LinkModel, SimulatedSpeed
from tools.simulate.fleet.mind import Finite, Mind, Nature, Rates
from tools.simulate.fleet.profiles import DEVICES, LINKS, from_folder, load_device, load_link, read_yaml
from tools.simulate.reports.assertions import EACH, Assertion

DAY_S, HOUR_S = 86400.0, 3600.0
MONDAY_MIDNIGHT = 1_704_067_200.0
"""Seconds since the epoch at which the local clock of a scenario shows Monday 2024-01-01, 0 h."""
Hour = Annotated[float, Field(ge=0.0, le=24.0, allow_inf_nan=False)]
HARDWARE = {"device": DEVICES, "link": LINKS}
"""Keys of a group that name a file, and where the known ones are."""
HOURS: Mapping[str, tuple[float, ...]] = {
    "flat": (1.0,) * 24,
    "office": (0, 0, 0, 0, 0, 0, 0.2, 0.6, 2, 3, 3, 2.4, 1.6, 2.6, 3, 2.8, 2.4, 1.6, 0.6, 0.3, 0.2, 0.1, 0, 0),
    "evening": (0.4, 0.1, 0, 0, 0, 0, 0.3, 0.8, 0.6, 0.4, 0.4, 0.5, 0.8, 0.6, 0.5, 0.6, 0.8, 1.4, 2.2, 2.8, 3, 3, 2.2, 1.2),
}
"""Named daily profiles: how questions are shared among the hours of the local clock."""


class LearningPart(Section):
    """How a device learns."""

    steps_per_day: int = Field(12, ge=1, le=100_000, description="Most learning steps of a device a day.")
    prompts_per_step: int = Field(4, ge=1, le=1024, description="Prompts of a step.")
    group_size: int = Field(8, ge=2, le=1024, description="G: responses to each prompt.")
    from_hour: Hour = Field(22.0, description="Hour of the local clock from which it may learn.")
    until_hour: Hour = Field(7.0, description="Hour until which it may; before from_hour: of the next day; the same: all day.")
    at_once: bool = Field(
        False, description="All devices take their steps at the same times; false: each at times of its own within the hours."
    )


class DifficultyPart(Section):
    """Difficulties of questions: normal, truncated to [0, 1] (drawn again beyond)."""

    mean: Rate = Field(0.5, description="Mean before the truncation, on day 0.")
    spread: NotNegative = Field(0.2, description="Standard deviation before the truncation.")
    drift_per_day: Finite = Field(0.0, description="How far the mean moves a day, evenly; it stays in [0, 1].")

    def mean_at(self, virtual_s: float) -> float:
        """The mean at a time of the scenario."""
        return min(1.0, max(0.0, self.mean + self.drift_per_day * virtual_s / DAY_S))


class TokensPart(Section):
    """Lengths in tokens: medians, and the standard deviation of the logarithm."""

    prompt: int = Field(120, ge=1, description="Tokens of a prompt, the least where prompt_further is set.")
    prompt_further: NotNegative = Field(
        0.0, description="Mean of a prompt's further tokens, exponential; completions are longer in the same proportion."
    )
    local: int = Field(150, ge=1, description="Median tokens of a local response.")
    local_spread: NotNegative = Field(0.3, description="Sigma of the logarithm of a local response's tokens.")
    cloud: int = Field(250, ge=1, description="Median tokens of a cloud completion.")
    cloud_spread: NotNegative = Field(0.3, description="Sigma of the logarithm of a cloud completion's tokens.")
    asking_share: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.3, description="Share of a response's tokens that one which asks has said before its request."
    )


class DemandPart(Section):
    """How much more or less is asked from a time on."""

    from_h: NotNegative = Field(description="Hours after the beginning of the scenario; it holds until the next one begins.")
    factor: NotNegative = Field(description="Times questions_per_day.")


class GroupPart(Section):
    """Like devices, each with one person who asks it."""

    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", description="Name of the group.")
    devices: int = Field(1, ge=1, le=100_000, description="How many devices.")
    device: str = Field(description="What they are: a file of devices/ without its ending, or a path from the scenario's folder.")
    model: str = Field("", description="Which of the device file's models runs on them, as 1.5B-Q4_K_M (empty: the first one).")
    link: str = Field(
        description="Their way to the coordinator: a file of devices/links/ without its ending, or a path from the scenario's folder."
    )
    on_mains: bool = Field(
        False, description="Plugged in all the time, whatever battery they have; else it is charged at midnight."
    )
    questions_per_day: NotNegative = Field(30.0, description="Mean questions of a person a day; they come as a Poisson process.")
    by_hour: Literal["flat", "office", "evening"] | Annotated[tuple[NotNegative, ...], Field(min_length=24, max_length=24)] = (
        Field(
            "flat", description="How they are shared among the 24 hours of the local clock: flat, office, evening or 24 numbers."
        )
    )
    by_weekday: Annotated[tuple[NotNegative, ...], Field(min_length=7, max_length=7)] = Field(
        (1.0,) * 7, description="Times questions_per_day, Monday to Sunday."
    )
    demand: tuple[DemandPart, ...] = Field((), description="Times at which more or less begins to be asked, in order.")
    dial: Rate | None = Field(None, description="Budget dial τ of people's questions (null: as the model decides).")
    dual_unit: Literal["calls", "tokens", "spend"] = Field(
        "calls",
        description="What λ acts on (learning.control.dual_unit); with tokens or spend a budget that renews sets τ in place of the dial.",
    )
    learning: LearningPart | None = Field(None, description="How the devices learn (null: not at all).")
    mind: Mind = Field(Mind(), description="θ of the simulated model at the beginning.")
    nature: Nature = Field(Nature(), description="What learning does not change.")
    rates: Rates = Field(Rates(), description="How fast learning moves θ.")
    difficulty: DifficultyPart = Field(DifficultyPart(), description="How hard the questions are.")
    tokens: TokensPart = Field(TokensPart(), description="How long prompts, responses and completions are.")
    task: str = Field("math", min_length=1, max_length=64, description="Task label of all their questions.")

    @property
    def hour_weights(self) -> tuple[float, ...]:
        """24 weights whose mean is 1 (all 0 where nothing is asked)."""
        weights = HOURS[self.by_hour] if isinstance(self.by_hour, str) else self.by_hour
        mean = sum(weights) / 24
        return tuple(weight / mean for weight in weights) if mean else tuple(weights)

    def demand_at(self, virtual_h: float, day: int) -> float:
        """Times questions_per_day at an hour of the scenario, on the day so many after the first Monday."""
        factors = [part.factor for part in self.demand if part.from_h <= virtual_h]
        return self.by_weekday[day % 7] * (factors[-1] if factors else 1.0)

    def hardware(self) -> tuple[SimulatedSpeed, LinkModel]:
        """What the devices and their links are able to do. Raises UsageError, ConfigError for one that is not known."""
        speed = load_device(self.device, self.model)
        return replace(speed, battery_wh=None) if self.on_mains else speed, load_link(self.link)


class CloudPart(Section):
    """The upstream LLM behind the coordinator."""

    first_token_s: NotNegative = Field(0.5, description="Median seconds to the first token; log-normal.")
    spread: NotNegative = Field(0.4, description="Sigma of its logarithm.")
    tokens_per_s: Positive = Field(80.0, description="Tokens a second of one call.")
    slots: int = Field(64, ge=1, le=4096, description="Calls under way at once; further ones wait at the coordinator.")
    max_queue: int = Field(1024, ge=0, description="Calls that may wait for a slot; beyond them calls are OVERLOADED.")
    price_in_uusd_per_mtok: Count = Field(150_000, description="Price of a million input tokens, micro-USD.")
    price_out_uusd_per_mtok: Count = Field(600_000, description="Price of a million output tokens, micro-USD.")
    error_rate: Rate = Field(0.0, description="Share of calls that the upstream refuses with an error, executing nothing.")
    deadline_s: Positive = Field(60.0, description="Seconds a call may take at the upstream, all in all.")


class CoordinatorPart(Section):
    """Sections of the coordinator's own configuration, by its own names (`edge-coordinator config keys` describes them)."""

    tasks: dict[str, TaskConfig] = Field(
        {},
        description="What task labels are held to: target_rate, dual_lr, dual_scope and so on; controller is paper unless it is given.",
    )
    budgets: BudgetsConfig = Field(BudgetsConfig(), description="Hard limits by scope.")
    fleet: FleetConfig = Field(FleetConfig(), description="What devices that share the coordinator owe each other.")
    rates: RatesConfig = Field(RatesConfig(), description="How fast calls may be started.")
    service: ServiceConfig = Field(
        ServiceConfig(watch_heartbeat_s=3600.0, sweep_interval_s=30.0),
        description="Limits of the service; unlike the coordinator's own, heartbeats come once an hour and holds are swept every 30 s.",
    )

    @model_validator(mode="after")
    def _devices_without_a_help_bias(self) -> CoordinatorPart:
        """Simulated devices hold no rate in their rollouts, so λ alone does."""
        for name, task in (self.tasks or {ANY_TASK: TaskConfig()}).items():
            self.tasks[name] = task if task.controller else task.model_copy(update={"controller": "paper"})
        return self

    def task(self, label: str) -> TaskConfig:
        """What a task label is held to."""
        return self.tasks.get(label) or self.tasks.get(ANY_TASK) or TaskConfig()


class EventPart(Section):
    """Something that happens at a time: exactly one of the four."""

    at_h: NotNegative = Field(description="Hours after the beginning of the scenario.")
    cloud_down_for_s: Positive | None = Field(None, description="The upstream refuses every call for so many seconds.")
    coordinator_down_for_s: Positive | None = Field(
        None, description="The coordinator is killed, and started again after so many seconds."
    )
    coordinator: dict[str, Any] | None = Field(
        None, description="Merged into the coordinator's configuration, which is then read again as SIGHUP does."
    )
    links_down_for_s: Positive | None = Field(None, description="Links carry nothing for so many seconds.")
    groups: tuple[str, ...] = Field((), description="Groups whose links are down (none named: all); only with links_down_for_s.")

    @model_validator(mode="after")
    def _one_thing_happens(self) -> EventPart:
        actions = ("cloud_down_for_s", "coordinator_down_for_s", "coordinator", "links_down_for_s")
        if sum(getattr(self, action) is not None for action in actions) != 1:
            raise ValueError(f"needs exactly one of {', '.join(actions)}")
        if self.groups and self.links_down_for_s is None:
            raise ValueError("has groups, which belong to links_down_for_s")
        return self


class FleetScenario(Section):
    """What `python -m tools.simulate run` plays."""

    about: str = Field(min_length=1, description="What it shows, in one sentence.")
    seed: int = Field(1, ge=0, description="All chance is drawn from it: the same seed gives the same result.")
    lasts_h: Positive = Field(24.0, description="Hours simulated.")
    warm_up_h: NotNegative = Field(0.0, description='Hours that "after warm-up" leaves out.')
    starts_at_h: Hour = Field(0.0, description="What the local clock shows at the beginning, in hours.")
    report_every_s: Positive = Field(900.0, description="Seconds between two points of the curves.")
    shared_news_every_s: Positive = Field(
        900.0,
        description="Seconds between two rounds in which all devices are told what others spent of a shared budget, and of a shared λ (the"
        " service itself: 1); the ledger holds to it at once, and each answer tells the device that asked.",
    )
    groups: tuple[GroupPart, ...] = Field(description="The devices, group by group; at least one.")
    cloud: CloudPart = Field(CloudPart(), description="The upstream LLM.")
    coordinator: CoordinatorPart = Field(CoordinatorPart(), description="The coordinator's configuration.")
    events: tuple[EventPart, ...] = Field((), description="What happens meanwhile.")
    assertions: tuple[Assertion, ...] = Field((), description="What must hold at the end.")

    @model_validator(mode="after")
    def _groups_have_own_names(self) -> FleetScenario:
        if not self.groups:
            raise ValueAt(("groups",), "groups must name at least one group")
        names = [group.name for group in self.groups]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise ValueAt(("groups", place, "name"), f"groups has {name} twice")
        for place, event in enumerate(self.events):
            for name in event.groups:
                if name not in names:
                    raise ValueAt(("events", place, "groups"), f"events.{place}.groups names {name}; known: {', '.join(names)}")
        for place, claim in enumerate(self.assertions):
            if claim.group not in ("", EACH, *names):
                told = f"assertions.{place}.group: no group is called {claim.group}; known: {', '.join(names)}"
                raise ValueAt(("assertions", place, "group"), told)
        return self

    @model_validator(mode="after")
    def _configurations_can_be_read(self) -> FleetScenario:
        for place, event in enumerate(self.events):
            if event.coordinator is None:
                continue
            try:
                CoordinatorPart.model_validate(merged(self.coordinator.model_dump(mode="json"), event.coordinator))
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                key = ".".join(str(part) for part in first["loc"])
                raise ValueAt(("events", place, "coordinator"), f"events.{place}.coordinator.{key}: {first['msg']}") from error
        return self

    @model_validator(mode="after")
    def _times_fit(self) -> FleetScenario:
        if self.warm_up_h >= self.lasts_h:
            raise ValueAt(("warm_up_h",), f"warm_up_h must be less than lasts_h ({self.lasts_h:g}), not {self.warm_up_h:g}")
        for place, event in enumerate(self.events):
            if event.at_h > self.lasts_h:
                raise ValueAt(("events", place, "at_h"), f"events.{place}.at_h must be at most lasts_h ({self.lasts_h:g})")
        return self

    @property
    def lasts_s(self) -> float:
        """Virtual seconds simulated."""
        return self.lasts_h * HOUR_S

    @property
    def warm_up_s(self) -> float:
        """Virtual seconds that "after warm-up" leaves out."""
        return self.warm_up_h * HOUR_S

    @property
    def devices(self) -> int:
        """All devices together."""
        return sum(group.devices for group in self.groups)

    def configurations(self) -> list[tuple[float, CoordinatorPart]]:
        """(virtual seconds, the coordinator's configuration from then on), in the order of time; the first one at 0."""
        found, data = [(0.0, self.coordinator)], self.coordinator.model_dump(mode="json")
        for event in sorted(self.events, key=lambda event: event.at_h):
            if event.coordinator is not None:
                data = merged(data, event.coordinator)
                found.append((event.at_h * HOUR_S, CoordinatorPart.model_validate(data)))
        return found

    def calendar_at(self, virtual_s: float) -> float:
        """What the calendar shows, in seconds since the epoch."""
        return MONDAY_MIDNIGHT + self.starts_at_h * HOUR_S + virtual_s


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both together, key by key; lists as a whole."""
    both = dict(below)
    for key, value in above.items():
        under = both.get(key)
        both[key] = merged(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
    return both


def load_scenario(path: Path | str, sets: Sequence[str] = ()) -> FleetScenario:
    """Read a scenario file; `sets` are `key=value` texts that win over it. Paths of devices and links that the file names begin at its own
    folder, those of `sets` at the working directory.

    Raises ConfigError with one line: file and line, the key, and what is allowed.
    """
    found = read_yaml(FleetScenario, Path(path), sets, example="lasts_h=24")
    groups = []
    for place, group in enumerate(found.config.groups):
        of_file = [key for key in HARDWARE if not found.origins.get(f"groups.{place}.{key}", "--").startswith("--")]
        paths = {key: from_folder(getattr(group, key), Path(path).parent, HARDWARE[key]) for key in of_file}
        groups.append(group.model_copy(update=paths))
    return found.config.model_copy(update={"groups": tuple(groups)})


def scenario_of(values: Mapping[str, Any]) -> FleetScenario:
    """A scenario of values that `--vary` may have changed since they were read. Raises ConfigError, in one line."""
    return resolve(FleetScenario, flags=[Flag(key, value, f"--vary {key}") for key, value in values.items()]).config


def schema_table() -> str:
    """A row for each key, with what it may be and what it means, as the README has it; the coordinator's own sections are described
    elsewhere."""
    rows = ["| key | may be | meaning |", "|---|---|---|"]
    for key in keys_of(FleetScenario):
        if not key.path.startswith("coordinator."):
            cells = ("section" if key.has_keys else terms(key), key.description)
            rows.append(" | ".join((f"| `{key.path}`", *(" ".join(cell.replace("|", "/").split()) for cell in cells))) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(schema_table())
