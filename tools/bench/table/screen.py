"""What a person sees while the bench works: a live line on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

from tools.bench.table.children import Tell

_QUIET_S = 60.0
_WIDTH = 110


class LineScreen:
    """Implements `Screen` on a stream."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()

    def begin(self, key: str) -> Tell:
        """A part begins."""
        self._line(f"  {key} ...", live=True)
        told = 0.0

        def tell(seconds: float, line: str) -> None:
            nonlocal told
            if self._live or seconds - told >= _QUIET_S:
                told = seconds
                self._line(f"  {key} ... {seconds:.0f} s  {line}", live=self._live)

        return tell

    def end(self, key: str, seconds: float, note: str) -> None:
        """A part is over."""
        self._line(f"  {key}: {seconds:.0f} s, {note}", live=False)

    def title(self, text: str) -> None:
        """A row begins."""
        self._line(f"== {text}", live=False)

    def _line(self, text: str, *, live: bool) -> None:
        if live and not self._live:
            return
        cut = text[:_WIDTH].replace("\n", " ")
        start = "\r\x1b[K" if self._live else ""
        self._stream.write(f"{start}{cut}" + ("" if live else "\n"))
        self._stream.flush()
