"""`edge-agent feedback ID good|bad|none`: what a person says of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edge.cli.answer_ids import answer_id
from edge.cli.control import agent_control
from edge.cli.output import print_json
from edge.core.errors import UsageError
from edge.core.names import shown

if TYPE_CHECKING:
    from edge.cli.settings import Settings
    from edge.config.schema import AgentConfig

VERDICTS = ("good", "bad", "none")


def feedback(settings: Settings, given: str, verdict: str, correction: str | None, *, as_json: bool) -> int:
    """Keep the verdict; `none` takes an earlier one back. Raises UsageError, NotFound."""
    if verdict not in VERDICTS:
        raise UsageError(f"{shown(verdict)}: not a verdict", hint=f"say {', '.join(VERDICTS[:-1])} or {VERDICTS[-1]}")
    if correction is not None and verdict != "bad":
        raise UsageError(f"a correction goes with bad, not with {verdict}")
    kept = asyncio.run(_keep(settings.config(), answer_id(given), verdict, correction))
    if as_json:
        print_json(dict(kept))
    else:
        print(f"noted: {kept['verdict']} · id {kept['id']}")
    return 0


async def _keep(config: AgentConfig, rated: str, verdict: str, correction: str | None) -> Mapping[str, Any]:
    async with agent_control(config) as agent:
        return await agent.feedback(rated, verdict, correction)
