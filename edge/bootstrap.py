"""The composition root of the agent: the only place that names concrete classes. Heavy imports happen inside the builders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edge.config.schema import AgentConfig
from edge.core.events import EventSink

if TYPE_CHECKING:
    from edge.agent.agent import Agent
    from edge.agent.evaluate import EvalReport


def state_folder(config: AgentConfig) -> Path:
    """The state folder this configuration names, or the platform's."""
    raise NotImplementedError


def build_agent(config: AgentConfig, sink: EventSink) -> Agent:
    """An agent, not yet started (`async with`). Raises ModelFileError, StateError, ConfigError."""
    raise NotImplementedError


async def evaluate(config: AgentConfig, sink: EventSink, *, items: int, adapter_folder: Path | None, with_cloud: bool) -> EvalReport:
    """Evaluate an adapter (None: the bare model) on the test split of the first phase's source."""
    raise NotImplementedError
