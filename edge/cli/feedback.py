"""`edge-agent feedback ID good|bad|none`: what a person says of an answer. Knows verdicts; knows nothing of what is learned from them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edge.cli.asking import answering
from edge.cli.saying import print_json
from edge.core.errors import UsageError
from edge.core.names import shown

if TYPE_CHECKING:
    from edge.cli.settings import Settings

VERDICTS = ("good", "bad", "none")


def feedback(settings: Settings, answer_id: str, verdict: str, correction: str | None, *, as_json: bool) -> int:
    """Keep the verdict; `none` takes an earlier one back. Raises UsageError, NotFound."""
    if verdict not in VERDICTS:
        raise UsageError(f"{shown(verdict)}: not a verdict", hint=f"say {', '.join(VERDICTS[:-1])} or {VERDICTS[-1]}")
    if correction is not None and verdict != "bad":
        raise UsageError(f"a correction goes with bad, not with {verdict}")
    kept = asyncio.run(_keep(settings, answer_id.removeprefix("chatcmpl-"), verdict, correction))
    if as_json:
        print_json(dict(kept))
    else:
        print(f"noted: {kept['verdict']} · id {kept['id']}")
    return 0


async def _keep(settings: Settings, answer_id: str, verdict: str, correction: str | None) -> Mapping[str, Any]:
    async with answering(settings) as reader:
        return await reader.feedback(answer_id, verdict, correction)
