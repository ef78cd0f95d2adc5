"""The configuration as the agent has it: where things are on this machine, its device profile, what is private, and the settings."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from edge.config.device_profile import KEPT_NAME, NONE, Pick, known_profiles, pick_profile
from edge.config.schema import AgentConfig, LearningConfig
from edge.core.environment import state_folder_at, why_no_cloud
from edge.core.errors import ConfigError, ModelFileError, StateError
from edge.core.formatting import PRACTICE_CLOUD
from edge.core.limits import OWN_LABEL
from edge.core.machine import machine_facts
from edge.state.reader import MODEL, StateReader

if TYPE_CHECKING:
    from edge.budget.limits import BudgetLimits
    from edge.cloud.place import CloudPlace
    from edge.learning.components import AgentSettings
    from edge.learning.methods import Method
    from edge.privacy.registry import PrivacyRegistry
    from edge.state.folder import StateFolder


def state_folder(config: AgentConfig) -> Path:
    """The state folder this configuration names, or the platform's."""
    return state_folder_at(config.state_folder)


def bundled_models() -> Path:
    """The folder of the models that come with the package."""
    from edge.models.catalogue import bundled_folder

    return bundled_folder()


def model_file(name: str) -> Path:
    """The model file, or the MLX folder, that a name or path means: bundled, pulled, or by path. Raises ModelFileError."""
    from edge.models.catalogue import find_model

    return find_model(name)


def check_model_of(state: StateReader, name: str) -> None:
    """Raises StateError where the folder's adapters were trained with another model, which they do not fit."""
    known = state.meta(MODEL)
    if known is None or not state.lineage().latest:
        return
    try:
        is_another = model_file(known) != model_file(name)
    except ModelFileError:  # it was moved or renamed
        return
    if is_another:
        raise StateError(
            f"{state.folder}: its adapters were trained with {known}",
            hint=f"give --model {known}, or another folder with --state",
        )


def keep_model(state: StateFolder, name: str) -> None:
    """Keep with a state folder which model it is used with. Raises what `check_model_of` does."""
    check_model_of(state, name)
    path = Path(name).expanduser()
    state.set_meta(MODEL, str(path.absolute()) if path.exists() else name)


def adapter_version(folder: Path) -> int | None:
    """The version of an adapter by its folder: `step-000012/adapter`, or the one that a run left next to its summary; None: not known."""
    digits = folder.resolve().parent.name.removeprefix("step-")
    if digits.isdecimal():
        return int(digits)
    try:
        version = json.loads((folder.parent / "summary.json").read_text(encoding="utf-8"))["adapter_version"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, int) and version > 0 else None


def latest_adapters(config: AgentConfig) -> tuple[Path, ...]:
    """The folders of the adapters in the state folder, newest first; () before the first step."""
    return tuple(
        sorted(
            (state_folder(config) / "checkpoints").glob("step-*/adapter"),
            key=lambda path: adapter_version(path) or 0,
            reverse=True,
        )
    )


def serving_adapters(config: AgentConfig) -> tuple[Path, ...]:
    """The folder of the adapter that serves and of those it was trained from, newest first; () where the bare model serves.

    Raises StateError.
    """
    from edge.state.reader import serving_versions

    folder = state_folder(config)
    folders = (folder / "checkpoints" / f"step-{version:06d}" / "adapter" for version in serving_versions(folder))
    return tuple(folder for folder in folders if folder.is_dir())


PROFILE_SWITCH = "EDGE_AGENT_DEVICE_PROFILE"
"""`none` in this variable keeps every command from picking one by itself."""


def own_profile(config: AgentConfig) -> Pick:
    """The profile to use where the configuration names none."""
    if os.environ.get(PROFILE_SWITCH) == NONE:
        return Pick()
    places = (kept_profile(config), kept_profile(AgentConfig()))
    return pick_profile(places, known_profiles(), machine_facts)


def kept_profile(config: AgentConfig) -> Path:
    """Where `edge-agent doctor --keep-profile` puts what it measured: in the state folder, where every run on it finds it.

    A run on another state folder finds the one in the platform's folder.
    """
    return state_folder(config) / KEPT_NAME


