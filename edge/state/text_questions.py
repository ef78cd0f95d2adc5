"""What is asked about the texts of a label, kept so that a text is asked about later in the words that were learned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from edge.dagrpo.prompts import TextQuestion
from edge.state.folder import StateFolder
from edge.state.reader import StateReader

_KEY = "text_questions"


def text_questions(state: StateReader) -> dict[str, TextQuestion]:
    """By label what the folder knows."""
    stored = json.loads(state.meta(_KEY) or "{}")
    return {label: TextQuestion(one["ask"], tuple(one["options"])) for label, one in stored.items()}


def kept_questions(state: StateFolder, learned: Mapping[str, TextQuestion | None]) -> dict[str, TextQuestion]:
    """By label what the folder knows, with what is learned now, which it keeps; None: the label is one of ordinary questions."""
    known = text_questions(state)
    now = {label: question for label, question in {**known, **learned}.items() if question is not None}
    if now != known:
        state.set_meta(_KEY, json.dumps({label: asdict(question) for label, question in now.items()}))
    return now
