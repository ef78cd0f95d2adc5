"""Typed events and where they go. Anything that is counted or plotted is an event; logs are text for people.

Events are frozen dataclasses with a `kind`; sinks receive them. A sink must not raise for a well-formed event and must not block
for long: it is called from the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, TextIO


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events. `kind` names the class on disk and on the wire."""

    kind: ClassVar[str] = "event"

    def to_json(self) -> dict[str, Any]:
        """The event as a JSON object with its kind first."""
        return {"kind": self.kind, **asdict(self)}


class EventSink(Protocol):
    """Receives events."""

    def emit(self, event: Event) -> None:
        """Take one event; never raises for a well-formed event."""
        ...


class MemorySink:
    """Keeps events in a list; for tests and the simulator."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        """Append the event."""
        self.events.append(event)


class JsonLinesSink:
    """Writes one JSON object a line, flushed at each event so that a crash loses nothing that was emitted."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def emit(self, event: Event) -> None:
        """Write the event as one line."""
        self._stream.write(json.dumps(event.to_json(), ensure_ascii=False, allow_nan=False) + "\n")
        self._stream.flush()


class FanOutSink:
    """Hands each event to several sinks in order."""

    def __init__(self, sinks: Iterable[EventSink]) -> None:
        self._sinks = tuple(sinks)

    def emit(self, event: Event) -> None:
        """Emit to every sink."""
        for sink in self._sinks:
            sink.emit(event)
