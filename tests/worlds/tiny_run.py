"""A run of the real agent on the bundled model with tiny steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge.app.agents import build_agent
from edge.config.agent import resolve_agent_config
from edge.config.schema import AgentConfig
from edge.core.events import MemorySink
from edge.state.events import StepFinished


def tiny_config(state: Path, *sets: str) -> AgentConfig:
    """Few prompts, one thread, and temperature as in learning."""
    return resolve_agent_config(
        sets=[
            f"state_folder={state}",
            "learning.prompts_per_step=3",
            "learning.group_size=4",
            "learning.max_tokens=96",
            "learning.torch_threads=1",
            "engine.threads=1",
            "engine.max_rows=12",
            "coordinator.max_output_tokens=128",
            "gate.enabled=false",
            *sets,
        ]
    ).config


async def learn(config: AgentConfig, steps: int, sink: Any = None) -> tuple[list[StepFinished], Any]:
    async with build_agent(config, sink or MemorySink()) as agent:
        await agent.learn(steps)
        return agent.components.state.steps(), await agent.link.budget()
