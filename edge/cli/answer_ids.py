"""Ids of answers as people give them. Knows their form; knows nothing of what is kept under them."""

from __future__ import annotations

import re

from edge.core.errors import UsageError
from edge.core.formatting import shown

_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")


def answer_id(given: str) -> str:
    """The id without what OpenAI's clients have before it. Raises UsageError for what cannot be one."""
    bare = given.strip().removeprefix("chatcmpl-").removeprefix("cmpl-")
    if not _ID.fullmatch(bare):
        raise UsageError(f"{shown(given)!r} is no id of an answer", hint="give the id that stands beside an answer")
    return bare
