"""Which of TRL's options a person may set: every field of GRPOConfig is decided on, and what changes the method is refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from edge.config.schema import AgentConfig, LearningConfig, PhaseConfig
from edge.core.errors import UsageError
from tools.integrations.trl.config import TrainerConfig, TrlConfig
from tools.integrations.trl.options import FREE, REFUSED, require_decided
from tools.integrations.trl.trainer import config_fields, own_fields


def config_of(options: dict[str, Any], **trainer: Any) -> TrlConfig:
    agent = AgentConfig(
        learning=LearningConfig(group_size=8, prompts_per_step=8, max_tokens=512),
        phases=(PhaseConfig(source="practice:arith", steps=3),),
    )
    return TrlConfig(agent=agent, trainer=TrainerConfig(options=options, prompt_tokens=512, **trainer))


def fields_of(options: dict[str, Any], **trainer: Any) -> dict[str, Any]:
    return config_fields(config_of(options, **trainer), 1)


def test_every_field_of_trl_is_set_by_the_run_or_free_or_refused():
    trl = pytest.importorskip("trl")
    known = {field.name for field in dataclasses.fields(trl.GRPOConfig) if field.init}
    lists = [set(own_fields(config_of({}), 1)), set(FREE), set(REFUSED)]
    assert sum(map(len, lists)) == len(set.union(*lists)), "a field is in two of the lists"
    assert known - set.union(*lists) == set(), "decide on these in tools/integrations/trl/options.py"
    assert set.union(*lists) - known == set(), "TRL does not have these any more"


def test_a_field_that_nobody_has_decided_on_is_refused():
    require_decided(["use_vllm", "unknown_to_trl"], ["use_vllm"])
    with pytest.raises(UsageError, match="brand_new is new in this version of TRL"):
        require_decided(["brand_new"], ["use_vllm", "brand_new"])


@pytest.mark.parametrize(
    "options",
    [
        {"generation_kwargs": {"temperature": 0.1, "top_k": 1}},
        {"generation_kwargs": {"stop": ["Step 5:"]}},
        {"generation_kwargs": {"stop": ["."]}, "use_vllm": True},
        {"log_completions": True},
        {"optim": "sgd"},
        {"cache_implementation": "quantized"},
        {"router_aux_loss_coef": 0.001},
        {"vllm_max_model_length": 1023},
        {"vllm_importance_sampling_mode": "sequence_mask"},
        {"vllm_importance_sampling_clip_max": None},
        {"model_init_kwargs": "float32"},
    ],
)
def test_what_changes_the_method_or_puts_texts_into_logs_is_refused_by_name(options):
    with pytest.raises(UsageError, match=f"trainer.options: {next(iter(options))} "):
        fields_of(options)


@pytest.mark.parametrize(
    "options",
    [
        {"generation_kwargs": {"stop": ["Step 5:"]}, "use_vllm": True},
        {"optim": "adamw_torch"},
        {"optim": "paged_adamw_8bit", "adam_beta2": 0.95},
        {"vllm_max_model_length": 1024, "vllm_importance_sampling_clip_max": 4},
        {"router_aux_loss_coef": 0.0},
        {"dataloader_num_workers": 2},
    ],
)
def test_what_is_a_choice_is_passed_on(options):
    assert options.items() <= fields_of(options).items()


def test_weights_that_are_trained_stay_float32_whatever_else_is_said_of_the_model():
    assert fields_of({})["model_init_kwargs"] == {"dtype": "float32"}
    given = {"model_init_kwargs": {"attn_implementation": "sdpa"}}
    assert fields_of(given)["model_init_kwargs"] == {"dtype": "float32", "attn_implementation": "sdpa"}
    low = {"model_init_kwargs": {"dtype": "bfloat16"}}
    assert fields_of(low)["model_init_kwargs"] == low["model_init_kwargs"]  # the base of an adapter is not trained
    with pytest.raises(UsageError, match="weights that are trained are float32"):
        fields_of(low, tuning="full")
