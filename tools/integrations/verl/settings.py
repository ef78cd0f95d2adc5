"""What a run on verl is held to. Knows the section `dagrpo` of the launch file and which of verl's settings the method needs; imports
nothing of verl, so that a launch file can be judged anywhere.

Everything about the coordinator, the verifiers and the sandbox is the agent's own configuration, given in `dagrpo.agent` (its sections and
keys) and `dagrpo.agent_file`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.core.errors import ConfigError
from edge.dagrpo.numbers import require_share

if TYPE_CHECKING:
    from edge.agent.rollout import RolloutSettings
    from edge.config.loader import Resolved
    from edge.config.schema import AgentConfig

TRAINER = "dagrpo"
ESTIMATOR = "dagrpo"
STATE_FILE = "dagrpo.json"
_KEYS = {"run_id", "task", "target_rate", "validate_with_cloud", "agent", "agent_file"}


@dataclass(frozen=True, slots=True)
class DagrpoSettings:
    """The section `dagrpo`. `task` is the label whose λ and ledger count at the coordinator; `target_rate` its τ; `run_id` goes into every
    call key; `planned_prompts` and `group_size` are verl's; `state_file` lies beside verl's checkpoints.
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
            run_id=_text(section, "run_id"),
            task=_text(section, "task"),
            target_rate=_rate(section),
            planned_prompts=int(config["data"]["train_batch_size"]),
            group_size=int(config["actor_rollout_ref"]["rollout"]["n"]),
            response_tokens=int(config["data"]["max_response_length"]),
            state_file=Path(str(config["trainer"]["default_local_dir"])) / STATE_FILE,
            validate_with_cloud=bool(section.get("validate_with_cloud", True)),
            agent=_mapping(section.get("agent") or {}),
            agent_file=section.get("agent_file"),
        )

    def agent_config(self) -> AgentConfig:
        """The agent's configuration that calls and verdicts are made with. Raises ConfigError, UsageError."""
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
        from edge.agent.rollout import RolloutSettings

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


def require_method(config: Any) -> None:
    """Refuse a launch file under which verl would compute something else. Raises ConfigError that names the first wrong key."""
    for key, wanted, why in _NEEDED:
        value = _at(config, key)
        if value != wanted:
            raise ConfigError(f"{key} must be {_shown(wanted)}, not {_shown(value)}: {why}")
    _require_one_update(config)


def _require_one_update(config: Any) -> None:
    prompts, mini_batch = _at(config, "data.train_batch_size"), _at(config, "actor_rollout_ref.actor.ppo_mini_batch_size")
    if prompts != mini_batch:
        key = "actor_rollout_ref.actor.ppo_mini_batch_size"
        raise ConfigError(f"{key} must be data.train_batch_size ({prompts}), not {mini_batch}: one update per rollout")
    size = _at(config, "actor_rollout_ref.rollout.n")
    if not isinstance(size, int) or size < 2:
        raise ConfigError(f"actor_rollout_ref.rollout.n must be at least 2, not {size}: a group needs a baseline")


_NEEDED: tuple[tuple[str, Any, str], ...] = (
    ("trainer.use_v1", True, "λ and c travel through the V1 trainer"),
    ("trainer.v1.trainer_mode", TRAINER, "λ is opened and closed once per step by this trainer, which is synchronous"),
    ("algorithm.adv_estimator", ESTIMATOR, "another estimator knows nothing of the cost c"),
    ("algorithm.use_kl_in_reward", False, "r is the task reward; the method has no KL"),
    ("algorithm.filter_groups.enable", False, "the assist rate counts every response, also of groups without signal"),
    ("trainer.v1.sampler.sync_refill_failed_groups", False, "prompts fetched later would belong to no open step"),
    ("reward.reward_model.enable", False, "rewards come from verifiers"),
    (
        "actor_rollout_ref.actor.loss_agg_mode",
        "seq-mean-token-sum",
        "the estimator sums log-probabilities over a response's tokens",
    ),
    ("actor_rollout_ref.actor.policy_loss.loss_mode", "gpg", "this one is the plain policy gradient, without ratio and clip"),
    ("actor_rollout_ref.actor.use_kl_loss", False, "the method has no KL"),
    ("actor_rollout_ref.actor.entropy_coeff", 0, "the method has no entropy bonus"),
    ("actor_rollout_ref.actor.ppo_epochs", 1, "one update per rollout"),
    ("actor_rollout_ref.rollout.temperature", 1.0, "log-probabilities of the update are those at temperature 1"),
    ("actor_rollout_ref.rollout.top_p", 1, "rollouts are not truncated"),
    ("actor_rollout_ref.rollout.top_k", -1, "rollouts are not truncated"),
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
        raise resolved.placed(ConfigError(f"{refused.key} {refused.told}"))


def _section(config: Any) -> Mapping[str, Any]:
    section: Mapping[str, Any] | None = _at(config, "dagrpo")
    if section is None:
        raise ConfigError("the section dagrpo is missing", hint="start from a file of tools/integrations/verl/config")
    unknown = sorted(set(section) - _KEYS)
    if unknown:
        raise ConfigError(f"dagrpo.{unknown[0]}: unknown key", hint=f"known: {', '.join(sorted(_KEYS))}")
    return section


def _at(config: Any, dotted: str) -> Any:
    value = config
    for part in dotted.split("."):
        value = value.get(part) if hasattr(value, "get") else None
    return value


def _text(section: Mapping[str, Any], key: str) -> str:
    value = section.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"dagrpo.{key} must be a text, not {_shown(value)}")
    return value


def _rate(section: Mapping[str, Any]) -> float:
    try:
        return require_share("dagrpo.target_rate", section.get("target_rate"))  # type: ignore[arg-type]
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(
            "dagrpo.agent must be a section of edge-agent's settings, e.g. {coordinator: {address: 127.0.0.1:7420}}"
        )
    plain: dict[str, Any] = _plain(value)
    return plain


def _plain(value: Any) -> Any:
    """The same data in dicts and lists, whatever reads the launch file."""
    if isinstance(value, Mapping):
        return {str(key): _plain(below) for key, below in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(below) for below in value]
    return value


def _shown(value: Any) -> str:
    return "absent" if value is None else repr(value)
