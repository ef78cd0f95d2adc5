"""The privacy registry: what may leave the device in which form. The one place that knows what is private.

A conversation is redacted as a whole and restored with what its redaction remembers. The leak test checks what is about to leave, by
itself: nothing that was replaced may be left in it, and nothing that would have been.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from edge.core.secret_forms import CUT, without_secrets
from edge.privacy.addresses import emails, ips, paths
from edge.privacy.findings import KINDS, Kind, PrivateSpan, resolved, views_of
from edge.privacy.keys import encoded_texts, secrets_in
from edge.privacy.known import Known, KnownWords
from edge.privacy.numbers import cards, ibans, phones
from edge.privacy.placeholders import LINK_CHARS, Placeholders, Restoring, changed_json, restored, spans_of_names, strings_in
from edge.privacy.rules import NeverSend, PrivateTerms

Detector = Callable[[str], Iterable[PrivateSpan]]


class Finder:
    """Searches for the kinds that are wanted, and for terms wherever there are some."""

    def __init__(self, kinds: Collection[Kind] = KINDS, terms: Sequence[str] = (), region: str | None = None) -> None:
        """`region`: the two letters of the country whose telephone numbers are known without a prefix. Raises ValueError for a bad term."""
        detectors: dict[Kind, Detector] = {
            "term": PrivateTerms(terms).found,
            "secret": secrets_in,
            "email": emails,
            "card": cards,
            "iban": ibans,
            "phone": lambda text: phones(text, region),
            "ip": ips,
            "path": paths,
        }
        self._detectors = [detector for kind, detector in detectors.items() if kind in kinds or (kind == "term" and terms)]
        self._reads_base64 = "secret" in kinds

    def find(self, text: str) -> list[PrivateSpan]:
        """What is private, without overlaps, in the order of the text."""
        found: list[PrivateSpan] = []
        for view in views_of(text):
            for detector in self._detectors:
                found += [PrivateSpan(*view.span(one.start, one.end), one.kind, one.value) for one in detector(view.text)]
        if self._reads_base64:
            found += [
                PrivateSpan(start, end, "secret", text[start:end])
                for start, end, plain in encoded_texts(text)
                if any(list(detector(plain)) for detector in self._detectors)
            ]
        return resolved(found)


_PASSES = 5
_PROGRAM_NAME = re.compile(r"[\w-]{1,64}")
MOST_DIGITS = 8
_ADDRESS = re.compile(r"[^\s@<>\"'()]{1,64}@[^\s@<>\"'()]{1,250}\.\w+")
_GROUPED = re.compile(r"\d+(?:[ ,.()/\-]\d{2,})*")
_LONG_WORD = re.compile(r"(?<![A-Za-z0-9+/_-])(?=[A-Za-z0-9+/_-]*\d)(?=[A-Za-z0-9+/_-]*[A-Za-z])[A-Za-z0-9+/_-]{24,}={0,2}")
MOST_CHARS = 1_000_000
"""The longest conversation that is searched: some seconds of work."""
_NOT_IN_NAMES: frozenset[Kind] = frozenset({"path"})
"""A task is often called after the file that it comes from."""


@dataclass(frozen=True, slots=True)
class Redacted:
    """A redacted conversation: `texts` as they may leave, `json` likewise ("": there was none), `originals` by placeholder name, and how
    many things of each kind were replaced."""

    texts: tuple[str, ...]
    json: str = ""
    originals: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)

    def restored(self, text: str) -> str:
        """A text of the answer with what its placeholders replaced put back."""
        return restored(text, self.originals)

    def restored_json(self, text: str) -> str:
        """The same for the strings of a JSON text; what is not JSON is restored as a text."""
        if not (self.originals and text):
            return text
        try:
            return changed_json(text, lambda string, is_name: restored(string, self.originals))
        except ValueError:
            return self.restored(text)

    def restoring(self) -> Restoring:
        """For an answer that comes in pieces."""
        return Restoring(self.originals)


class PrivacyRegistry:
    """What one person holds to be private."""

    def __init__(
        self,
        *,
        enabled: bool = True,
        kinds: Collection[Kind] = KINDS,
        terms: Sequence[str] = (),
        never_send: Sequence[str] = (),
        region: str | None = None,
    ) -> None:
        """Not `enabled`: nothing is replaced or tested, but `never_send` holds. Raises ValueError for a bad term or rule."""
        self.enabled = enabled
        self.region = region
        self.kinds = tuple(kind for kind in KINDS if kind in kinds or (kind == "term" and terms))
        self._finder = Finder(kinds, terms, region)
        self._rules = NeverSend(never_send)

    def broken_rule(self, texts: Sequence[str], json: str = "") -> int:
        """The number, from 1, of the never-send rule that forbids this conversation; 0 where none does."""
        return self._rules.broken([*texts, *_strings(json)])

    @property
    def most_chars(self) -> float:
        """How long a conversation may be in all to be searched; without a limit where nothing is searched for."""
        return MOST_CHARS if self.enabled else math.inf

    def kinds_in_names(self, names: Sequence[str]) -> set[Kind]:
        """The kinds of private things in names of tasks and models, which cannot be replaced; none where not enabled."""
        found = [one for name in names for one in self._finder.find(name)] if self.enabled else []
        return {one.kind for one in found} - _NOT_IN_NAMES

    def redacted(self, texts: Sequence[str], json: str = "") -> Redacted:
        """The conversation as it may leave. `json`: a JSON text that belongs to it. Raises ValueError where that is none."""
        if not self.enabled:
            return Redacted(tuple(texts), json)
        every = [*texts, *(strings_in(json) if json else ())]
        known: dict[tuple[str, str], tuple[PrivateSpan, str]] = {}
        for text in every:
            known |= {(one.kind, one.value): (one, text[one.start : one.end]) for one in self._finder.find(text)}
        if not known:
            return Redacted(tuple(texts), json)
        replacing = _Replacing(self._finder, known, Placeholders(every))
        redacted, before = Redacted(tuple(texts), json), None
        for _ in range(_PASSES):
            if redacted == before:
                break
            before, redacted = redacted, replacing.whole(redacted)
        return redacted

    def leaks(self, texts: Sequence[str], json: str, originals: Mapping[str, str]) -> Counter[str]:
        """What of each kind is still to be seen in what is about to leave; empty where nothing is. `originals`: what was replaced."""
        found: Counter[str] = Counter()
        if not self.enabled:
            return found
        values = KnownWords((value, value) for value in originals.values())
        for text in [*texts, *_strings(json)]:
            found.update(one.kind for one in _outside_names(self._finder.find(text), text, originals))
            found.update("known" for _ in values.places(text))
        return found

    def cut(self, text: str) -> str:
        """The text with `[cut]` in place of what is private, whether redaction is enabled or not; for what may be shortened and needs no
        way back, such as a hint.

        Stricter than redaction: whatever has the form of an address or a key goes, however plain, and so does every number of more than
        MOST_DIGITS digits.
        """
        text = without_secrets(_replaced(text, self._finder.find(text), lambda one: CUT))
        text = _LONG_WORD.sub(CUT, _ADDRESS.sub(CUT, text))
        return _GROUPED.sub(lambda number: CUT if sum(map(str.isdigit, number[0])) > MOST_DIGITS else number[0], text)


private_cut = PrivacyRegistry().cut
"""Without a person's own terms."""


