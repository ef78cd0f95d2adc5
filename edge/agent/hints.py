"""The SLM's own attempt as a hint for the cloud LLM. Knows what must not leave the device in one; knows nothing of who asks.

Off unless `coordinator.hint_chars` says how much may go along. What has the form of an e-mail address, a key, a password or a number of
more than 8 digits is cut out first; names and other words are not recognised, so what people write may still be told by a hint.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from edge.core.secret_forms import CUT, without_secrets
from edge.core.types import Message
from edge.dagrpo.composition import local_part

MOST_DIGITS = 8
LEAD = "A small model began as follows and then asked for help. It may be wrong:"
_ADDRESS = re.compile(r"[^\s@<>\"'()]+@[^\s@<>\"'()]+\.\w+")
_GROUPED = re.compile(r"\d+(?:[ ,.()/\-]\d{2,})*")
_LONG_WORD = re.compile(r"\b(?=[A-Za-z0-9+/_-]*\d)(?=[A-Za-z0-9+/_-]*[A-Za-z])[A-Za-z0-9+/_-]{24,}={0,2}")
_TAG = re.compile(r"</?(?:think|answer)>")


def hint_of(local: str, most_chars: int) -> str:
    """What of a local response may go along: its text before the request for help, without tags and what looks private, at most so long;
    "" where nothing is left."""
    text = private_cut(_TAG.sub(" ", local_part(local)))
    return " ".join(text.split())[:most_chars].strip()


def with_hint(messages: Sequence[Message], local: str, most_chars: int) -> tuple[Message, ...]:
    """The messages with a hint behind the last one, which asks; as they are where hints are off (`most_chars` 0) or none is left."""
    hint = hint_of(local, most_chars) if most_chars else ""
    if not hint:
        return tuple(messages)
    return (*messages[:-1], replace(messages[-1], content=f"{messages[-1].content}\n\n{LEAD}\n{hint}"))


def private_cut(text: str) -> str:
    """The text without e-mail addresses, keys, passwords, and numbers of more than 8 digits, however they are grouped."""
    text = _LONG_WORD.sub(CUT, _ADDRESS.sub(CUT, without_secrets(text)))
    return _GROUPED.sub(_long_number_cut, text)


def _long_number_cut(found: re.Match[str]) -> str:
    digits = sum(char.isdigit() for char in found.group())
    return CUT if digits > MOST_DIGITS else found.group()
