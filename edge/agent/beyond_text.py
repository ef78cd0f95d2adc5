"""Requests that ask for more than text. Knows what a demand and a completion say of it; knows nothing of who is asked, or how."""

from __future__ import annotations

import json

from edge.core.errors import Unsupported
from edge.core.types import BeyondText

UNFOLLOWED = "could not be followed"
_FINISHES = frozenset({"stop", "length", "tool_calls", "content_filter"})


def refusal_of(beyond: BeyondText, why: str) -> Unsupported:
    """What is said to a demand that no local answer meets, where the cloud is not asked (`why`, in a few words)."""
    name = beyond.required or beyond.wants[0]
    return Unsupported(
        f"{name}: only the cloud can do this, and it is not asked here ({why})",
        parameter=name,
        hint="leave it out, or ask where the cloud may be asked (model edge or edge-cloud)",
    )


def finish_of(openai_json: str) -> str:
    """Why a cloud completion ended, in OpenAI's words; "" where it is not told or the word is another one."""
    told = json.loads(openai_json).get("finish_reason") if openai_json else None
    return told if isinstance(told, str) and told in _FINISHES else ""
