"""The SLM's own attempt as a hint for the cloud LLM.

Off unless `coordinator.hint_chars` sets how much may be sent along. What the privacy registry knows is cut out first, and every number of
more than 8 digits: before the hint is shortened, so that no half of it is left, and without placeholders, since a hint needs no way back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from edge.core.types import Message
from edge.dagrpo.composition import local_part
from edge.privacy.registry import private_cut

Cut = Callable[[str], str]
"""Takes out of a text what is private."""
LEAD = "A small model began as follows and then asked for help. It may be wrong:"
_TAG = re.compile(r"</?(?:think|answer)>")


def hint_of(local: str, most_chars: int, cut: Cut = private_cut) -> str:
    """What of a local response may go along: its text before the request for help, without tags and what is private, at most so long;
    "" where nothing is left."""
    text = cut(_TAG.sub(" ", local_part(local)))
    return " ".join(text.split())[:most_chars].strip()


def with_hint(messages: Sequence[Message], local: str, most_chars: int, cut: Cut = private_cut) -> tuple[Message, ...]:
    """The messages with a hint after the text of the last one; unchanged where hints are off (`most_chars` 0) or no text is left."""
    hint = hint_of(local, most_chars, cut) if most_chars else ""
    if not hint:
        return tuple(messages)
    return (*messages[:-1], replace(messages[-1], content=f"{messages[-1].content}\n\n{LEAD}\n{hint}"))
