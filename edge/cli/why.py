"""`edge-agent why ID`: where one answer came from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edge.cli.answer_ids import answer_id
from edge.cli.control import agent_control
from edge.cli.output import print_json, why_lines

if TYPE_CHECKING:
    from edge.cli.settings import Settings
    from edge.config.schema import AgentConfig


def why(settings: Settings, given: str, *, as_json: bool) -> int:
    """Explain a stored answer. Raises UsageError for what is no id, NotFound."""
    record = asyncio.run(_record(settings.config(), answer_id(given)))
    if as_json:
        print_json(record)
    else:
        print("\n".join(why_lines(record)))
    return 0


async def _record(config: AgentConfig, wanted: str) -> Mapping[str, Any]:
    async with agent_control(config) as agent:
        return await agent.why(wanted)
