"""`edge-agent pause | resume`: stop learning for a while, whether an agent runs or not. Answers go on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edge.cli.control import agent_control
from edge.cli.output import print_json

if TYPE_CHECKING:
    from edge.cli.settings import Settings
    from edge.config.schema import AgentConfig


def set_paused(settings: Settings, *, paused: bool, as_json: bool) -> int:
    """Pause or resume learning, for good. Raises StateError."""
    told = asyncio.run(_set(settings.config(), paused))
    if as_json:
        print_json(dict(told))
    elif paused:
        print("learning is paused: the step under way is finished, no other begins; edge-agent resume goes on")
    else:
        print("learning goes on" + (f" ({told['waiting']})" if told["waiting"] else ""))
    return 0


async def _set(config: AgentConfig, paused: bool) -> Mapping[str, Any]:
    async with agent_control(config) as agent:
        return await agent.pause_learning(paused)
