"""The configuration of a TRL run.

The algorithm's settings are the agent's own (`agent.learning`, `agent.phases`, `agent.coordinator`, `agent.adapter`, ...), under the same
names and with the same meaning as in a configuration of `edge-agent learn`; the other keys are how TRL computes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from edge.config.loader import Resolved, ValueAt, resolve
from edge.config.schema import AgentConfig
from edge.config.section import Section
from tools.integrations.agent_keys import REFUSED_BY_TRL, not_held


class TrainerConfig(Section):
    """How TRL computes; only `tuning` changes what is learned.

    `loss_type` is one of the two of TRL whose gradient is the paper's up to a constant, see tools/integrations/README.md.
    """

    tuning: Literal["lora", "full"] = Field("lora", description="Train an adapter (agent.adapter) or all weights (the paper).")
    loss_type: Literal["luspo", "dr_grpo"] = Field(
        "luspo", description="TRL's normalisation: the sum over a response's tokens (luspo), or that divided by max_tokens."
    )
    rows_per_pass: int = Field(8, ge=1, description="Responses that each process computes in one forward and backward pass.")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="What products are computed in; the weights that are trained are float32 in either case."
    )
    gradient_checkpointing: bool = Field(False, description="Compute activations again, not keep them: less memory, more time.")
    prompt_tokens: int = Field(1024, ge=1, description="Most tokens of a prompt; questions with longer ones are passed over.")
    checkpoint_every: int = Field(10, ge=1, description="Steps between two checkpoints, from which an interrupted run goes on.")
    keep_checkpoints: int = Field(2, ge=1, description="Checkpoints that are kept, the newest.")
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Other fields of trl.GRPOConfig, as use_vllm: those in FREE of tools/integrations/trl/options.py.",
    )


class TrlConfig(Section):
    """One run: its folder, model, the agent's settings, TRL's.

    Of `agent`, adapter, learning, phases, coordinator, budget limits, privacy and programs apply. Keys of learning, budget and routing
    that TRL does not follow are refused unless they have their default (tools.integrations.agent_keys).
    """

    out: str = Field(
        "runs/trl", description="Folder of the run: events, metrics, checkpoints, the ledger of an embedded coordinator."
    )
    model: str = Field(
        "bundled:nano-edge",
        description="A model of the hub by name, a Hugging Face folder, or bundled:NAME for one that comes with the project.",
    )
    agent: AgentConfig = Field(AgentConfig(), description="The agent's own settings.")
    trainer: TrainerConfig = Field(TrainerConfig(), description="How TRL computes.")

    @model_validator(mode="after")
    def _what_trl_can_do(self) -> TrlConfig:
        if not self.agent.phases:
            raise ValueError(
                "agent.phases: there is nothing to learn; name at least one phase, as {source: practice:arith, steps: 100}"
            )
        if any(phase.steps is None for phase in self.agent.phases):
            raise ValueError("agent.phases: each phase needs a number of steps")
        if refused := not_held(self.agent, REFUSED_BY_TRL):
            raise ValueAt(("agent", *refused.key.split(".")), f"agent.{refused.key} {refused.refusal}")
        return self

    @property
    def steps(self) -> int:
        """Steps over all phases."""
        return sum(phase.steps or 0 for phase in self.agent.phases)


def resolve_run(file: Path, sets: tuple[str, ...] = ()) -> Resolved[TrlConfig]:
    """Defaults < file < `key=value` texts. Raises ConfigError with one line that names the place."""
    return resolve(TrlConfig, files=[file], sets=sets, example="agent.learning.group_size=8")