def build_registry(config: AgentConfig) -> PrivacyRegistry:
    """What this person holds to be private. Raises ConfigError for a file of terms that cannot be used, or a country without telephones."""
    from edge.privacy.registry import PrivacyRegistry

    privacy = config.privacy
    return PrivacyRegistry(
        enabled=privacy.enabled,
        kinds=privacy.kinds,
        terms=(*privacy.terms, *_terms_of(privacy.terms_file)),
        never_send=privacy.never_send,
        region=_phone_region(privacy.region),
    )


def with_hint_cut(settings: AgentSettings, registry: PrivacyRegistry) -> AgentSettings:
    """The settings with hints that this registry cuts."""
    cut = registry.cut
    return replace(settings, rollout=replace(settings.rollout, hint_cut=cut), answers=replace(settings.answers, hint_cut=cut))


def _terms_of(file: str | None) -> list[str]:
    """The private terms of a file, one a line, without comments."""
    from edge.core.limits import checked_term

    if file is None:
        return []
    path = Path(file).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"privacy.terms_file: {path} cannot be read: {error}") from error
    terms = []
    for number, line in enumerate(lines, 1):
        if term := line.partition("#")[0].strip():
            try:
                terms.append(checked_term(term))
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: {error}") from error
    return terms


def _phone_region(region: str | None) -> str | None:
    """The country whose telephone numbers are known without a prefix: the configured one, else the system's where it has one."""
    import locale

    from phonenumbers import SUPPORTED_REGIONS

    if region is not None and region not in SUPPORTED_REGIONS:
        raise ConfigError(f"privacy.region: {region} is no country with telephone numbers", hint="write two letters, as DE")
    name = locale.setlocale(locale.LC_CTYPE) if region is None else ""
    found = region or name.partition(".")[0].partition("_")[2]
    return found if found in SUPPORTED_REGIONS else None


def local_prompt_form(config: AgentConfig) -> str:
    """How the SLM is spoken to: bundled models carry the system prompt in their own template; "auto" asks the loaded model."""
    bundled = model_file(config.model.path).parent == bundled_models()
    return "compact" if bundled and config.model.prompt_form == "auto" else config.model.prompt_form


def skills(config: AgentConfig) -> list[str]:
    """What learning given answers must not cost: what a bundled model was made for, or what any instruct model knows."""
    if config.learning.imitation.skills is not None:
        return config.learning.imitation.skills
    return ["practice:group1", "practice:group2"] if local_prompt_form(config) == "compact" else ["general"]


def responses_are_guided(config: AgentConfig) -> bool:
    """Whether responses are held to their form; "auto" is for every model but the bundled ones, which write their format by themselves."""
    wanted = config.model.responses
    return local_prompt_form(config) != "compact" if wanted == "auto" else wanted == "guided"


def agent_settings(config: AgentConfig, run_id: str) -> AgentSettings:
    """The parts of the configuration that the agent itself works with."""
    from edge.answering.draft import AnswerSettings
    from edge.budget.daily import DailyLimits
    from edge.evaluation.judging import RolloutSettings
    from edge.learning.components import AgentSettings

    learning, coordinator, serve = config.learning, config.coordinator, config.serve
    cloud_form, method = cloud_prompt_form(config), learning_method(learning)
    has_bias = learning.method == "da-grpo" and learning.control.controller == "dial"
    rollout = RolloutSettings(
        run_id=run_id,
        seed=learning.seed,
        group_size=learning.group_size,
        temperature=learning.temperature,
        max_tokens=learning.max_tokens,
        step_tokens=learning.step_tokens,
        prompt_form=local_prompt_form(config),
        cloud_prompt_form=cloud_form,
        max_output_tokens=coordinator.max_output_tokens,
        model_alias=coordinator.model_alias,
        skip_unanimous_calls=learning.objective.unanimous_calls == "skip",
        may_ask=method.may_ask,
        guided=None if (config.model.responses, local_prompt_form(config)) == ("auto", "auto") else responses_are_guided(config),
        hint_chars=coordinator.hint_chars,
        cloud_samples=learning.objective.cloud_samples == "on",
        given_options=learning.objective.options == "given",
        certainty=config.model.certainty if learning.control.controller != "paper" else 0.0,
    )
    answers = AnswerSettings(
        mode=config.mode,
        task=serve.task or OWN_LABEL,
        temperature=serve.temperature,
        max_tokens=serve.max_tokens,
        max_steps=serve.max_steps,
        prompt_form=local_prompt_form(config),
        cloud_prompt_form=cloud_form,
        max_output_tokens=coordinator.max_output_tokens,
        cloud_deadline_s=serve.cloud_deadline_s,
        model_alias=coordinator.model_alias,
        switched_off=switched_off(config),
        hint_chars=coordinator.hint_chars,
        cloud=cloud_place(config),
        guided=responses_are_guided(config) and local_prompt_form(config) != "compact",
        certainty=rollout.certainty,
    )
    return AgentSettings(
        rollout,
        answers,
        learning.control.dual_init,
        method,
        coordinator.call_deadline_s,
        config.budget.dial,
        gate=None if config.gate.enabled is False else config.gate,
        daily_limits=DailyLimits(config.budget.learning_calls_per_day, config.budget.learning_spend_per_day_uusd),
        help_bias_rule=learning.control.help_bias_rule if has_bias else None,
        estimates_dual=learning.method == "da-grpo" and learning.control.step_dual == "estimated",
        dual_unit=learning.control.dual_unit,
        limits=configured_limits(config),
        cloud_name=cloud_name(config),
        learning_rate=learning.optimiser.learning_rate,
        live_group_scaling=learning.optimiser.live_group_scaling,
        watches_collapse=learning.optimiser.collapse == "go-back",
    )


