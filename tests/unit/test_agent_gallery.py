"""Figures are drawn when due, on a thread, without delaying learning."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from edge.learning import figures as gallery_module
from edge.learning.figures import STEPS_BETWEEN, LiveFigures
from edge.state.events import HeldOutScored, PhaseStarted, StepFinished
from tests.unit.test_agent_retention import scored
from tests.worlds.steps import step


class Drawn:
    """Takes the place of drawing; `numbers` are (steps, results) of each time."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.numbers: list[tuple[int, int]] = []
        self.failure = failure
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()

    def __call__(self, folder: Path, steps: Sequence[StepFinished], held_out: Sequence[HeldOutScored]) -> list[Path]:
        assert folder.is_dir()
        self.numbers.append((len(steps), len(held_out)))
        self._loop.call_soon_threadsafe(self._done.set)
        if self.failure is not None:
            raise self.failure
        return []

    async def once_more(self) -> None:
        await asyncio.wait_for(self._done.wait(), 30)
        self._done.clear()


async def test_figures_are_drawn_at_intervals_and_at_the_end_with_earlier_steps(tmp_path: Path) -> None:
    draw = Drawn()
    async with LiveFigures(tmp_path / "figures", lambda line: None, draw).open([step(1)]):
        pass
    assert draw.numbers == [], "earlier steps are no reason to draw"
    gallery = LiveFigures(tmp_path / "figures", lambda line: None, draw)
    async with gallery.open([step(1)], [scored(0, "a", 0.5)]):
        for number in range(2, STEPS_BETWEEN + 2):
            gallery.emit(step(number))
        await draw.once_more()
        gallery.emit(step(STEPS_BETWEEN + 2))
    assert draw.numbers == [(STEPS_BETWEEN + 1, 1), (STEPS_BETWEEN + 2, 1)]


async def test_phase_switch_and_held_out_results_are_drawn_immediately(tmp_path: Path) -> None:
    draw = Drawn()
    gallery = LiveFigures(tmp_path, lambda line: None, draw)
    async with gallery.open([], at_the_end=False):
        gallery.emit(PhaseStarted(0, "a", "a", 0.3, 1, 1))
        gallery.emit(step(1))
        gallery.emit(PhaseStarted(1, "b", "b", 0.3, None, 1))
        await draw.once_more()
        gallery.emit(scored(1, "a", 0.5))
        await draw.once_more()
        gallery.emit(step(2))
    assert draw.numbers == [(1, 0), (1, 1)]


async def test_drawing_failure_is_reported_once_and_ends_drawing_only(tmp_path: Path) -> None:
    lines: list[str] = []
    draw = Drawn(OSError("disk full"))
    gallery = LiveFigures(tmp_path, lines.append, draw)
    async with gallery.open([]):
        gallery.emit(step(1))
        gallery.emit(PhaseStarted(1, "b", "b", 0.3, None, 1))
        await draw.once_more()
        gallery.emit(step(2))
    (line,) = lines
    assert "disk full" in line and draw.numbers == [(1, 0)]


async def test_without_matplotlib_one_line_is_printed_and_nothing_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery_module, "what_is_missing", lambda: "no figures: matplotlib is not installed")
    lines: list[str] = []
    draw = Drawn()
    gallery = LiveFigures(tmp_path / "figures", lines.append, draw)
    async with gallery.open([]):
        for number in range(50):
            gallery.emit(step(number))
    assert (len(lines), draw.numbers, (tmp_path / "figures").exists()) == (1, [], False)
