"""Which fields of trl.GRPOConfig a user may set in trainer.options.

Some fields are set by the run itself (`trainer.own_fields`). Of the others those in FREE may be set, some within bounds; all else is
refused, including new fields of a newer TRL. A free field does not change the estimator, the samples, the number of updates per generation
or the prompts of a step, logs no texts, and has an effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from edge.core.errors import UsageError
from edge.core.formatting import shown

_FREE = {
    "how the model is read": "model_init_kwargs trust_remote_code",
    "AdamW's own constants and implementations": "optim adam_beta1 adam_beta2 adam_epsilon",
    "precision, memory and speed": "tf32 gradient_checkpointing_kwargs torch_compile dataloader_num_workers",
    "how processes talk": "ddp_timeout ds3_gather_for_generation",
    "the sampler, of the same distribution": (
        "use_vllm vllm_mode vllm_enable_sleep_mode vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout "
        "vllm_gpu_memory_utilization vllm_tensor_parallel_size"
    ),
    "sampler against trainer, as on verl": "vllm_importance_sampling_correction vllm_importance_sampling_clip_max",
}
FREE = frozenset(name for names in _FREE.values() for name in names.split())
"""Fields that a person may set; some are bounded by a check."""

VLLM_DEFAULTS: Mapping[str, Any] = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 2.0}
"""Sampler against trainer with vLLM: each token's weight, bounded, as in the project's own learner and on verl. TRL's own default drops
whole responses."""


def require_free(options: Mapping[str, Any], *, full: bool) -> None:
    """Raises UsageError for the first option that is not free, or has a value that is refused. `full`: all weights are trained."""
    for name, value in options.items():
        if name not in FREE:
            raise UsageError(
                f"trainer.options: {name} is refused: it is the run's own, would change the method, or TRL has no such field",
                hint="leave it out; tools/integrations/trl/options.py lists what may be set",
            )
        if name in ("ddp_timeout", "vllm_importance_sampling_clip_max") and not _is_positive(value):
            raise _wrong(name, value, "give a positive number")
        if name == "optim" and not re.match(r"(paged_)?adamw_", str(value)):
            raise _wrong(name, value, "the paper's optimiser is AdamW; others see the loss's constant factor")
    given = options.get("model_init_kwargs") or {}
    if not isinstance(given, Mapping):
        raise _wrong("model_init_kwargs", given, "give names and values")
    type_name = str(given.get("dtype", given.get("torch_dtype", "float32")))
    if full and type_name.removeprefix("torch.") != "float32":
        raise _wrong(
            "model_init_kwargs", type_name, "weights that are trained are float32; trainer.precision is that of products"
        )


def require_switches(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raises UsageError for a switch that is set to anything but true or false: TRL would take the text "false" as yes."""
    for name, value in options.items():
        if isinstance(defaults.get(name), bool) and not isinstance(value, bool):
            raise _wrong(name, value, "give true or false")


def _wrong(name: str, value: Any, why: str) -> UsageError:
    return UsageError(f"trainer.options: {name} cannot be {shown(str(value))}: {why}", hint="change it, or leave it out")


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
