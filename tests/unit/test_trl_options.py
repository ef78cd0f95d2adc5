"""Which of TRL's options a user may set: every field of GRPOConfig is covered, and those that change the method are refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from edge.config.schema import LearningConfig
from edge.core.errors import UsageError
from tests.worlds.trl import trl_config
from tools.integrations.trl.config import TrlConfig
from tools.integrations.trl.options import FREE
from tools.integrations.trl.trainer import config_fields, own_fields


def config_of(options: dict[str, Any], **trainer: Any) -> TrlConfig:
    learning = LearningConfig(group_size=8, prompts_per_step=8, max_tokens=512)
    return trl_config(learning, options=options, prompt_tokens=512, **trainer)


def fields_of(options: dict[str, Any], **trainer: Any) -> dict[str, Any]:
    return config_fields(config_of(options, **trainer), 1)


def test_settable_options_are_trls_and_not_the_runs_own():
    trl = pytest.importorskip("trl")
    known = {field.name for field in dataclasses.fields(trl.GRPOConfig) if field.init}
    assert known >= FREE
    assert not FREE & set(own_fields(config_of({}), 1))


@pytest.mark.parametrize(
    "options",
    [
        {"generation_kwargs": {"temperature": 0.1, "top_k": 1}},
        {"generation_kwargs": {"stop": ["Step 5:"]}, "use_vllm": True},
        {"log_completions": True},
        {"beta": 0.1},
        {"brand_new": 1},
        {"optim": "sgd"},
        {"cache_implementation": "quantized"},
        {"router_aux_loss_coef": 0.001},
        {"vllm_importance_sampling_mode": "sequence_mask"},
        {"vllm_importance_sampling_clip_max": None},
        {"model_init_kwargs": "float32"},
    ],
)
def test_option_that_changes_the_method_or_logs_texts_is_refused_by_name(options):
    with pytest.raises(UsageError, match=f"trainer.options: {next(iter(options))} "):
        fields_of(options)


@pytest.mark.parametrize(
    "options",
    [
        {"optim": "adamw_torch"},
        {"optim": "paged_adamw_8bit", "adam_beta2": 0.95},
        {"use_vllm": True, "vllm_importance_sampling_clip_max": 4},
        {"dataloader_num_workers": 2},
    ],
)
def test_free_option_is_passed_on(options):
    assert options.items() <= fields_of(options).items()


def test_trained_weights_stay_float32_whatever_the_model_options():
    assert fields_of({})["model_init_kwargs"] == {"dtype": "float32"}
    given = {"model_init_kwargs": {"attn_implementation": "sdpa"}}
    assert fields_of(given)["model_init_kwargs"] == {"dtype": "float32", "attn_implementation": "sdpa"}
    low = {"model_init_kwargs": {"dtype": "bfloat16"}}
    assert fields_of(low)["model_init_kwargs"] == low["model_init_kwargs"]  # the base of an adapter is not trained
    with pytest.raises(UsageError, match="weights that are trained are float32"):
        fields_of(low, tuning="full")
