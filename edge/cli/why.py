"""`edge-agent why ID`: where one answer came from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edge.cli.answer_ids import answer_id
from edge.cli.running import running_agent
from edge.cli.saying import print_json, why_lines
from edge.core.errors import NotFound

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
    from edge.app import state_folder

    async with running_agent(state_folder(config)) as remote:
        if remote is not None:
            return await remote.why(wanted)
    return await _stored(config, wanted)


async def _stored(config: AgentConfig, wanted: str) -> Mapping[str, Any]:
    from edge.answering.explain import explained
    from edge.app import state_folder
    from edge.cli.looking import NOBODY, present_coordinator
    from edge.state.feedback import said_of
    from edge.state.reader import reading

    folder = state_folder(config)
    with reading(folder) as state:
        if state is None:
            raise NotFound(f"no answer with id {wanted}: nothing was asked in {folder} yet")
        record = state.request(wanted)
        async with present_coordinator(config, state) as client:
            return await explained(record, client.get_call if client else None, NOBODY, said_of(state, wanted))
