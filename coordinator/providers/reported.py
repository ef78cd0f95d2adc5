"""Errors that an upstream reports inside an answer, in its own words. Knows OpenAI's form and its relatives; knows nothing of HTTP.

The words go into a log and to a device, so what may be private stays out: secrets, words that look like keys or ids, and a message that
quotes the prompt. Then the error's code or type is told alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from coordinator.providers.provider import short_word
from edge.core.secret_forms import CUT, without_secrets

_MAY_REPORT = b"error"
_KEY_LIKE = re.compile(r"(?=\S*\d)[^\s,;:()]{8,}|(?:sk|pk|key|token)[-_][^\s,;:()]{3,}|[^\s,;:()]{24,}")
_WORD = re.compile(r"[A-Za-z][A-Za-z_.-]{1,39}|[1-5]\d\d")
_QUOTED_CHARS = 16
"""A message that has so many characters in a row from the prompt quotes it."""


class _Report(msgspec.Struct):
    error: Any = None
    object: Any = None
    message: Any = None
    code: Any = None
    type: Any = None


_decoder = msgspec.json.Decoder(_Report)


def reported_error(data: bytes | bytearray, prompts: Iterable[str]) -> str | None:
    """The upstream's words for an error that this JSON reports ("": it has none that may be told); None where it reports none."""
    if _MAY_REPORT not in data:
        return None
    try:
        report = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if report.object == "error":
        return _words({"message": report.message, "code": report.code, "type": report.type}, prompts)
    return None if report.error is None else _words(report.error, prompts)


def _words(error: Any, prompts: Iterable[str]) -> str:
    told = error if isinstance(error, dict) else {"message": error}
    names = [str(told.get(name)) for name in ("code", "type") if isinstance(told.get(name), str | int)]
    word = next((name for name in names if _WORD.fullmatch(name)), "")
    message = _message(told.get("message"), prompts)
    return f"{word}: {message}" if word and message else word or message


def _message(message: Any, prompts: Iterable[str]) -> str:
    if not isinstance(message, str):
        return ""
    line = " ".join(message.split())
    if any(_quotes(line, " ".join(prompt.split())) for prompt in prompts):
        return ""
    return short_word(_KEY_LIKE.sub(CUT, without_secrets(line)))


def _quotes(line: str, prompt: str) -> bool:
    """Whether a line has a part of a prompt; all of a short one."""
    length = min(_QUOTED_CHARS, len(prompt))
    return length > 0 and any(line[start : start + length] in prompt for start in range(len(line) - length + 1))
