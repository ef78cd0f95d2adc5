"""Which fields of trl.GRPOConfig a person may set in trainer.options. Knows names, reasons and values; knows nothing of TRL's classes.

Some fields the run sets itself (`trainer.own_fields`). Of the others each one is free or refused here, by name; one that a newer TRL
brings is refused until somebody has decided on it, and a test asks for that. Refused is what changes the estimator, what is sampled, how
many updates a generation gets or which prompts a step has, what puts texts into logs, and what would have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from edge.core.errors import UsageError
from edge.core.formatting import shown

_CONSTANT_RATE = "the learning rate is constant, see agent.learning.learning_rate"
_LOSS = "it belongs to another loss than the paper's"
_NO_KL = "the method has no KL and no reference model"
_NO_ENTROPY = "the method has no entropy bonus and leaves no token out"
_NO_CLIP = "every ratio is 1 and nothing is clipped"
_ONE_UPDATE = "one generation gets one update, see trainer.rows_per_pass"
_ORDER = "prompts come in the order of the run's steps"
_TEXTS = "prompts and responses stay out of logs"
_NO_HELD_OUT = "TRL gets no held-out items; edge-agent eval measures"
_OWN_RECORD = "the run tells its steps in events.jsonl and metrics.csv"
_NO_UPLOAD = "nothing is uploaded; trained/ is yours to upload"
_GO_ON = "the same command goes on from the run's own checkpoints"
_LAUNCHER = "it is the launcher's, see tools/integrations/trl/accelerate"
_ADAMW = "the optimiser is AdamW, see optim, adam_beta1, adam_beta2 and adam_epsilon"
_NO_EFFECT = "it would have no effect here"
_OLD_NAME = "TRL has another name for it"


def _each(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


REFUSED: Mapping[str, str] = {
    **_each(_CONSTANT_RATE, "lr_scheduler_kwargs warmup_steps"),
    **_each(_LOSS, "sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg"),
    **_each(_LOSS, "off_policy_mask_threshold label_smoothing_factor neftune_noise_alpha average_tokens_across_devices"),
    **_each("only TRL's own loss is held against the paper's by a test", "use_liger_kernel liger_kernel_config"),
    **_each(_NO_KL, "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps use_bias_correction_kl"),
    **_each(_NO_ENTROPY, "top_entropy_quantile entropy_coef use_adaptive_entropy"),
    **_each(_NO_ENTROPY, "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target"),
    **_each(_NO_CLIP, "epsilon epsilon_high delta"),
    **_each(
        "weights of tokens are bounded from above alone, see vllm_importance_sampling_clip_max",
        "vllm_importance_sampling_clip_min",
    ),
    **_each("rollouts are not constrained", "vllm_structured_outputs_regex"),
    **_each("the run has no tools", "max_tool_calling_iterations"),
    **_each(_ONE_UPDATE, "generation_batch_size steps_per_generation auto_find_batch_size"),
    **_each("the phases have their numbers of steps", "num_train_epochs"),
    **_each(
        _ORDER, "data_seed train_sampling_strategy length_column_name dataloader_drop_last dataloader_in_order ignore_data_skip"
    ),
    **_each(_TEXTS, "log_completions log_multimodal num_completions_to_print log_unique_prompts log_completions_hub_repo"),
    **_each(_NO_HELD_OUT, "eval_strategy eval_steps eval_delay per_device_eval_batch_size eval_on_start eval_do_concat_batches"),
    **_each(_NO_HELD_OUT, "eval_use_gather_object eval_accumulation_steps prediction_loss_only include_for_metrics"),
    **_each(_NO_HELD_OUT, "batch_eval_metrics bf16_full_eval fp16_full_eval num_generations_eval label_names"),
    **_each(_NO_HELD_OUT, "load_best_model_at_end metric_for_best_model greater_is_better"),
    **_each(
        _OWN_RECORD, "run_name project trackio_space_id trackio_bucket_id trackio_static_space_id include_num_input_tokens_seen"
    ),
    **_each(_NO_UPLOAD, "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision"),
    **_each(_GO_ON, "resume_from_checkpoint save_only_model enable_jit_checkpoint restore_callback_states_from_checkpoint"),
    **_each(_LAUNCHER, "accelerator_config parallelism_config fsdp fsdp_config deepspeed ddp_backend local_rank"),
    **_each("set ACCELERATE_USE_CPU=true in the environment", "use_cpu"),
    **_each(_ADAMW, "optim_args optim_target_modules"),
    **_each(_NO_EFFECT, "do_train do_eval do_predict"),
    **_each(_OLD_NAME, "use_transformers_paged vllm_importance_sampling_cap"),
}
"""Fields that are refused whatever they are set to, and why."""

FREE: Mapping[str, str] = {
    **_each("how the model is read", "model_init_kwargs trust_remote_code disable_dropout"),
    **_each("how the model's template is asked", "chat_template_kwargs"),
    **_each("AdamW's own constants and implementations, a choice", "optim adam_beta1 adam_beta2 adam_epsilon"),
    **_each("precision of products", "tf32 cast_lm_head_to_fp32"),
    **_each(
        "memory and speed", "activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing_kwargs use_cache"
    ),
    **_each("memory and speed", "torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps"),
    **_each("memory and speed", "pad_to_multiple_of cache_implementation ds3_gather_for_generation full_determinism"),
    **_each("memory and speed", "use_transformers_continuous_batching transformers_continuous_batching_config"),
    **_each("how rows are read", "dataloader_num_workers dataloader_persistent_workers dataloader_prefetch_factor"),
    **_each("how rows are read", "dataloader_multiprocessing_context"),
    **_each(
        "how processes talk", "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_timeout"
    ),
    **_each("what the libraries log of themselves", "log_level log_level_replica log_on_each_node logging_first_step"),
    **_each("what the libraries log of themselves", "logging_nan_inf_filter debug skip_memory_metrics"),
    **_each("where checkpoints lie", "save_on_each_node"),
    **_each("the sampler, of the same distribution", "use_vllm vllm_mode vllm_model_impl vllm_enable_sleep_mode"),
    **_each(
        "the sampler, of the same distribution", "vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout"
    ),
    **_each("the sampler, of the same distribution", "vllm_group_port vllm_gpu_memory_utilization vllm_tensor_parallel_size"),
    **_each("bounded by a check", "generation_kwargs router_aux_loss_coef vllm_max_model_length"),
    **_each("sampler against trainer, as on verl", "vllm_importance_sampling_correction vllm_importance_sampling_mode"),
    **_each("sampler against trainer, as on verl", "vllm_importance_sampling_clip_max"),
}
"""Fields that a person may set, and what they are; some are bounded by a check."""

VLLM_DEFAULTS: Mapping[str, Any] = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 2.0}
"""Sampler against trainer with vLLM: each token's weight, bounded, as in the project's own learner and on verl. TRL's own default drops
whole responses."""

_STOP = re.compile(r"\s*Step [1-9][0-9]*:")
_STOPS = {"stop", "include_stop_str_in_output"}


def require_free(options: Mapping[str, Any], *, full: bool, tokens: int) -> None:
    """Raises UsageError for the first option that is refused, or has a value that is. `full`: all weights are trained; `tokens`: of the
    longest prompt and response together. Names that are in neither list are `require_decided`'s."""
    for name, value in options.items():
        if name in REFUSED:
            raise UsageError(f"trainer.options: {name} is refused: {REFUSED[name]}", hint="leave it out")
        if why := _CHECKS[name](value) if name in _CHECKS else "":
            raise _wrong(name, value, why)
    _require_float32(options, full=full)
    _require_stops(options)
    _require_room(options, tokens)


