"""Which fields of trl.GRPOConfig a user may set in trainer.options.

Some fields are set by the run itself (`trainer.own_fields`). Of the others those in FREE may be set, some within bounds; all else is
refused, including new fields of a newer TRL, until it is known not to change the method. A free field does not change the estimator, the
samples, the number of updates per generation or the prompts of a step, logs no texts, and has an effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from edge.core.errors import UsageError
from edge.core.formatting import shown

_FREE = {
    "how the model is read, and its template": "model_init_kwargs trust_remote_code disable_dropout chat_template_kwargs",
    "AdamW's own constants and implementations": "optim adam_beta1 adam_beta2 adam_epsilon",
    "precision of products": "tf32 cast_lm_head_to_fp32",
    "memory and speed": (
        "activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing_kwargs use_cache torch_compile "
        "torch_compile_backend torch_compile_mode torch_empty_cache_steps pad_to_multiple_of cache_implementation "
        "ds3_gather_for_generation full_determinism use_transformers_continuous_batching transformers_continuous_batching_config"
    ),
    "how rows are read": (
        "dataloader_num_workers dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context"
    ),
    "how processes talk": (
        "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_timeout save_on_each_node"
    ),
    "what the libraries log of themselves": (
        "log_level log_level_replica log_on_each_node logging_first_step logging_nan_inf_filter debug skip_memory_metrics"
    ),
    "the sampler, of the same distribution": (
        "use_vllm vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url vllm_server_host vllm_server_port "
        "vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization vllm_tensor_parallel_size"
    ),
    "sampler against trainer, as on verl": (
        "vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_importance_sampling_clip_max"
    ),
    "bounded by a check": "generation_kwargs router_aux_loss_coef vllm_max_model_length",
}
FREE = frozenset(name for names in _FREE.values() for name in names.split())
"""Fields that a person may set; some are bounded by a check."""

VLLM_DEFAULTS: Mapping[str, Any] = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 2.0}
"""Sampler against trainer with vLLM: each token's weight, bounded, as in the project's own learner and on verl. TRL's own default drops
whole responses."""

_STOP = re.compile(r"\s*Step [1-9][0-9]*:")
_STOPS = {"stop", "include_stop_str_in_output"}


def require_free(options: Mapping[str, Any], *, full: bool, tokens: int) -> None:
    """Raises UsageError for the first option that is not free, or has a value that is refused. `full`: all weights are trained; `tokens`:
    of the longest prompt and response together."""
    for name, value in options.items():
        if name not in FREE:
            raise UsageError(
                f"trainer.options: {name} is refused: it is the run's own, would change the method, or TRL has no such field",
                hint="leave it out; tools/integrations/trl/options.py lists what may be set",
            )
        if why := _CHECKS[name](value) if name in _CHECKS else "":
            raise _wrong(name, value, why)
    _require_float32(options, full=full)
    _require_stops(options)
    _require_room(options, tokens)


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
    """Of the additional sampler options, only a stop at the beginning of a step is allowed, which only vLLM supports."""
    given = options.get("generation_kwargs") or {}
    given_stop = given.get("stop", []) if isinstance(given, Mapping) else []
    stops = given_stop if isinstance(given_stop, list) else [given_stop]
    if not isinstance(given, Mapping) or set(given) - _STOPS or not all(_STOP.fullmatch(str(stop)) for stop in stops):
        raise _wrong("generation_kwargs", given, 'rollouts are not changed but for stop: ["Step 5:"], after the last step')
    if given and options.get("use_vllm") is not True:
        raise _wrong("generation_kwargs", given, "only vLLM (use_vllm: true) stops at a text")


def _require_room(options: Mapping[str, Any], tokens: int) -> None:
    most = options.get("vllm_max_model_length")
    if most is not None and (not isinstance(most, int) or most < tokens):
        raise _wrong("vllm_max_model_length", most, f"prompts and responses take up to {tokens} tokens")
