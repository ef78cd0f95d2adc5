"""The parts of the configuration that an agent works with, as the agent has them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edge.app.places import bundled_models, model_file
from edge.config.schema import AgentConfig, LearningConfig

if TYPE_CHECKING:
    from edge.learning.components import AgentSettings
    from edge.learning.methods import Method
    from edge.training.promotion_rules import GateRules


NO_CLOUD = "EDGE_AGENT_NO_CLOUD"


def local_prompt_form(config: AgentConfig) -> str:
    """How the SLM is spoken to: bundled models carry the system prompt in their own template; "auto" asks the loaded model."""
    bundled = model_file(config.model.path).parent == bundled_models()
    return "compact" if bundled and config.model.prompt_form == "auto" else config.model.prompt_form


def agent_settings(config: AgentConfig, run_id: str) -> AgentSettings:
    """The parts of the configuration that the agent itself works with."""
    from edge.answering.draft import AnswerSettings
    from edge.budget.daily import DailyLimits
    from edge.evaluation.judging import RolloutSettings
    from edge.learning.components import AgentSettings

    learning, coordinator, serve = config.learning, config.coordinator, config.serve
    cloud_form, method = cloud_prompt_form(config), learning_method(learning)
    rollout = RolloutSettings(
        run_id=run_id,
        seed=learning.seed,
        group_size=learning.group_size,
        temperature=learning.temperature,
        max_tokens=learning.max_tokens,
        prompt_form=local_prompt_form(config),
        cloud_prompt_form=cloud_form,
        max_output_tokens=coordinator.max_output_tokens,
        model_alias=coordinator.model_alias,
        skip_unanimous_calls=learning.unanimous_calls == "skip",
        may_ask=method.may_ask,
        hint_chars=coordinator.hint_chars,
        price_levels=tuple(learning.price_levels),
        price=evaluation_price(learning),
        cloud_samples=learning.cloud_samples == "on",
    )
    answers = AnswerSettings(
        mode=config.mode,
        task=serve.task or "",
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
        own_coordinator=coordinator.address is None,
    )
    return AgentSettings(
        rollout,
        answers,
        learning.dual_init,
        method,
        coordinator.call_deadline_s,
        config.budget.dial,
        gate=gate_rules(config),
        daily_limits=DailyLimits(config.budget.learning_calls_per_day, config.budget.learning_spend_per_day_uusd),
        dial_in_loop=learning.method == "da-grpo" and learning.controller == "dial",
        recheck_every=config.gate.recheck_every,
    )


def evaluation_price(learning: LearningConfig) -> float | None:
    """The price that prompts of evaluations state; where learning states prices and none is set, the middle one."""
    if learning.price is None and learning.price_levels:
        return sorted(learning.price_levels)[len(learning.price_levels) // 2]
    return learning.price


def learning_method(learning: LearningConfig) -> Method:
    """The method as the loop has it."""
    from edge.dagrpo.advantages import AdvantageScale
    from edge.learning.methods import DaGrpo, EdgeOnly, FixedReward, Gapg, Grpo, Gvpo

    assist = FixedReward(learning.assist_reward, learning.assist_rewards)
    made: dict[str, Method] = {
        "da-grpo": DaGrpo(AdvantageScale(learning.advantage_scale)),
        "edge-only": EdgeOnly(),
        "grpo": Grpo(assist),
        "gvpo": Gvpo(assist, learning.gvpo_beta),
        "gapg": Gapg(assist, learning.seed),
    }
    return made[learning.method]


def gate_rules(config: AgentConfig) -> GateRules | None:
    """The promotion gate's rules, None where every step's adapter serves."""
    from edge.training.promotion_rules import GateRules

    gate = config.gate
    if gate.enabled is False:
        return None
    return GateRules(
        every=gate.every,
        anchors_per_task=gate.anchors,
        max_drop=gate.max_drop,
        rate_band=gate.rate_band,
        rate_window=gate.rate_window,
        max_refusals=gate.max_refusals,
        keep=gate.keep,
    )


def cloud_prompt_form(config: AgentConfig) -> str:
    """How the cloud LLM is spoken to: the bundled one reads bare questions, every other one a worded prompt."""
    if config.coordinator.prompt_form != "auto":
        return config.coordinator.prompt_form
    bundled = config.coordinator.address is None and config.coordinator.embedded.upstream == "bundled"
    return "compact" if bundled else "full"


def switched_off(config: AgentConfig) -> str:
    """Why the cloud may not be asked at all, or ""."""
    if os.environ.get(NO_CLOUD, "") not in ("", "0"):
        return f"the cloud is switched off by {NO_CLOUD}"
    return "mode local-only" if config.mode == "local-only" else ""
