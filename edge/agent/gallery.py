"""The figures of a run in progress. Knows when they are due and where they are drawn; knows nothing of what they show.

Drawing takes about a second of one core, so it happens on a thread, and only every so many steps, at the switch to another phase, when
held-out items were scored, and at the end. Nothing that goes wrong with a picture ends a run: it is said once, and drawing stops.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from edge.agent.events import HeldOutScored, PhaseStarted, StepFinished
from edge.agent.figures import what_is_missing, write_figures
from edge.core.events import Event

STEPS_BETWEEN = 20
SHOWN_STEPS = 2000
"""Steps that figures of an endless run show: the newest."""

Draw = Callable[[Path, Sequence[StepFinished], Sequence[HeldOutScored]], list[Path]]


class Gallery:
    """An event sink that keeps the figures in a folder up to date while it is open."""

    def __init__(self, folder: Path, say: Callable[[str], None], draw: Draw = write_figures) -> None:
        """Opened once. `say` gets one line for a person: where the figures are, or why there are none. `draw` is called on a thread."""
        self._folder = folder
        self._say = say
        self._draw = draw
        self._steps: deque[StepFinished] = deque(maxlen=SHOWN_STEPS)
        self._held_out: list[HeldOutScored] = []
        self._undrawn = 0
        self._told = False
        self._due = asyncio.Event()
        self._closing = False

    def emit(self, event: Event) -> None:
        """Take one event; draws nothing itself."""
        if isinstance(event, StepFinished):
            self._steps.append(event)
            self._undrawn += 1
        elif isinstance(event, HeldOutScored):
            self._held_out.append(event)
            self._undrawn += 1
        if isinstance(event, (PhaseStarted, HeldOutScored)) or self._undrawn >= STEPS_BETWEEN:
            self._due.set()

    @asynccontextmanager
    async def open(
        self, steps: Sequence[StepFinished], held_out: Sequence[HeldOutScored] = (), *, at_the_end: bool = True
    ) -> AsyncIterator[None]:
        """Go on from what the run did before, draw while it goes on and, `at_the_end`, once more if there is anything new."""
        if missing := what_is_missing():
            self._say(missing)
            yield
            return
        self._steps.extendleft(reversed(steps[-SHOWN_STEPS:]))
        self._held_out[:0] = held_out
        drawing = asyncio.create_task(self._keep_drawing())
        try:
            yield
        finally:
            self._closing = True
            self._undrawn = self._undrawn if at_the_end else 0
            self._due.set()
            await drawing

    async def _keep_drawing(self) -> None:
        closing = False
        while not closing:
            await self._due.wait()
            self._due.clear()
            closing = self._closing  # as it was before drawing: what comes meanwhile is drawn once more
            if self._undrawn and self._steps and not await self._drawn():
                return

    async def _drawn(self) -> bool:
        """Draw everything; False when it failed, which is told."""
        self._undrawn = 0
        try:
            await asyncio.to_thread(self._draw_all, tuple(self._steps), tuple(self._held_out))
        except Exception as error:  # a full disk or a broken plotting library is no reason to stop learning
            self._say(f"figures are no longer drawn: {type(error).__name__}: {error}")
            return False
        if not self._told:
            self._say(f"figures in {self._folder}, drawn again every {STEPS_BETWEEN} steps")
            self._told = True
        return True

    def _draw_all(self, steps: Sequence[StepFinished], held_out: Sequence[HeldOutScored]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._draw(self._folder, steps, held_out)
