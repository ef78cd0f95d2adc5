"""Secrets and prompts are cut out of logs and messages: keys, tokens, Authorization headers, passwords.

Prompts have no form of their own, so two more things are done: what follows `content`, `text` or `prompt` in any printed value is
cut, and the message of an exception that this project did not write is withheld, because it may quote what it failed on.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from typing import Any

from edge.core.errors import EdgeError
from edge.core.secret_forms import CUT, QUOTED, SECRET_FORMS, without_secrets

WITHHELD = "(its message is withheld: it may quote a prompt)"
_QUOTED_PROMPT = re.compile(
    rf"(?i)(['\"]?\b(?:content|prompt|prompts|messages|text|delta|completion|answer)['\"]?)(\s*[:=]\s*){QUOTED}"
)
SHORTEST_KEPT_OUT = 7
_kept_out: set[str] = set()
_FAILED_TASK = re.compile(r"(exception=\w+)(\().*\)(?=>|$)")


def keep_out(secret: str) -> None:
    """Cut this secret from now on, whatever its form: a server may repeat a key of its own making. A shorter one may be a common word."""
    if len(secret) >= SHORTEST_KEPT_OUT:
        _kept_out.add(secret)


def redacted(text: str) -> str:
    """The text without the secrets that were read, and without what has the form of a secret or of a quoted prompt."""
    for secret in sorted(_kept_out, key=len, reverse=True):  # one may begin with another
        text = text.replace(secret, CUT)
    text = _QUOTED_PROMPT.sub(rf"\1\2{CUT}", without_secrets(text))
    return _FAILED_TASK.sub(rf"\1({CUT})", text)


def redacted_data(data: Any) -> Any:
    """Nested data with every text redacted."""
    if isinstance(data, str):
        return redacted(data)
    if isinstance(data, dict):
        return {key: redacted_data(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [redacted_data(value) for value in data]
    return data


def looks_secret(text: str) -> bool:
    """Whether a text holds what has the form of a key, a token or a password."""
    return any(form.search(text) for form in SECRET_FORMS)


def redacted_traceback(error: BaseException) -> str:
    """A traceback without the messages of foreign exceptions."""
    return redacted("".join(_traceback_lines(error, set()))).rstrip("\n")


def _traceback_lines(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _traceback_lines(before, seen)
        yield "\nwhich led to:\n\n"
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(error.__traceback__)
    yield f"{type(error).__name__}: {error if isinstance(error, EdgeError) else WITHHELD}\n"
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from (f"  | {line}\n" for line in "".join(_traceback_lines(one, seen)).splitlines())


class RedactingFilter(logging.Filter):
    """On a handler: every record that it writes is redacted, whichever logger it came from."""

    def __init__(self) -> None:
        super().__init__()

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite the record in place; never drops one."""
        try:
            message = record.getMessage()
        except Exception:
            message = (
                f"{record.msg} (arguments do not fit)" if isinstance(record.msg, str) else "(a record that cannot be written)"
            )
        record.msg, record.args = redacted(message), ()
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = redacted_traceback(record.exc_info[1])
            record.exc_info = None
        elif record.exc_text:
            record.exc_text = redacted(record.exc_text)
        if record.stack_info:
            record.stack_info = redacted(record.stack_info)
        return True


def redact_logs() -> None:
    """Put the filter on every handler of the root logger; safe to call again."""
    for handler in logging.getLogger().handlers:
        if not any(isinstance(each, RedactingFilter) for each in handler.filters):
            handler.addFilter(RedactingFilter())
