"""The verl settings that DA-GRPO needs, each with its reason (keys of verl 0.9.1, V1 trainer). Imports nothing of verl, so that a launch
file can be checked anywhere.

Settings named neither here nor in the two launch files are free: sizes, the optimizer and its schedule, memory, placement, what is stored
and logged. tests/unit/test_verl_adapter.py finds undecided keys of verl.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from edge.core.errors import ConfigError
from tools.integrations.verl.settings import ESTIMATOR, TRAINER, shown


class Need(NamedTuple):
    """One of verl's keys, the values under which the method is computed (the first is the one to set), and why."""

    key: str
    values: tuple[Any, ...]
    why: str


class Same(NamedTuple):
    """One of verl's keys that must have the value of another, and why."""

    key: str
    other: str
    why: str


OFF = (False, None)
UNSET = (None,)
ACTOR, ROLLOUT, CORRECTION = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm.rollout_correction"

_TRAINER_AND_REWARD = (
    Need("trainer.use_v1", (True,), "λ and c travel through the V1 trainer"),
    Need("trainer.v1.trainer_mode", (TRAINER,), "λ is opened and closed once per step by this trainer, which is synchronous"),
    Need("algorithm.adv_estimator", (ESTIMATOR,), "another estimator knows nothing of the cost c"),
    Need("algorithm.use_kl_in_reward", (False,), "r is the task reward; the method has no KL"),
    Need("algorithm.gamma", (1.0, None), "a response has one reward, on all of its tokens"),
    Need("algorithm.lam", (1.0, None), "a response has one reward, on all of its tokens"),
    Need("reward.reward_model.enable", (False,), "rewards come from verifiers"),
)

_BATCH = (
    Need("algorithm.filter_groups.enable", (False,), "the assist rate counts every response, also of groups without signal"),
    Need("algorithm.use_pf_ppo", OFF, "every response has the weight of the estimator"),
    Need("trainer.v1.sampler.sync_refill_failed_groups", (False,), "prompts fetched later would belong to no open step"),
    Need("trainer.v1.sampler.custom_sampler.path", UNSET, "a step learns from its own responses, all of them"),
    Need("data.shuffle", (False,), "prepare has put the rows into the order of training"),
    Need("data.custom_cls.path", UNSET, "the rows are those that prepare has made"),
    Need("data.filter_overlong_prompts", (True,), "a longer prompt leaves a response fewer tokens than its limit"),
    Need("skip.rollout.enable", OFF, "responses are sampled from the model that learns, not read from a file"),
    Need("skip.rollout_tq.enable", OFF, "responses are sampled from the model that learns, not read from a file"),
)

_LOSS = (
    Need(f"{ACTOR}.loss_agg_mode", ("seq-mean-token-sum",), "the estimator sums log-probabilities over a response's tokens"),
    Need(f"{ACTOR}.policy_loss.loss_mode", ("gpg",), "this one is the plain policy gradient, without ratio and clip"),
    Need(f"{ACTOR}.use_kl_loss", (False,), "the method has no KL"),
    Need(f"{ACTOR}.entropy_coeff", (0,), "the method has no entropy bonus"),
    Need("distillation.enabled", OFF, "the loss is the estimator's alone"),
    Need("actor_rollout_ref.model.mtp.enable_train", OFF, "the loss is the estimator's alone"),
)

_CORRECTION = (
    Need(f"{CORRECTION}.rollout_is", ("token", None), "a token has its own weight; null leaves the correction out"),
    Need(f"{CORRECTION}.rollout_is_batch_normalize", OFF, "a weight is the ratio itself, capped"),
    Need(f"{CORRECTION}.rollout_rs", UNSET, "no sampled token is left out of a response's log-probability"),
    Need(f"{CORRECTION}.bypass_mode", OFF, "the correction needs the trainer's own log-probabilities"),
    Need(f"{ROLLOUT}.logprobs_mode", ("processed_logprobs",), "the correction compares with what was sampled from"),
)

_UPDATES = (
    Need(f"{ACTOR}.ppo_epochs", (1,), "one update per rollout"),
    Need("trainer.v1.sync.parameter_sync_step", (1, None), "one update per rollout"),
    Need("trainer.critic_warmup", (0, None), "every step has its update"),
    Need(f"{ACTOR}.grad_clip", (1.0, None), f"this trainer does not read it; set {ACTOR}.optim.clip_grad"),
)

