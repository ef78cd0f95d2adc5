"""TRL's trainer: the fields of GRPOConfig that a run sets, the conversion of TRL's loss to the paper's, and the trainer built from both.

The paper's estimator is -(1/P) Σ_prompts 1/(G-1) Σ_i Â_i Σ_t ∇ log π_t. With one update for each generation every importance ratio is 1,
and

    luspo    L = 1/(P·G) Σ_i Σ_t (...)            paper = G/(G-1) · L
    dr_grpo  L = 1/(P·G·T) Σ_i Σ_t (...)          paper = G·T/(G-1) · L        T = max_tokens

(luspo: the ratio of a whole sequence is the geometric mean of its tokens', whose gradient is 1/|y| Σ_t ∇ log π_t, and TRL counts it once
for every token; with ratios by tokens, as under vLLM, each counts once.) AdamW does not see the constant, but the bound on the gradient's
norm does, and is divided by it.
"""

from __future__ import annotations

import dataclasses
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.core.errors import UsageError
from tools.integrations.trl.config import TrlConfig
from tools.integrations.trl.options import VLLM_DEFAULTS, require_free, require_switches
from tools.integrations.trl.steps import reader_of

if TYPE_CHECKING:
    from tools.integrations.trl.rewards import SharedSteps

WAIT_S = 7200
"""How long processes wait for the main one without trainer.options.ddp_timeout: it asks the cloud and judges for all of them."""
_WARNS_WITH_TEXTS = "All reward functions returned None"
_WARNS_OF_LEVEL = "When using `'luspo'` loss, `importance_sampling_level` should be"


def paper_scale(loss_type: str, group_size: int, max_tokens: int) -> float:
    """The factor from TRL's loss and gradient to the paper's."""
    scale = group_size / (group_size - 1)
    return scale * max_tokens if loss_type == "dr_grpo" else scale


def config_fields(config: TrlConfig, processes: int) -> dict[str, Any]:
    """The fields of GRPOConfig: a person's options over the defaults that are not TRL's own, and the run's.

    Weights that are trained stay float32: at the paper's learning rate an update is lost in bfloat16's rounding. Raises UsageError where
    rows, processes and groups do not fit together, and for refused options.
    """
    options = config.trainer.options
    require_free(options, full=config.trainer.tuning == "full")
    weights = {"dtype": "float32", **(options.get("model_init_kwargs") or {})}
    sampler = VLLM_DEFAULTS if options.get("use_vllm") else {}
    return {**own_fields(config, processes), "ddp_timeout": WAIT_S, **sampler, **options, "model_init_kwargs": weights}


def wait_s(config: TrlConfig) -> float:
    """How long processes wait for each other. Raises UsageError for an option that is no such time."""
    given = config.trainer.options.get("ddp_timeout", WAIT_S)
    require_free({"ddp_timeout": given}, full=False)
    return float(given)


def own_fields(config: TrlConfig, processes: int) -> dict[str, Any]:
    """The fields that the run sets itself. Raises UsageError where rows, processes and groups do not fit together."""
    import torch

    learning, trainer = config.agent.learning, config.trainer
    # every ratio is 1, but with vLLM each token has its own weight, of which luspo by sequences would take the mean
    by_sequence = trainer.loss_type == "luspo" and not trainer.options.get("use_vllm")
    return {
        # the algorithm
        "num_generations": learning.group_size,
        "max_completion_length": learning.max_tokens,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": None,
        "repetition_penalty": 1.0,
        "beta": 0.0,
        "num_iterations": 1,
        "scale_rewards": "none",
        "multi_objective_aggregation": "sum_then_normalize",
        "loss_type": trainer.loss_type,
        "importance_sampling_level": "sequence" if by_sequence else "token",
        "mask_truncated_completions": False,
        "reward_weights": [1.0, 0.0],
        "learning_rate": learning.optimiser.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": learning.optimiser.weight_decay,
        "max_grad_norm": learning.optimiser.max_grad_norm
        / paper_scale(trainer.loss_type, learning.group_size, learning.max_tokens),
        "max_steps": config.steps,
        "seed": learning.seed,
        "shuffle_dataset": False,
        # how it is computed
        "per_device_train_batch_size": trainer.rows_per_pass,
        "gradient_accumulation_steps": passes(config, processes),
        "bf16": trainer.precision == "bfloat16",
        "fp16": False,
        "gradient_checkpointing": trainer.gradient_checkpointing,
        "remove_unused_columns": False,
        "dataloader_pin_memory": torch.cuda.is_available(),  # else there is nothing to copy pinned memory to
        # storage and logging
        "output_dir": str(Path(config.out).expanduser() / "trl"),
        "save_strategy": "steps",
        "save_steps": trainer.checkpoint_every,
        "save_total_limit": trainer.keep_checkpoints,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
    }


