"""The settings of a run on verl: the section `dagrpo` of the launch file. Imports nothing of verl, so that a launch file can be checked
anywhere. Which of verl's own settings the method needs is in `method`.

Everything about the coordinator, the verifiers and the sandbox is the agent's own configuration, given in `dagrpo.agent` (its sections and
keys) and `dagrpo.agent_file`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from edge.core.errors import ConfigError

if TYPE_CHECKING:
    from edge.config.loader import Resolved
    from edge.config.schema import AgentConfig
    from edge.evaluation.judging import RolloutSettings

TRAINER = "dagrpo"
ESTIMATOR = "dagrpo"
STATE_FILE = "dagrpo.json"
_Text = Annotated[str, StringConstraints(pattern=r"\S")]


class _Section(BaseModel):
    """As the launch file has it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    run_id: _Text
    task: _Text
    target_rate: float = Field(ge=0.0, le=1.0, allow_inf_nan=False)
    validate_with_cloud: bool = True
    agent: dict[str, Any] | None = None
    agent_file: _Text | None = None


@dataclass(frozen=True, slots=True)
class DagrpoSettings:
    """The section `dagrpo`. `task` is the label whose λ and ledger count at the coordinator; `target_rate` its τ; `run_id` goes into every
    call key; `planned_prompts` and `group_size` are verl's; `state_file` is next to verl's checkpoints.
    """

    run_id: str
    task: str
    target_rate: float
    planned_prompts: int
    group_size: int
    response_tokens: int
    state_file: Path
    validate_with_cloud: bool
    agent: Mapping[str, Any]
    agent_file: str | None

    @classmethod
    def of(cls, config: Any) -> DagrpoSettings:
        """From verl's whole configuration. Raises ConfigError with one line."""
        section = _section(config)
        return cls(
            planned_prompts=int(config["data"]["train_batch_size"]),
            group_size=int(config["actor_rollout_ref"]["rollout"]["n"]),
            response_tokens=int(config["data"]["max_response_length"]),
            state_file=Path(str(config["trainer"]["default_local_dir"])) / STATE_FILE,
            **{**section.model_dump(), "agent": section.agent or {}},
        )

    def agent_config(self) -> AgentConfig:
        """The agent's configuration for calls and scores. Raises ConfigError, UsageError."""
        from edge.config.loader import Flag, dotted, leaves, resolve
        from edge.config.schema import AgentConfig

        files = [Path(self.agent_file).expanduser()] if self.agent_file else []
        given = [(dotted(path), value) for path, value in leaves(self.agent) if path]
        flags = [Flag(key, value, f"dagrpo.agent.{key}") for key, value in given]
        resolved = resolve(AgentConfig, files=files, flags=flags)
        _require_usable(resolved.config)
        _require_held(resolved)
        return resolved.config

    def rollout_settings(self, config: AgentConfig) -> RolloutSettings:
        """How one response is judged: a group of one, whose call is the same whichever response of its prompt asks."""
        from edge.evaluation.judging import RolloutSettings

        coordinator = config.coordinator
        return RolloutSettings(
            run_id=self.run_id,
            seed=0,
            group_size=1,
            temperature=1.0,
            max_tokens=self.response_tokens,
            prompt_form="full",
            cloud_prompt_form="full" if coordinator.prompt_form == "auto" else coordinator.prompt_form,
            max_output_tokens=coordinator.max_output_tokens,
            model_alias=coordinator.model_alias,
        )


def _require_usable(config: AgentConfig) -> None:
    """Settings of the agent that cannot hold here are refused, not ignored."""
    coordinator, privacy = config.coordinator, config.privacy
    if coordinator.address is None:
        raise ConfigError(
            "dagrpo.agent.coordinator.address is missing: no coordinator is started here",
            hint="start one with edge-coordinator serve and set it to HOST:PORT",
        )
    if coordinator.hint_chars:
        raise ConfigError(
            "coordinator.hint_chars must be 0: the responses of a group are judged apart and must make the same call"
        )
    if privacy.terms or privacy.terms_file or privacy.never_send:
        raise ConfigError(
            "privacy.terms, terms_file and never_send do not hold here: questions of the training data are sent as they are"
        )


def _require_held(resolved: Resolved[AgentConfig]) -> None:
    """Settings of learning that verl or the coordinator has are refused, with their place, not ignored."""
    from tools.integrations.agent_keys import REFUSED_BY_VERL, not_held

    if refused := not_held(resolved.config, REFUSED_BY_VERL):
        raise resolved.placed(ConfigError(f"{refused.key} {refused.refusal}"))


def _section(config: Any) -> _Section:
    """Raises ConfigError, naming the key, for a section that is missing or cannot be meant."""
    section = config.get("dagrpo")
    if section is None:
        raise ConfigError("the section dagrpo is missing", hint="start from a file of tools/integrations/verl/config")
    try:
        return _Section.model_validate(_plain(section))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, ("dagrpo", *first["loc"])))
        known = ", ".join(_Section.model_fields)
        raise ConfigError(f"{key}: {first['msg']}, not {shown(first['input'])}", hint=f"known: {known}") from error


def _plain(value: Any) -> Any:
    """The same data in dicts and lists, for any reader of the launch file."""
    if isinstance(value, Mapping):
        return {str(key): _plain(below) for key, below in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(below) for below in value]
    return value


def shown(value: Any) -> str:
    """A value of a launch file as a refusal has it."""
    return "absent" if value is None else repr(value)