_SAMPLING = (
    Need(f"{ROLLOUT}.temperature", (1.0,), "log-probabilities of the update are those at temperature 1"),
    Need(f"{ROLLOUT}.top_p", (1,), "rollouts are not truncated"),
    Need(f"{ROLLOUT}.top_k", (-1,), "rollouts are not truncated"),
    Need(f"{ROLLOUT}.min_p", UNSET, "rollouts are not truncated"),
    Need(f"{ROLLOUT}.repetition_penalty", (1.0, None), "responses are sampled from the policy as it is"),
    Need(f"{ROLLOUT}.do_sample", (True,), "a group of equal responses has no signal"),
    Need(f"{ROLLOUT}.full_determinism", OFF, "with one seed for all of its requests an engine repeats a group's responses"),
    Need(f"{ROLLOUT}.ignore_eos", OFF, "a response ends where the model ends it"),
    Need(f"{ROLLOUT}.over_sample_rate", (0, None), "every response of a group counts, also the slow ones"),
    Need(f"{ROLLOUT}.multi_turn.enable", OFF, "a response is one turn, and its request for help ends it"),
    Need(
        f"{ROLLOUT}.agent.default_agent_loop", ("single_turn_agent",), "a response is one turn, and its request for help ends it"
    ),
    Need(f"{ROLLOUT}.agent.agent_loop_config_path", UNSET, "a response is one turn, and its request for help ends it"),
    Need(f"{ROLLOUT}.agent.custom_async_server.path", UNSET, "sampling is verl's own, at the settings above"),
    Need(f"{ROLLOUT}.multi_turn.tool_config_path", UNSET, "prompts offer no tools: help is the cloud's"),
    Need(f"{ROLLOUT}.multi_turn.function_tool_path", UNSET, "prompts offer no tools: help is the cloud's"),
    Need("data.tool_config_path", UNSET, "prompts offer no tools: help is the cloud's"),
    Need("data.function_tool_path", UNSET, "prompts offer no tools: help is the cloud's"),
    Need(f"{ROLLOUT}.quantization", UNSET, "responses are sampled from the model that learns"),
    Need(f"{ROLLOUT}.quantization_config_file", UNSET, "responses are sampled from the model that learns"),
    Need(f"{ROLLOUT}.enable_rollout_routing_replay", OFF, "log-probabilities of the update are the model's own"),
    Need(f"{ACTOR}.qat.enable", OFF, "the model learns at its own precision"),
    Need(f"{ACTOR}.fsdp_config.qat.enable", OFF, "the model learns at its own precision"),
    Need(f"{ROLLOUT}.qat.enable", OFF, "responses are sampled from the model that learns"),
)

NEEDS: tuple[Need, ...] = (*_TRAINER_AND_REWARD, *_BATCH, *_LOSS, *_CORRECTION, *_UPDATES, *_SAMPLING)

_LIMIT = "a cut response is recognised by its length"
SAMES: tuple[Same, ...] = (
    Same(f"{ACTOR}.ppo_mini_batch_size", "data.train_batch_size", "one update per rollout"),
    Same(f"{ACTOR}.rollout_n", f"{ROLLOUT}.n", "both are the size of a group"),
    Same(f"{ROLLOUT}.prompt_length", "data.max_prompt_length", _LIMIT),
    Same(f"{ROLLOUT}.response_length", "data.max_response_length", _LIMIT),
)


def require_method(config: Any) -> None:
    """Refuse a launch file under which verl would compute something else. Raises ConfigError that names the first wrong key."""
    for need in NEEDS:
        value = at(config, need.key)
        if value not in need.values:
            raise ConfigError(f"{need.key} must be {shown(need.values[0])}, not {shown(value)}: {need.why}")
    size = at(config, f"{ROLLOUT}.n")
    if not isinstance(size, int) or size < 2:
        raise ConfigError(f"{ROLLOUT}.n must be at least 2, not {size}: a group needs a baseline")
    for same in SAMES:
        value, other = at(config, same.key), at(config, same.other)
        if value != other:
            raise ConfigError(f"{same.key} must be {same.other} ({other}), not {shown(value)}: {same.why}")
    if at(config, f"{CORRECTION}.rollout_is") is not None:
        _require_correction(config)
    most = at(config, f"{ROLLOUT}.max_model_len")
    needed = int(at(config, "data.max_prompt_length")) + int(at(config, "data.max_response_length"))
    if most is not None and most < needed:
        raise ConfigError(f"{ROLLOUT}.max_model_len must be at least {needed} (prompt and response), not {most}: {_LIMIT}")


def _require_correction(config: Any) -> None:
    """Weights are capped, not zeroed beyond a bound, from log-probabilities that the sampler really gives."""
    cap = at(config, f"{CORRECTION}.rollout_is_threshold")
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not cap > 0:
        raise ConfigError(
            f"{CORRECTION}.rollout_is_threshold must be a positive number, not {shown(cap)}: weights are capped at it"
        )
    given = at(config, f"{ROLLOUT}.calculate_log_probs")
    if given is not True:
        raise ConfigError(
            f"{ROLLOUT}.calculate_log_probs must be True, not {shown(given)}: without it the correction is silently left out",
            hint=f"to leave it out, set {CORRECTION}.rollout_is=null",
        )


def at(config: Any, dotted: str) -> Any:
    """The value of a dotted key, None where there is none."""
    value = config
    for part in dotted.split("."):
        value = value.get(part) if hasattr(value, "get") else None
    return value