def passes(config: TrlConfig, processes: int) -> int:
    """Passes of each process for one update: one generation, one update. Raises UsageError where it is uneven."""
    learning, rows = config.agent.learning, config.trainer.rows_per_pass
    responses = learning.prompts_per_step * learning.group_size
    if responses % (rows * processes):
        raise UsageError(
            f"{responses} responses a step are no multiple of {processes} processes x {rows} rows a pass",
            hint="change trainer.rows_per_pass, agent.learning.prompts_per_step or the number of processes",
        )
    return responses // (rows * processes)


class NoTexts(logging.Filter):
    """Removes TRL's warning about responses without a reward from the log: it contains prompt and response, and a failed call is already
    reported. The same for its warning about the level of ratios, which the run has chosen."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record passes."""
        return not any(warning in str(record.msg) for warning in (_WARNS_WITH_TEXTS, _WARNS_OF_LEVEL))


def keep_quiet() -> None:
    """Keeps texts out of TRL's log, and disagreements of its versions with transformers' out of every step."""
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated", category=FutureWarning)
    logger = logging.getLogger("trl.trainer.grpo_trainer")
    if not any(isinstance(known, NoTexts) for known in logger.filters):
        logger.addFilter(NoTexts())


def build_trainer(config: TrlConfig, model: str, tokenizer: Any, data_set: Any, processes: int, steps: SharedSteps) -> Any:
    """A GRPOTrainer with both reward functions and the callback. Raises UsageError for options that TRL refuses, or cannot begin with."""
    from transformers import PrinterCallback
    from trl import GRPOTrainer

    from tools.integrations.trl.rewards import DualCallback, GroupRewards

    learning = config.agent.learning
    rewards = GroupRewards(steps, reader_of(tokenizer, [tokenizer.eos_token_id]))
    keep_quiet()
    try:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=[rewards.task_reward, rewards.help_cost],
            args=grpo_config(config, processes),
            train_dataset=data_set,
            processing_class=tokenizer,
            peft_config=adapter_of(config),
        )
    except (ImportError, OSError, ValueError) as error:
        raise UsageError(
            f"TRL cannot begin: {first_line(error)}", hint="see model and trainer.options in the configuration"
        ) from error
    if trainer.aux_loss_enabled:
        raise UsageError(
            "the model adds a loss of its own for its experts, which the method does not have",
            hint="use a model without experts",
        )
    rewards.reader = reader_of(tokenizer, trainer.eos_token_ids)
    scale = paper_scale(config.trainer.loss_type, learning.group_size, learning.max_tokens)
    trainer.add_callback(DualCallback(steps, scale, trainer.reward_weights))
    trainer.remove_callback(PrinterCallback)  # steps are reported by the run's own events
    return trainer


def first_line(error: BaseException) -> str:
    """The first line of an error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def grpo_config(config: TrlConfig, processes: int) -> Any:
    """TRL's arguments. Raises UsageError for options that the run or TRL refuses."""
    from trl import GRPOConfig

    fields, options = config_fields(config, processes), config.trainer.options
    known = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    require_switches(options, known)
    try:
        return GRPOConfig(**fields)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"trainer.options: TRL refuses them: {first_line(error)}", hint="see the fields of trl.GRPOConfig"
        ) from error


def adapter_of(config: TrlConfig) -> Any:
    """The agent's adapter as peft has it; None where all weights are trained."""
    from peft import LoraConfig

    if config.trainer.tuning == "full":
        return None
    adapter = config.agent.adapter
    return LoraConfig(
        r=adapter.rank, lora_alpha=adapter.alpha, target_modules=list(adapter.targets), lora_dropout=0.0, task_type="CAUSAL_LM"
    )
