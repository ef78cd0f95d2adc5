"""`edge-agent feedback ID good|bad|none`: what a person says of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.completion import VERDICTS, verdicts
from edge.cli.control import agent_control
from edge.cli.options import Config, Json, Sets, State, id_of
from edge.cli.output import print_json
from edge.cli.settings import Settings
from edge.core.errors import UsageError
from edge.core.formatting import shown

if TYPE_CHECKING:
    from edge.config.schema import AgentConfig


def command(
    answer_id: Annotated[str, typer.Argument(help="The id that stands beside an answer.", metavar="ID")],
    verdict: Annotated[
        str, typer.Argument(help="good, bad, or none to take it back.", metavar="VERDICT", autocompletion=verdicts)
    ],
    correction: Annotated[str | None, typer.Argument(help="With bad: what would have been right.", metavar="CORRECTION")] = None,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Say whether an answer was right."""
    if verdict not in VERDICTS:
        raise UsageError(f"{shown(verdict)}: not a verdict", hint=f"say {', '.join(VERDICTS[:-1])} or {VERDICTS[-1]}")
    if correction is not None and verdict != "bad":
        raise UsageError(f"a correction goes with bad, not with {verdict}")
    kept = asyncio.run(_keep(Settings(config, sets, state=state).config(), id_of(answer_id), verdict, correction))
    if json:
        print_json(dict(kept))
    else:
        print(f"noted: {kept['verdict']} · id {kept['id']}")
    return 0


async def _keep(config: AgentConfig, rated: str, verdict: str, correction: str | None) -> Mapping[str, Any]:
    async with agent_control(config) as agent:
        return await agent.feedback(rated, verdict, correction)