def learning_method(learning: LearningConfig) -> Method:
    """The method as the loop has it."""
    from edge.dagrpo.advantages import AdvantageScale
    from edge.learning.methods import DaGrpo, EdgeOnly, FixedReward, Gapg, Grpo, Gvpo

    assist = FixedReward(learning.objective.assist_reward, learning.objective.assist_rewards)
    made: dict[str, Method] = {
        "da-grpo": DaGrpo(AdvantageScale(learning.objective.advantage_scale)),
        "edge-only": EdgeOnly(),
        "grpo": Grpo(assist),
        "gvpo": Gvpo(assist, learning.objective.gvpo_beta),
        "gapg": Gapg(assist, learning.seed),
    }
    return made[learning.method]


def configured_limits(config: AgentConfig) -> BudgetLimits:
    """The hard limits of the configuration."""
    from edge.budget.limits import BudgetLimits

    budget = config.budget
    return BudgetLimits(budget.calls_limit, budget.tokens_limit, budget.spend_limit_uusd, budget.period)


def cloud_name(config: AgentConfig) -> str:
    """What the cloud is called where money is shown: the bundled one charges nothing; "" for every other."""
    bundled = config.coordinator.address is None and config.coordinator.embedded.upstream == "bundled"
    return PRACTICE_CLOUD if bundled else ""


_ANTHROPIC = "https://api.anthropic.com/v1"


def cloud_place(config: AgentConfig) -> CloudPlace:
    """Where the cloud is asked. Of an address only host and path are shown, no credentials or query."""
    from edge.cloud.place import CloudPlace

    if config.coordinator.address is not None:
        return CloudPlace(own=False, name=f"the coordinator at {config.coordinator.address}")
    embedded = config.coordinator.embedded
    if embedded.upstream in ("bundled", "recorded"):
        return CloudPlace(own=True, name=embedded.model if embedded.upstream == "bundled" else str(embedded.path))
    address = urlsplit((embedded.base_url or _ANTHROPIC).strip())
    name = address._replace(netloc=address.netloc.rpartition("@")[2], query="", fragment="").geturl()
    key = f"${embedded.api_key_env}" if embedded.api_key_env else embedded.api_key or ""
    return CloudPlace(own=True, name=name, key=key.replace("env:", "$", 1))


def cloud_prompt_form(config: AgentConfig) -> str:
    """How the cloud LLM is spoken to: the bundled one reads bare questions, every other one a worded prompt."""
    if config.coordinator.prompt_form != "auto":
        return config.coordinator.prompt_form
    bundled = config.coordinator.address is None and config.coordinator.embedded.upstream == "bundled"
    return "compact" if bundled else "full"


def switched_off(config: AgentConfig) -> str:
    """Why the cloud may not be asked at all, or ""."""
    return why_no_cloud(config.mode)
