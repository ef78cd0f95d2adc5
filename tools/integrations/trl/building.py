"""Builds TRL's trainer. Knows GRPOTrainer, LoRA configurations and data types; everything that decides comes from the other modules."""

from __future__ import annotations

import dataclasses
from typing import Any

from peft import LoraConfig
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from edge.core.errors import UsageError
from tools.integrations.trl.config import TrlConfig
from tools.integrations.trl.options import require_decided, require_switches
from tools.integrations.trl.responses import reader_of
from tools.integrations.trl.rewards import DualCallback, GroupRewards, Scale, SharedSteps
from tools.integrations.trl.trainer import config_fields, keep_quiet, paper_scale


def build_trainer(
    config: TrlConfig, model: str, tokenizer: Any, data_set: Any, processes: int, steps: SharedSteps
) -> GRPOTrainer:
    """A GRPOTrainer with both reward functions and the callback. Raises UsageError for options that TRL refuses, or cannot begin with."""
    learning = config.agent.learning
    rewards = GroupRewards(steps, reader_of(tokenizer, [tokenizer.eos_token_id]))
    scale = Scale(paper_scale(config.trainer.loss_type, learning.group_size, learning.max_tokens))
    callback = DualCallback(steps, scale)
    keep_quiet()
    trainer = _made(
        model=model,
        reward_funcs=[rewards.task_reward, rewards.help_cost],
        args=grpo_config(config, processes),
        train_dataset=data_set,
        processing_class=tokenizer,
        callbacks=[callback],
        peft_config=adapter_of(config),
    )
    require_one_loss(trainer)
    rewards.reader = reader_of(tokenizer, trainer.eos_token_ids)
    callback.move(trainer.reward_weights)
    trainer.remove_callback(PrinterCallback)  # steps are told by the run's own events
    return trainer


def _made(**parts: Any) -> GRPOTrainer:
    try:
        return GRPOTrainer(**parts)
    except (ImportError, OSError, ValueError) as error:
        raise UsageError(
            f"TRL cannot begin: {_first_line(error)}", hint="see model and trainer.options in the configuration"
        ) from error


def require_one_loss(trainer: GRPOTrainer) -> None:
    """Raises UsageError for a mixture of experts whose own coefficient would add a term to the loss."""
    if trainer.aux_loss_enabled:
        raise UsageError(
            "the model adds a loss of its own for its experts, which the method does not have",
            hint="set trainer.options.router_aux_loss_coef to 0",
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def grpo_config(config: TrlConfig, processes: int) -> GRPOConfig:
    """TRL's arguments. Raises UsageError for options that the run or TRL refuses."""
    fields, options = config_fields(config, processes), config.trainer.options
    known = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    require_decided(options, known)
    require_switches(options, known)
    try:
        return GRPOConfig(**fields)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"trainer.options: TRL refuses them: {_first_line(error)}", hint="see the fields of trl.GRPOConfig"
        ) from error


def adapter_of(config: TrlConfig) -> LoraConfig | None:
    """The agent's adapter as peft has it; None where all weights are trained."""
    if config.trainer.tuning == "full":
        return None
    adapter = config.agent.adapter
    return LoraConfig(
        r=adapter.rank, lora_alpha=adapter.alpha, target_modules=list(adapter.targets), lora_dropout=0.0, task_type="CAUSAL_LM"
    )