@dataclass(frozen=True, slots=True)
class _Replacing:
    """Puts names in the place of what is found, and of what was found elsewhere in the conversation."""

    finder: Finder
    known: dict[tuple[str, str], tuple[PrivateSpan, str]]
    names: Placeholders

    def whole(self, conversation: Redacted) -> Redacted:
        """The conversation after one more pass: next to a placeholder, something may be a word of its own that was not before."""
        again = Known(self.known.values())
        texts = tuple(self.text(text, again) for text in conversation.texts)
        json = changed_json(conversation.json, partial(self.string, again=again)) if conversation.json else ""
        return Redacted(texts, json, dict(self.names.originals), dict(self.names.replaced))

    def text(self, text: str, again: Known) -> str:
        def label(one: PrivateSpan) -> str:
            original = text[one.start : one.end]
            self.known.setdefault((one.kind, one.value), (one, original))
            return self.names.label(one, original, text[one.end : one.end + LINK_CHARS])

        return _replaced(text, self._found(text, again), label)

    def string(self, text: str, is_name: bool, *, again: Known) -> str:
        """A string of a JSON text. One that programs use as a name is replaced as a whole, by a name they can use."""
        if not (is_name and _PROGRAM_NAME.fullmatch(text)):
            return self.text(text, again)
        found = self._found(text, again)
        return self.names.name(PrivateSpan(0, len(text), found[0].kind, text), text) if found else text

    def _found(self, text: str, again: Known) -> list[PrivateSpan]:
        found = resolved([*self.finder.find(text), *again.again(text)])
        return _outside_names(found, text, self.names.originals)


def _replaced(text: str, found: Iterable[PrivateSpan], replacement: Callable[[PrivateSpan], str]) -> str:
    parts, place = [], 0
    for one in found:
        parts += [text[place : one.start], replacement(one)]
        place = one.end
    return "".join([*parts, text[place:]])


def _outside_names(found: Sequence[PrivateSpan], text: str, originals: Mapping[str, str]) -> list[PrivateSpan]:
    """What is found and does not overlap a placeholder's own name."""
    names = spans_of_names(text, originals) if originals else []
    ends = [end for _, end in names]
    indexes = (bisect_right(ends, one.start) for one in found)
    return [one for one, index in zip(found, indexes, strict=True) if index == len(names) or names[index][0] >= one.end]


def _strings(json: str) -> list[str]:
    """The strings of a JSON text; the text itself where it is none."""
    try:
        return strings_in(json) if json else []
    except ValueError:
        return [json]
