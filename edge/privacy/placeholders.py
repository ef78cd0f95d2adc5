"""Placeholders such as `[EMAIL_1]` in the place of private things of one conversation, also inside JSON texts, and the way back.

The same thing has the same placeholder from its first appearance on, so a later turn, sent with the whole conversation, agrees with an
earlier one. A name that the conversation itself contains is not used. On the way back a model may have changed the case inside the
brackets, escaped the underscore for Markdown, or left the brackets out, then only in capitals. What may be a program's own stays: other
brackets, `rows[ip_1]`, `${PATH_1}`, `PATH_1 = ...`, and a name without its underscore.

Arguments of tools are JSON inside a string of JSON: they are walked too, so that what is put there is escaped as it must be.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from edge.privacy.findings import KINDS, PrivateSpan

_NAMES = "|".join(kind.upper() for kind in KINDS)
_TAKEN = re.compile(rf"(?i)({_NAMES})[\\_ -]{{0,2}}(\d{{1,6}})")
_NOT_BEFORE = r"(?<![A-Za-z0-9_\\{$<.])"
_LINKS_ON = r"\((?:mailto|tel|file|https?):"
_LINK = re.compile(_LINKS_ON)
LINK_CHARS = len("(mailto:")
"""How many characters after a name show whether it is the text of a link."""
_LABEL = re.compile(
    rf"(?P<escaped>\\)?\[(?P<kind>(?i:{_NAMES}))\\?_(?P<number>\d{{1,6}})(?(escaped)\\)\](?(escaped)|(?P<link>(?={_LINKS_ON}))?)"
    rf"|{_NOT_BEFORE}(?P<bare>{_NAMES})\\?_(?P<bare_number>\d{{1,6}})(?![A-Za-z0-9_]| ?=|[(\[{{}}>]|\.[A-Za-z_])"
)
_UNFINISHED = re.compile(
    rf"\\?\Z|\\?\[(?:[A-Za-z]{{0,6}}|(?i:{_NAMES})(?:\\|\\?_\d{{0,6}}\\?(?:\](?:\([a-z]{{0,6}})?)?))\Z"
    rf"|{_NOT_BEFORE}(?:[A-Z]{{1,6}}|(?:{_NAMES})(?:\\|\\?_\d{{0,6}}|\\?_\d{{1,6}}[ .]))\Z"
)
_SUBSCRIBED = re.compile(r"[\w)\]$]")
"""After this, something in brackets and small letters is an index."""
_LONGEST = 32


class Placeholders:
    """The names given so far, and what each replaces."""

    def __init__(self, conversation: Iterable[str]) -> None:
        """`conversation`: all texts, whose own words that look like names are left alone."""
        self._taken = {(match[1].upper(), int(match[2])) for text in conversation for match in _TAKEN.finditer(text)}
        self._names: dict[tuple[str, str], str] = {}
        self._next: Counter[str] = Counter()
        self.originals: dict[str, str] = {}
        self.replaced: Counter[str] = Counter()

    def name(self, one: PrivateSpan, original: str) -> str:
        """The name for a thing without brackets, the old one where it has one; counts it."""
        self.replaced[one.kind] += 1
        key = (one.kind, one.value)
        if key not in self._names:
            kind = one.kind.upper()
            self._next[kind] += 1
            while (kind, self._next[kind]) in self._taken:
                self._next[kind] += 1
            self._names[key] = f"{kind}_{self._next[kind]}"
            self.originals[self._names[key]] = original
        return self._names[key]

    def label(self, one: PrivateSpan, original: str, after: str) -> str:
        """The name as it is written before the text `after`. Escaped where its brackets would otherwise become a link and stay."""
        name = self.name(one, original)
        return rf"\[{name}\]" if _LINK.match(after) else f"[{name}]"


def spans_of_names(text: str, originals: Mapping[str, str]) -> list[tuple[int, int]]:
    """Where known names occur in a text."""
    return [match.span() for match in _LABEL.finditer(text) if _name_of(match) in originals]


def restored(text: str, originals: Mapping[str, str]) -> str:
    """The text with what its names replaced put back; unknown names stay."""
    return _LABEL.sub(lambda match: _meant(match, originals), text) if originals else text


class Restoring:
    """Restores a text that comes in pieces. Holds back only an end that may become a name."""

    def __init__(self, originals: Mapping[str, str]) -> None:
        self._originals = originals
        self._text = ""
        self._done = 0

    def feed(self, piece: str) -> str:
        """Take the next piece; what can be restored of all pieces so far."""
        if not self._originals:
            return piece
        self._text += piece
        end = len(self._text)
        may_be_unfinished = (
            start for start in range(max(self._done, end - _LONGEST), end) if _UNFINISHED.match(self._text, start)
        )
        return self._restored_to(next(may_be_unfinished, end))

    def rest(self) -> str:
        """What was held back, at the end."""
        return self._restored_to(len(self._text))

    def _restored_to(self, end: int) -> str:
        parts: list[str] = []
        for match in _LABEL.finditer(self._text, self._done):  # to the very end: what follows a name decides about it
            if match.end() > end:
                break
            parts += [self._text[self._done : match.start()], _meant(match, self._originals)]
            self._done = match.end()
        parts.append(self._text[self._done : end])
        self._done = max(self._done, end)
        return "".join(parts)


def _meant(match: re.Match[str], originals: Mapping[str, str]) -> str:
    original, kind, start = originals.get(_name_of(match)), match["kind"], match.start()
    is_index = kind is not None and not kind.isupper() and start > 0 and _SUBSCRIBED.match(match.string, start - 1) is not None
    if original is None or is_index:
        return match.group()
    return f"[{original}]" if match["link"] is not None else original


def _name_of(match: re.Match[str]) -> str:
    kind, number = (match["bare"], match["bare_number"]) if match["bare"] else (match["kind"], match["number"])
    return f"{kind.upper()}_{int(number)}"


Change = Callable[[str, bool], str]
"""From a string, and whether it is a name that programs use, to what is put in its place."""
_MOST_DEPTH = 200
_NAME_KEYS = frozenset({"name"})


def changed_json(text: str, change: Change) -> str:
    """The JSON text with its strings, names and numbers changed; the very same text where none is. Raises ValueError for what is not JSON,
    or too deep."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON text is nested too deeply") from error
    after = _changed(value, change, 0, is_name=False)
    return text if after == value else json.dumps(after, ensure_ascii=False, separators=(",", ":"))


def strings_in(text: str) -> list[str]:
    """Every string, name and number of a JSON text, inner JSON texts taken apart. Raises ValueError as `changed_json`."""
    found: list[str] = []

    def note(string: str, is_name: bool) -> str:
        found.append(string)
        return string

    changed_json(text, note)
    return found


def _changed(value: Any, change: Change, depth: int, *, is_name: bool) -> Any:
    if depth > _MOST_DEPTH:
        raise ValueError("the JSON text is nested too deeply")
    if isinstance(value, dict):
        return {change(key, True): _changed(inner, change, depth + 1, is_name=key in _NAME_KEYS) for key, inner in value.items()}
    if isinstance(value, list):
        return [_changed(inner, change, depth + 1, is_name=is_name) for inner in value]
    if isinstance(value, str):
        inner = _inner(value)
        if inner is None:
            return change(value, is_name)
        after = _changed(inner, change, depth + 1, is_name=False)
        return value if after == inner else json.dumps(after, ensure_ascii=False)
    if isinstance(value, int | float) and not isinstance(value, bool):
        shown = json.dumps(value)
        after = change(shown, False)
        return value if after == shown else after
    return value


def _inner(text: str) -> Any:
    """The object or list that a string is the JSON text of, else None."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
