"""What an upstream reports of a failure: its own words, and which field of the request it does not take.

An upstream's words for an error go into a log and to a device, so what may be private stays out: secrets, words that look like keys or ids,
and a message that quotes the prompt. Then the error's code or type is reported alone.

Models differ in the fields that they take, and servers refuse those that they do not know. Such a field is left out, or sent by its other
name, from its first refusal on, as long as the process lives. Only fields for which that is said are: without the others a request would
mean something else.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from coordinator.providers.provider import ProviderRequest, short_word
from edge.core.secret_forms import CUT, without_secrets

log = logging.getLogger(__name__)
_MAY_REPORT = b"error"
_KEY_LIKE = re.compile(r"(?=\S*\d)[^\s,;:()]{8,}|(?:sk|pk|key|token)[-_][^\s,;:()]{3,}|[^\s,;:()]{24,}")
_WORD = re.compile(r"[A-Za-z][A-Za-z_.-]{1,39}|[1-5]\d\d")
_PARAM = re.compile(r"[a-z_]+(?:\[\d+\]|\.[a-z_]+)*")
_MOST_READ_CHARS = 1000
_QUOTED_CHARS = 16
"""A message that repeats this many characters of the prompt in a row quotes it."""
_NOT_TAKEN = re.compile(
    r"unsupported|(?:not|n't|only) (?:\w+ )?(?:support|permit|allow|accept|recogni[sz]e)"
    r"|deprecated|forbidden|unknown|unrecogni[sz]ed|unexpected",
    re.IGNORECASE,
)
"""Words for a field that is not taken, or only with one value; a value out of its range is another matter."""


@dataclass(frozen=True, slots=True)
class ReportedError:
    """An error as the upstream reports it; "" for what it does not say."""

    word: str = ""
    """Its code or type, where one of them is a word."""
    message: str = ""
    """As it came."""
    param: str = ""
    """The field at fault, as it came."""

    def words(self, asked: ProviderRequest) -> str:
        """What of it may be repeated, in one line; "" for nothing."""
        line = "" if self._quotes(asked, 1) else " ".join(self.message.split())
        message = short_word(_KEY_LIKE.sub(CUT, without_secrets(line)))
        param = self.param if _PARAM.fullmatch(self.param) and self.param not in message else ""
        return ": ".join(part for part in (self.word, param, message) if part)

    def not_taken(self, body: Mapping[str, Any], asked: ProviderRequest) -> str:
        """The field of a request's body that is not taken: the one at fault, else the first that its message names; "" for none."""
        if not _NOT_TAKEN.search(f"{self.word} {self.message}"):
            return ""
        if self.param:
            field = re.split(r"[.\[]", self.param)[0]
            return field if field in body else ""
        names = "|".join(sorted(map(re.escape, body), key=len, reverse=True))
        named = re.search(rf"(?:^|['\"`]|: )({names})(?![\w-])|(?<![\w-])({names})=", self.message)
        return (named[1] or named[2]) if named is not None and not self._quotes(asked, _QUOTED_CHARS) else ""

    def _quotes(self, asked: ProviderRequest, shortest: int) -> bool:
        """Whether its message has a part of a text that was sent, and is not shorter than this; all of a short one."""
        texts = [turn.content for turn in asked.messages]
        if asked.openai_json:
            texts += [text for text in _texts(json.loads(asked.openai_json)) if len(text) >= _QUOTED_CHARS]
        line = " ".join(self.message.split())
        return any(_has_part(line, " ".join(text.split())) for text in texts if len(text) >= shortest)


class TakenFields:
    """The fields that each model of an upstream takes, as far as its refusals have shown."""

    def __init__(self, upstream: str, replaceable: Mapping[str, str]) -> None:
        """`replaceable`: the fields that may be left out, or where it has one be sent by their other name."""
        self._upstream = upstream
        self._replaceable = dict(replaceable)
        self._replaced: dict[str, dict[str, str]] = {}

    def fitted(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A request's body with what its model takes."""
        replaced = self._replaced.get(body["model"], {})
        names = {field: replaced.get(field, field) for field in body}
        return {names[field]: value for field, value in body.items() if names[field]}

    def replace(self, model: str, field: str, tried: Iterable[str]) -> bool:
        """Remember that a model does not take a field. False: the request cannot do without it, or not even its other name, which was
        `tried`."""
        other = self._replaceable.get(field)
        if other is None or other in tried:
            return False
        replaced = self._replaced.setdefault(model, {})
        if replaced.get(field) != other:
            instead = f"it is sent as {other}" if other else "it is left out"
            log.warning("upstream %s does not take %s for %s; %s from now on", self._upstream, field, model, instead)
        replaced[field] = other
        replaced.pop(other, None)
        return True


class _Report(msgspec.Struct):
    error: Any = None
    object: Any = None
    message: Any = None
    detail: Any = None
    code: Any = None
    type: Any = None
    param: Any = None


_decoder = msgspec.json.Decoder(_Report | list[_Report])


def reported_error(data: bytes | bytearray) -> ReportedError | None:
    """The error that an answer, or an event of one, reports; None where it reports none."""
    return _error_in(data, unframed=False) if _MAY_REPORT in data else None


def refusal_in(body: bytes) -> ReportedError:
    """The error that the body of a refusal reports, in whichever form."""
    return _error_in(body, unframed=True) or ReportedError()


def _error_in(data: bytes | bytearray, *, unframed: bool) -> ReportedError | None:
    """OpenAI's error object, the same without a frame, a bare text, or what a validation found (`detail`); also the first of a list."""
    try:
        decoded = _decoder.decode(data)
        report = decoded if isinstance(decoded, _Report) else next(iter(decoded), _Report())
        if report.error is None and report.object != "error" and not unframed:
            return None
        fields = msgspec.structs.asdict(report) if report.error is None else report.error
        if not isinstance(fields, dict):
            fields = {"message": fields}
        message, param = fields.get("message") or fields.get("detail"), fields.get("param")
        if isinstance(message, dict | list):
            message = msgspec.json.encode(message).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    names = [str(fields.get(name)) for name in ("code", "type") if isinstance(fields.get(name), str | int)]
    return ReportedError(
        word=next((name for name in names if _WORD.fullmatch(name)), ""),
        message=message[:_MOST_READ_CHARS] if isinstance(message, str) else "",
        param=param if isinstance(param, str) else "",
    )


def _texts(value: Any) -> Iterator[str]:
    """The texts in a JSON value, without names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _has_part(line: str, text: str) -> bool:
    length = min(_QUOTED_CHARS, len(text))
    return length > 0 and any(line[start : start + length] in text for start in range(len(line) - length + 1))
