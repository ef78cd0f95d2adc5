"""`edge-agent why ID`: where one answer came from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.cli.running import running_agent
from edge.cli.saying import print_json, why_lines

if TYPE_CHECKING:
    from edge.cli.settings import Settings


def why(settings: Settings, answer_id: str, *, as_json: bool) -> int:
    """Explain a stored answer. Raises NotFound."""
    from edge.bootstrap import state_folder

    record = asyncio.run(_record(state_folder(settings.config()), answer_id.removeprefix("chatcmpl-")))
    if as_json:
        print_json(record)
    else:
        print("\n".join(why_lines(record)))
    return 0


async def _record(state: Path, answer_id: str) -> Mapping[str, Any]:
    async with running_agent(state) as remote:
        if remote is not None:
            return await remote.why(answer_id)
    return _stored(state, answer_id)


def _stored(state: Path, answer_id: str) -> Mapping[str, Any]:
    from edge.agent.state import StateFolder

    with StateFolder(state) as folder:
        return folder.request(answer_id)
