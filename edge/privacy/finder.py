"""Everything private in a text, by all detectors together. Knows which detector belongs to which kind; knows nothing of what follows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from edge.privacy.addresses import emails, ips
from edge.privacy.found import KINDS, Found, Kind, resolved
from edge.privacy.keys import encoded_texts, secrets_in
from edge.privacy.numbers import cards, ibans, phones
from edge.privacy.paths import paths
from edge.privacy.terms import Terms
from edge.privacy.views import View, views_of

Detector = Callable[[str], Iterable[Found]]


class Finder:
    """Looks for the kinds that are wanted. Terms are looked for wherever there are some."""

    def __init__(self, kinds: Collection[Kind] = KINDS, terms: Sequence[str] = (), region: str | None = None) -> None:
        """`region`: the two letters of the country whose telephone numbers are known without a prefix. Raises ValueError for a bad term."""
        detectors: dict[Kind, Detector] = {
            "term": Terms(terms).found,
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

    def find(self, text: str) -> list[Found]:
        """What is private, without overlaps, in the order of the text."""
        found = [one for view in views_of(text) for one in self._in_view(view)]
        if self._reads_base64:
            found += [
                Found(start, end, "secret", text[start:end])
                for start, end, plain in encoded_texts(text)
                if any(list(detector(plain)) for detector in self._detectors)
            ]
        return resolved(found)

    def _in_view(self, view: View) -> Iterator[Found]:
        for detector in self._detectors:
            for one in detector(view.text):
                start, end = view.span(one.start, one.end)
                yield Found(start, end, one.kind, one.value)
