"""`edge-agent pause | resume`: stop learning for a while, whether an agent runs or not. Answers go on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.cli.running import running_agent
from edge.cli.saying import print_json

if TYPE_CHECKING:
    from edge.cli.settings import Settings


def set_paused(settings: Settings, *, paused: bool, as_json: bool) -> int:
    """Pause or resume learning, for good. Raises StateError."""
    from edge.app import state_folder

    told = asyncio.run(_set(state_folder(settings.config()), paused))
    if as_json:
        print_json(dict(told))
    elif paused:
        print("learning is paused: the step under way is finished, no other begins; edge-agent resume goes on")
    else:
        print("learning goes on" + (f" ({told['waiting']})" if told["waiting"] else ""))
    return 0


async def _set(state: Path, paused: bool) -> Mapping[str, Any]:
    async with running_agent(state) as remote:
        if remote is not None:
            return await remote.post("/api/learning", {"paused": paused})
    return _in_folder(state, paused)


def _in_folder(state: Path, paused: bool) -> Mapping[str, Any]:
    from edge.cli.looking import present_folder
    from edge.learning.conditions import BY_YOU, set_paused
    from edge.state.folder import StateFolder

    with StateFolder(present_folder(state)) as folder:
        set_paused(folder, paused)
    return {"paused": paused, "waiting": BY_YOU if paused else ""}