def require_decided(options: Iterable[str], known: Iterable[str]) -> None:
    """Raises UsageError for an option that TRL has (`known`) and that nobody has decided on."""
    for name in sorted(set(options) & set(known) - set(FREE) - set(REFUSED)):
        raise UsageError(
            f"trainer.options: {name} is new in this version of TRL, and nobody has looked at what it changes",
            hint="leave it out, or decide on it in tools/integrations/trl/options.py",
        )


def require_switches(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raises UsageError for a switch that is set to anything but true or false: TRL would take the text "false" as yes."""
    for name, value in options.items():
        if isinstance(defaults.get(name), bool) and not isinstance(value, bool):
            raise _wrong(name, value, "give true or false")


def _wrong(name: str, value: Any, why: str) -> UsageError:
    return UsageError(f"trainer.options: {name} cannot be {shown(str(value))}: {why}", hint="change it, or leave it out")


def _adamw(value: Any) -> str:
    """Others see the constant between TRL's loss and the paper's, or make updates in the middle of a step."""
    return (
        ""
        if re.match(r"(paged_)?adamw_", str(value))
        else "the paper's optimiser is AdamW; others see the loss's constant factor"
    )


def _positive(value: Any) -> str:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if known and 0 < value < float("inf") else "give a positive number"


_CHECKS: Mapping[str, Callable[[Any], str]] = {
    "optim": _adamw,
    "ddp_timeout": _positive,
    "vllm_importance_sampling_clip_max": _positive,
    "cache_implementation": lambda value: "" if value != "quantized" else "a rounded cache samples from another distribution",
    "router_aux_loss_coef": lambda value: "" if value == 0 else "the method's loss has no other term; 0 leaves a model's own out",
    "vllm_importance_sampling_mode": lambda value: (
        "" if value == VLLM_DEFAULTS["vllm_importance_sampling_mode"] else "tokens are weighed one by one, and none is dropped"
    ),
}


def _require_float32(options: Mapping[str, Any], *, full: bool) -> None:
    given = options.get("model_init_kwargs") or {}
    if not isinstance(given, Mapping):
        raise _wrong("model_init_kwargs", given, "give names and values")
    type_name = str(given.get("dtype", given.get("torch_dtype", "float32")))
    if full and type_name.removeprefix("torch.") != "float32":
        raise _wrong(
            "model_init_kwargs", type_name, "weights that are trained are float32; trainer.precision is that of products"
        )


def _require_stops(options: Mapping[str, Any]) -> None:
    """Of what the sampler may be told beside, a stop at the beginning of a step, which vLLM alone knows."""
    given = options.get("generation_kwargs") or {}
    told = given.get("stop", []) if isinstance(given, Mapping) else []
    stops = told if isinstance(told, list) else [told]
    if not isinstance(given, Mapping) or set(given) - _STOPS or not all(_STOP.fullmatch(str(stop)) for stop in stops):
        raise _wrong("generation_kwargs", given, 'rollouts are not changed but for stop: ["Step 5:"], behind the last step')
    if given and options.get("use_vllm") is not True:
        raise _wrong("generation_kwargs", given, "only vLLM (use_vllm: true) stops at a text")


def _require_room(options: Mapping[str, Any], tokens: int) -> None:
    most = options.get("vllm_max_model_length")
    if most is not None and (not isinstance(most, int) or most < tokens):
        raise _wrong("vllm_max_model_length", most, f"prompts and responses take up to {tokens} tokens")
