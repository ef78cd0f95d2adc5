"""`edge-agent pause | resume`: stop learning for a while, whether an agent runs or not. Answers go on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edge.cli.control import agent_control
from edge.cli.options import Config, Json, Sets, State
from edge.cli.output import print_json
from edge.cli.settings import Settings

if TYPE_CHECKING:
    from edge.config.schema import AgentConfig


def pause_command(state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """Stop learning until `resume`, also over restarts; answers go on."""
    found = asyncio.run(_set(Settings(config, sets, state=state).config(), paused=True))
    if json:
        print_json(dict(found))
    else:
        print("learning is paused: the step under way is finished, no other begins; edge-agent resume goes on")
    return 0


def resume_command(state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """Go on learning after `pause`."""
    found = asyncio.run(_set(Settings(config, sets, state=state).config(), paused=False))
    if json:
        print_json(dict(found))
    else:
        print("learning goes on" + (f" ({found['waiting']})" if found["waiting"] else ""))
    return 0


async def _set(config: AgentConfig, *, paused: bool) -> Mapping[str, Any]:
    async with agent_control(config) as agent:
        return await agent.pause_learning(paused)
