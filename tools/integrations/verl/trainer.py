"""DA-GRPO's trainer for verl: the synchronous one, with a step at the coordinator around each of its steps.

on_step_begin        open the step: λ_t, τ, its number
_next_train_batch    prompts carry the number, so that the reward workers' calls belong to the step
_compute_advantage   costs from the rewards' outcomes, report on disk, Â = A^r - λ_t A^c by the estimator of the registry
on_step_end          close the step: the coordinator moves λ
"""

from __future__ import annotations

from typing import Any

import transfer_queue as tq
from omegaconf import open_dict
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu

from edge.app.coordinator import build_client
from edge.core.clock import SystemClock
from tools.integrations.verl.estimator import Priced, priced
from tools.integrations.verl.method import require_method
from tools.integrations.verl.outcomes import Outcomes
from tools.integrations.verl.reward import OFFLINE, STEP_FIELD
from tools.integrations.verl.settings import TRAINER, DagrpoSettings
from tools.integrations.verl.steps import TrainingSteps


@register_trainer(TRAINER)
class DagrpoTrainer(PPOTrainerSync):  # type: ignore[misc]
    """Runs on the driver; only there it exchanges steps with the coordinator."""

    def __init__(self, config: Any) -> None:
        """Raises ConfigError, before any model is loaded, for a launch file under which verl would compute something else."""
        require_method(config)
        settings = DagrpoSettings.of(config)
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)
        self.steps = training_steps(settings)

    def fit(self, agent_loop_manager: Any) -> None:
        """verl's loop, between registration and the final report."""
        try:
            self.steps.begin()
            super().fit(agent_loop_manager)
        finally:
            self.steps.shut()

    def on_step_begin(self) -> None:
        """λ for all of the step."""
        super().on_step_begin()
        self.steps.open()

    def _next_train_batch(self, num_prompts: int | None = None) -> Any:
        batch = super()._next_train_batch(num_prompts)
        step = self.steps.now
        tu.assign_non_tensor_data(batch, STEP_FIELD, OFFLINE if step.offline else step.task_step)
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        step = self.steps.now
        outcomes, rewards_N, groups_N = _scored(batch)
        self.steps.report(outcomes.units)
        values = outcomes.metrics(rewards_N, groups_N, step.dual)
        values |= {"dual": step.dual, "target_rate": step.target_rate, "step": float(step.task_step)}
        metrics.update({f"dagrpo/{name}": value for name, value in values.items()})
        with priced(Priced(outcomes.costs, outcomes.left_out, step.dual)):
            return super()._compute_advantage(batch, metrics)

    def on_step_end(self) -> None:
        """The coordinator moves λ, once."""
        super().on_step_end()
        self.steps.close()


def training_steps(settings: DagrpoSettings) -> TrainingSteps:
    """The step protocol over its own connection. Raises ConfigError, StateError."""
    agent = settings.agent_config()
    return TrainingSteps(
        lambda: build_client(agent, str(agent.coordinator.address), settings.run_id),
        SystemClock(),
        settings,
        agent.learning.control.dual_init,
    )


def _scored(batch: Any) -> tuple[Outcomes, list[float], list[Any]]:
    """Outcomes, r and group of each row, in the order of the batch."""
    fields = ["extra_fields", "rm_scores", "uid"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
    padding = [bool(tag.get("is_padding", False)) for tag in batch.tags]
    rewards_N = [float(scores.sum()) for scores in data["rm_scores"].unbind()]
    return Outcomes.of(_values(data["extra_fields"]), padding), rewards_N, _values(data["uid"])


def _values(column: Any) -> list[Any]:
    """A column without tensors: a list, an array, or a stack of wrapped values, as the queue's storage has it."""
    return [getattr(value, "data", value) for value in list(column)]
