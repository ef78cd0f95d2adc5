"""`edge-agent feedback ID good|bad|none`: what a person says of an answer. Knows verdicts; knows nothing of what is learned from them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edge.cli.answer_ids import answer_id
from edge.cli.running import running_agent
from edge.cli.saying import print_json
from edge.core.errors import NotFound, UsageError
from edge.core.formatting import shown

if TYPE_CHECKING:
    from edge.cli.settings import Settings
    from edge.state.feedback import Verdict

VERDICTS = ("good", "bad", "none")


def feedback(settings: Settings, given: str, verdict: str, correction: str | None, *, as_json: bool) -> int:
    """Keep the verdict; `none` takes an earlier one back. Raises UsageError, NotFound."""
    if verdict not in VERDICTS:
        raise UsageError(f"{shown(verdict)}: not a verdict", hint=f"say {', '.join(VERDICTS[:-1])} or {VERDICTS[-1]}")
    if correction is not None and verdict != "bad":
        raise UsageError(f"a correction goes with bad, not with {verdict}")
    from edge.app import state_folder

    kept = asyncio.run(_keep(state_folder(settings.config()), answer_id(given), verdict, correction))
    if as_json:
        print_json(dict(kept))
    else:
        print(f"noted: {kept['verdict']} · id {kept['id']}")
    return 0


async def _keep(state: Path, rated: str, verdict: str, correction: str | None) -> Mapping[str, Any]:
    """Have the running agent keep it, or keep it in a folder that no agent uses."""
    async with running_agent(state) as remote:
        if remote is not None:
            return await remote.feedback(rated, verdict, correction)
    return _in_folder(state, rated, verdict, correction)


def _in_folder(state: Path, rated: str, verdict: str, correction: str | None) -> Mapping[str, Any]:
    from edge.core.clock import SystemClock
    from edge.state.feedback import Feedback, FeedbackBook
    from edge.state.folder import StateFolder
    from edge.state.reader import reading

    with reading(state) as there:
        if there is None:
            raise NotFound(f"no answer with id {rated}: nothing was asked in {state} yet")
    with StateFolder(state) as folder:
        judged = Feedback(rated, cast("Verdict", verdict), correction)
        return FeedbackBook(folder).give(judged, SystemClock().now()).to_json()
