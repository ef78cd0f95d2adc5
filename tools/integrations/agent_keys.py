"""Which of the agent's settings apply where another engine trains.

A setting that an engine does not follow is refused by name unless it has its default, never ignored: a run must match its configuration.
Settings not named here apply, or belong to parts of the agent that do not learn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pydantic import BaseModel

from edge.config.schema import AgentConfig

_OTHER_METHODS = "it belongs to methods that edge-agent learn runs and this engine does not"
_OF_RUN = "it is for edge-agent run; learning waits for nobody here"
_COORDINATORS = "it is the coordinator's; set it in tasks of the coordinator's configuration"
_COORDINATORS_LIMITS = "the ledger is the coordinator's; set limits under budgets in the coordinator's configuration"
_PER_DAY = "days are not counted here; set budget.calls_limit or budget.spend_limit_uusd"

REFUSED_BY_BOTH: Mapping[str, str] = {
    "learning.method": "edge-agent learn runs the other methods",
    "learning.objective.assist_reward": _OTHER_METHODS,
    "learning.objective.assist_rewards": _OTHER_METHODS,
    "learning.objective.ratio_clip": _OTHER_METHODS,
    "learning.objective.gvpo_beta": _OTHER_METHODS,
    "learning.objective.advantage_scale": "divided by a deviation, λ is not in units of reward; edge-agent learn can compute it",
    "learning.step_tokens": "every step samples all of its prompts here; edge-agent learn can leave some out",
    "learning.temperature": "that is what the estimator assumes",
    "learning.objective.options": "answers are sampled here; edge-agent learn can learn the right option by its likelihood",
    "learning.questions": "questions are taken as they come here; edge-agent learn can draw them by what they teach",
    "learning.control.help_bias_rule": "responses are sampled without a help bias here; edge-agent learn has one",
    "learning.control.step_dual": "λ is the coordinator's here; edge-agent learn can estimate it",
    "learning.control.dual_unit": "λ acts on calls here; edge-agent learn can have it act on tokens or money",
    "learning.optimiser.live_group_scaling": "every step has the learning rate of the schedule here; edge-agent learn can shorten it",
    "learning.optimiser.collapse": "there are no versions to go back to here; edge-agent learn has them",
    "learning.imitation.demonstrations": "only what the engine sampled is learned from; edge-agent learn imitates given answers, too",
    "learning.imitation.imitation_rate": "nothing is imitated here",
    "learning.imitation.skills": "nothing is imitated here that could cost them; edge-agent learn keeps them up",
    "learning.objective.cloud_samples": "only what the engine sampled is learned from; edge-agent learn takes cloud answers, too",
    "learning.memory.memory_probe": "nothing is tried before the first step here",
    "learning.enabled": _OF_RUN,
    "learning.when": _OF_RUN,
    "routing.policy": "the response itself asks",
    "budget.dial": "nobody is answered here",
}

REFUSED_BY_TRL: Mapping[str, str] = {
    **REFUSED_BY_BOTH,
    "learning.objective.importance_cap": "nothing to correct without vLLM; with it set trainer.options.vllm_importance_sampling_clip_max",
    "learning.context_tokens": "a prompt may be as long as the model reads",
    "learning.memory.micro_batch_tokens": "set trainer.rows_per_pass",
    "learning.torch_threads": "set OMP_NUM_THREADS",
    "learning.device": "accelerate chooses the device",
    "learning.memory.gradient_checkpointing": "set trainer.gradient_checkpointing",
    "budget.learning_calls_per_day": _PER_DAY,
    "budget.learning_spend_per_day_uusd": _PER_DAY,
}

REFUSED_BY_VERL: Mapping[str, str] = {
    **REFUSED_BY_BOTH,
    "learning.group_size": "set actor_rollout_ref.rollout.n",
    "learning.prompts_per_step": "set data.train_batch_size",
    "learning.optimiser.learning_rate": "set actor_rollout_ref.actor.optim.lr",
    "learning.optimiser.weight_decay": "set actor_rollout_ref.actor.optim.weight_decay",
    "learning.optimiser.max_grad_norm": "set actor_rollout_ref.actor.optim.clip_grad",
    "learning.max_tokens": "set data.max_response_length",
    "learning.context_tokens": "set data.max_prompt_length",
    "learning.seed": "the order of prompts is made by tools.integrations.verl.prepare --seed",
    "learning.objective.importance_cap": "set algorithm.rollout_correction.rollout_is_threshold",
    "learning.memory.micro_batch_tokens": "set actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "learning.torch_threads": "Ray gives its workers their threads",
    "learning.device": "verl chooses the device",
    "learning.memory.gradient_checkpointing": "set actor_rollout_ref.model.enable_gradient_checkpointing",
    "learning.objective.unanimous_calls": "a worker sees one response of a group, not whether all of them ask",
    "learning.control.dual_lr": _COORDINATORS,
    "learning.control.dual_init": _COORDINATORS,
    "learning.control.dual_scope": _COORDINATORS,
    "learning.control.dual_proportional": _COORDINATORS,
    "learning.control.dual_window": _COORDINATORS,
    "learning.control.dual_ceiling": _COORDINATORS,
    "budget.calls_limit": _COORDINATORS_LIMITS,
    "budget.tokens_limit": _COORDINATORS_LIMITS,
    "budget.spend_limit_uusd": _COORDINATORS_LIMITS,
    "budget.period": _COORDINATORS_LIMITS,
    "budget.learning_calls_per_day": _COORDINATORS_LIMITS,
    "budget.learning_spend_per_day_uusd": _COORDINATORS_LIMITS,
    "mode": "whether to ask is the model's decision; answers are not served here",
}


@dataclass(frozen=True, slots=True)
class NotHeld:
    """A setting of the agent that does not apply: its dotted key, and the required value with the reason, in words."""

    key: str
    refusal: str


def not_held(config: AgentConfig, refused: Mapping[str, str]) -> NotHeld | None:
    """The first of the `refused` keys (key -> why) that has another value than its default; None where all have theirs."""
    usual = AgentConfig()
    for key, why in refused.items():
        value, default = _at(config, key), _at(usual, key)
        if value != default:
            return NotHeld(key, f"must be {_wanted(value, default)}: {why}")
    return None


def _at(config: AgentConfig, key: str) -> Any:
    return reduce(getattr, key.split("."), config)


def _wanted(value: Any, default: Any) -> str:
    return "left as it is" if isinstance(default, BaseModel) else f"{_shown(default)}, not {_shown(value)}"


def _shown(value: Any) -> str:
    """As YAML has it."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
