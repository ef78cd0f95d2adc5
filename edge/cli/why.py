"""`edge-agent why ID`: where one answer came from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.control import agent_control
from edge.cli.options import Config, Json, Sets, State, id_of
from edge.cli.output import print_json, why_lines
from edge.cli.settings import Settings

if TYPE_CHECKING:
    from edge.config.schema import AgentConfig


def command(
    answer_id: Annotated[str, typer.Argument(help="The id that stands beside an answer.")],
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Explain where one answer came from."""
    record = asyncio.run(_record(Settings(config, sets, state=state).config(), id_of(answer_id)))
    if json:
        print_json(record)
    else:
        print("\n".join(why_lines(record)))
    return 0


async def _record(config: AgentConfig, wanted: str) -> Mapping[str, Any]:
    async with agent_control(config) as agent:
        return await agent.why(wanted)
